"""Streaming: chunks, shapes, thinned repeats, order over several logs; nothing of interest is lost."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.diagnose.patterns import Gate
from advisor.logs import scan
from advisor.logs.merge import in_order
from advisor.logs.scan import LONGEST_LINE_BYTES, Scanner, Size, chunks, shape_of
from advisor.logs.sources import Source
from advisor.logs.text import clean, shown


@given(st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=200), st.integers(1, 64))
@settings(deadline=None)
def test_chunks_are_the_lines(lines, chunk):
    whole, before = b"\n".join(lines), scan.CHUNK_BYTES
    scan.CHUNK_BYTES = chunk
    try:
        got = [line for part in chunks(io.BytesIO(whole), Size()) for line in part]
    finally:
        scan.CHUNK_BYTES = before
    wanted = whole.split(b"\n")
    assert got == (wanted[:-1] if wanted[-1] == b"" else wanted)


def test_an_endless_line_is_cut():
    size = Size()
    parts = [line for part in chunks(io.BytesIO(b"x" * 5_000_000), size) for line in part]
    assert size.bytes == 5_000_000
    assert max(map(len, parts)) <= scan.CHUNK_BYTES + LONGEST_LINE_BYTES


def interest(path, text, **limits):
    path.write_text(text, encoding="utf-8")
    scanner = Scanner(
        lambda shape: tuple(mark for mark, word in enumerate((b"step", b"Error")) if word in shape),
        lambda line, marks: marks,
        frozenset({0}),
    )
    return [(hit.number, hit.marks) for hit in scanner.hits(Source(path.name, path), Size())]


def test_of_repeats_first_and_last_stay(tmp_path):
    lines = [*(f"step {n}" for n in range(50)), "Error 1", *(f"step {n}" for n in range(50, 90)), "quiet"]
    assert interest(tmp_path / "x.log", "\n".join(lines)) == [(1, (0,)), (50, (0,)), (51, (1,)), (52, (0,)), (91, (0,))]


def test_a_flood_is_thinned_but_its_end_is_kept(tmp_path):
    lines = [f"Error {n}" for n in range(scan.MOST_OF_A_SHAPE + 500)]
    found = interest(tmp_path / "x.log", "\n".join(lines))
    assert scan.MOST_OF_A_SHAPE <= len(found) <= scan.MOST_OF_A_SHAPE + 3
    assert found[-1][0] == len(lines)


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
