"""Streaming: chunks, shapes, thinned repeats, order over several logs; nothing of interest is lost."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.diagnose.events import collect
from advisor.diagnose.patterns import knowledge
from advisor.logs import blocks, scan
from advisor.logs.blocks import Feed, Size
from advisor.logs.gate import Gate, shape_of
from advisor.logs.merge import in_order
from advisor.logs.scan import Scanner
from advisor.logs.sources import Source
from advisor.logs.text import LONGEST_LINE_BYTES, clean, shown

KNOWN = knowledge()
EXAMPLES = [pattern.example for pattern in KNOWN.patterns]


def lines_of(whole, chunk, head=blocks.HEAD_BYTES):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CHUNK_BYTES", chunk)
        patch.setattr(blocks, "HEAD_BYTES", head)
        size = Size()
        found = [
            (block.number_of(index), block.place + index, block.line(index), list(block.back(index, 3)))
            for block in Feed(io.BytesIO(whole), size).blocks()
            for index in range(len(block))
        ]
    return found, size


@given(
    st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=200),
    st.integers(1, 64),
    st.integers(1, 64),
)
@settings(deadline=None)
def test_blocks_are_the_lines(lines, chunk, head):
    whole = b"\n".join(lines)
    wanted = whole.split(b"\n")
    wanted = wanted[:-1] if wanted[-1] == b"" else wanted
    found, size = lines_of(whole, chunk, head)
    assert [row[2] for row in found] == wanted
    assert [row[0] for row in found] == [row[1] + 1 for row in found] == list(range(1, len(wanted) + 1))
    assert [row[3] for row in found] == [wanted[max(at - 3, 0) : at][::-1] for at in range(len(wanted))]
    assert size == Size(len(whole), len(wanted))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 50), st.booleans())
@settings(deadline=None)
def test_endless_lines_are_cut_alike_in_every_block(lengths, chunk, closed):
    whole = b"\n".join(bytes([97 + at]) * length for at, length in enumerate(lengths)) + b"\n" * closed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LONGEST_LINE_BYTES", 8)
        found, size = lines_of(whole, chunk, chunk)
        assert found == lines_of(whole, 10_000)[0]
    pieces: dict[int, list[bytes]] = {}
    for number, _, line, _ in found:
        pieces.setdefault(number, []).append(line)
    assert [b"".join(parts) for parts in pieces.values()] == whole.split(b"\n")[: size.lines]
    assert all(len(part) == 8 for parts in pieces.values() for part in parts[:-1])


def test_an_endless_line_is_cut():
    found, size = lines_of(b"x" * 5_000_000, blocks.CHUNK_BYTES)
    assert size == Size(5_000_000, 1)
    assert max(len(row[2]) for row in found) == LONGEST_LINE_BYTES
    assert {row[0] for row in found} == {1}


def interest(path, text):
    path.write_text(text, encoding="utf-8")
    scanner = Scanner(Gate([(0, b"step"), (1, b"Error")]), lambda line, marks: marks, frozenset({0}))
    return [(hit.number, hit.marks) for hit in scanner.hits(Source(path.name, path), Size())]


def test_of_repeats_first_and_last_stay(tmp_path):
    lines = [*(f"step {n}" for n in range(50)), "Error 1", *(f"step {n}" for n in range(50, 90)), "quiet"]
    assert interest(tmp_path / "x.log", "\n".join(lines)) == [(1, (0,)), (50, (0,)), (51, (1,)), (52, (0,)), (91, (0,))]


def test_a_flood_is_thinned_but_its_end_is_kept(tmp_path):
    lines = [f"Error {n}" for n in range(scan.MOST_OF_A_SHAPE + 500)]
    found = interest(tmp_path / "x.log", "\n".join(lines))
    assert len(found) == scan.MOST_OF_A_SHAPE + 1
    assert found[-1][0] == len(lines)


def test_lines_are_followed_as_long_as_asked(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(
        "".join(f"{word}\n" for word in ["a", "b", "begin", "c", "d", "step", "e", "f", "begin", "g"]), encoding="utf-8"
    )
    scanner = Scanner(Gate([(0, b"begin"), (1, b"step")]), lambda line, marks: marks, most=float("inf"))
    found = []
    for hit in scanner.hits(Source(path.name, path), Size()):
        found.append((hit.text, hit.marks))
        if hit.marks == (0,):
            scanner.follow(4)
        if hit.text == "e":
            scanner.follow(0)
    assert found == [("begin", (0,)), ("c", ()), ("d", ()), ("step", (1,)), ("e", ()), ("begin", (0,)), ("g", ())]


NOISE = st.one_of(
    st.text(alphabet="abc xyz019 .:\t", max_size=200),
    st.integers(0, 59).map(lambda n: f"2026-08-17 17:{n:02d}:11 and on"),
    st.integers(0, 9).map(lambda n: f"step {n}"),
)
EVENTS = st.one_of(
    st.sampled_from(EXAMPLES),
    st.integers(0, 9).map(lambda n: f" iteration {n:8d}/ 100 | elapsed time per iteration (ms): 1.0 |"),
    st.tuples(st.integers(0, 7), st.sampled_from(EXAMPLES)).map(lambda pair: f"[rank{pair[0]}]: {pair[1]}"),
)


def events_of(path, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CHUNK_BYTES", chunk)
        patch.setattr(scan, "MOST_OF_A_SHAPE", 3)
        found = collect([Source(path.name, path)], KNOWN)
    return [(one.pattern.id, one.number, one.text, one.rank, one.node, one.time_s) for one in found.events], found.sizes


@given(st.lists(st.one_of(NOISE, EVENTS), max_size=60), st.integers(1, 700), st.sampled_from(["\n", "\r\n", "\n\n"]))
@settings(deadline=None, max_examples=60)
def test_any_blocks_give_the_same_events(tmp_path_factory, lines, chunk, end):
    path = tmp_path_factory.mktemp("log") / "job.log"
    path.write_bytes(end.join(lines).encode())
    assert events_of(path, chunk) == events_of(path, 1 << 20)


@given(st.lists(st.one_of(NOISE, EVENTS), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_no_line_of_interest_stays_behind_the_gate(lines):
    shapes = [shape_of(line.encode()) for line in lines]
    data = b"".join(line.encode() + b"\n" for line in lines)
    found = dict(KNOWN.gate.candidates(data))
    assert all(found[index] == shapes[index] for index in found)
    assert [index for index, shape in enumerate(shapes) if KNOWN.gate.marks(shape) and index not in found] == []


@pytest.mark.parametrize("pattern", KNOWN.patterns, ids=lambda pattern: pattern.id)
def test_every_text_passes_the_gate_wherever_it_begins(pattern):
    for text in pattern.text:
        for shift in range(9):
            data = b"x" * shift + text.encode() + b"\n"
            assert dict(KNOWN.gate.candidates(data))[0] == shape_of(data[:-1])


@given(
    st.lists(st.text(alphabet="abcXY /.", min_size=2, max_size=12).filter(str.strip), min_size=1, max_size=20),
    st.text(max_size=80),
)
def test_the_gate_finds_what_is_there(texts, line):
    shaped = [(mark, shape_of(text.encode())) for mark, text in enumerate(texts)]
    for mark, text in shaped:
        shape = shape_of((line + texts[mark] + line).encode())
        assert set(Gate(shaped).marks(shape)) == {other for other, word in shaped if word in shape}
        assert text in shape
        whole = (line + texts[mark]).replace("\n", "").encode() + b"\n"
        assert [at for at, _ in Gate(shaped).candidates(whole)] == [0]


@dataclass(frozen=True)
class Place:
    file: int
    number: int
    time_s: float | None


def test_order_is_by_time_and_keeps_each_log():
    late, early = Place(0, 1, 50.0), Place(1, 1, 20.0)
    buffered, after = Place(0, 2, 10.0), Place(1, 2, None)
    assert in_order([late, buffered, early, after]) == [early, after, late, buffered]


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.floats(0, 100))), max_size=30))
def test_order_within_a_log_holds(rows):
    numbers = {0: 0, 1: 0, 2: 0}
    items = []
    for file, time in rows:
        numbers[file] += 1
        items.append(Place(file, numbers[file], time))
    ordered = in_order(items)
    for file in numbers:
        own = [item.number for item in ordered if item.file == file]
        assert own == sorted(own)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link", "red link"),
        (b"10%\r 50%\r100%", "100%"),
        (b"a\0b\r\n", "ab"),
        (b"\xff\xfeok", "\ufffd\ufffdok"),
    ],
)
def test_clean(raw, text):
    assert clean(raw) == text
    assert len(shown("x" * 5000)) == 600
