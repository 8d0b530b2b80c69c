"""Streams a log and hands on the few lines that matter, in bounded memory.

A log is millions of lines of few shapes: lines that differ in digits and blanks only are one shape, and what a shape
can match is decided once. Every line costs one `translate` and one look-up; patterns run on the rest.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from advisor.logs.sources import Source
from advisor.logs.tags import Tag, file_tag, is_numbered, read_tag
from advisor.logs.text import LONGEST_LINE_BYTES, clean
from advisor.logs.times import Clock

CHUNK_BYTES = 1 << 20
MOST_SHAPES = 1 << 14
MOST_OF_A_SHAPE = 5000
DROPPED = b"0123456789 \t\0"
LOOK_BACK_LINES = 60
_FIRST_LINES = 200
_UNKNOWN = (-1,)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that matters: where it is, who wrote it, when (seconds, None = unknown), and what it may match."""

    source: Source
    number: int
    text: str
    tag: Tag
    time_s: float | None
    marks: tuple[int, ...]


@dataclass(slots=True)
class Size:
    """What has been read so far."""

    bytes: int = 0
    lines: int = 0
    problem: str | None = None


def shape_of(raw: bytes) -> bytes:
    """What is left of a line when digits and blanks go."""
    return raw[:LONGEST_LINE_BYTES].translate(None, DROPPED)


def chunks(stream: IO[bytes], size: Size) -> Iterator[list[bytes]]:
    """Lines of a stream in lists of about `CHUNK_BYTES`; an endless line is cut. A broken gz ends the stream."""
    rest = b""
    while True:
        block = b"" if size.problem else _block(stream, size)
        size.bytes += len(block)
        if not block:
            if rest:
                yield [rest]
            return
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest)
            rest = b""
        if lines:
            yield lines


def _block(stream: IO[bytes], size: Size) -> bytes:
    """About `CHUNK_BYTES`, gathered from small reads so that nothing before a broken place is lost."""
    parts: list[bytes] = []
    length = 0
    read = getattr(stream, "read1", stream.read)
    try:
        while length < CHUNK_BYTES and (part := read(CHUNK_BYTES)):
            parts.append(part)
            length += len(part)
    except (OSError, EOFError, zlib.error) as problem:
        size.problem = str(problem)
    return b"".join(parts)


class Scanner:
    """Reads logs with one judgement of shapes.

    `judge` maps the shape of a line to the marks it may carry (empty = a line of no interest), `confirm` looks at the
    line itself. Marks in `latest` may be on every line: of those only the first after another hit and the last before
    one are handed on. So it goes with a shape that has been seen `MOST_OF_A_SHAPE` times.
    """

    def __init__(
        self,
        judge: Callable[[bytes], tuple[int, ...]],
        confirm: Callable[[str, tuple[int, ...]], tuple[int, ...]],
        latest: frozenset[int] = frozenset(),
    ) -> None:
        self._judge, self._confirm, self._latest = judge, confirm, latest
        self._shapes: dict[bytes, tuple[int, ...]] = {}
        self._seen: Counter[tuple[int, ...]] = Counter()

    def hits(self, source: Source, size: Size) -> Iterator[Hit]:
        """Lines of interest in order; times of earlier lines are carried on to lines without one."""
        reader = _Reader(source)
        self._seen.clear()
        with source.open() as stream:
            for lines in chunks(stream, size):
                reader.start(lines, size.lines)
                for index, text, marks in self._thinned(lines):
                    yield reader.hit(index, text, marks)
                size.lines += len(lines)

    def _thinned(self, lines: list[bytes]) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        """Lines of interest of a chunk without the bulk of what repeats."""
        waiting: dict[tuple[int, ...], int] = {}
        fresh: set[tuple[int, ...]] = set()
        for index, possible in self._marked(lines):
            if possible in fresh:
                waiting[possible] = index
                continue
            text = clean(lines[index])
            marks = self._confirm(text, possible)
            if not marks:
                continue
            self._seen[possible] += 1
            if self._latest.issuperset(possible) or self._seen[possible] >= MOST_OF_A_SHAPE:
                fresh.add(possible)
            else:
                yield from self._flush(lines, waiting)
                fresh.clear()
            yield index, text, marks
        yield from self._flush(lines, waiting)

    def _flush(
        self, lines: list[bytes], waiting: dict[tuple[int, ...], int]
    ) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        for possible, index in sorted(waiting.items(), key=lambda item: item[1]):
            text = clean(lines[index])
            marks = self._confirm(text, possible)
            if marks:
                yield index, text, marks
        waiting.clear()

    def _marked(self, lines: list[bytes]) -> Iterator[tuple[int, tuple[int, ...]]]:
        known, dropped = self._shapes, DROPPED
        found = [known.get(line.translate(None, dropped), _UNKNOWN) for line in lines]
        for index in [index for index, marks in enumerate(found) if marks]:
            marks = found[index]
            if marks is _UNKNOWN:
                marks = self._judged(lines[index].translate(None, dropped))
            if marks:
                yield index, marks

    def _judged(self, shape: bytes) -> tuple[int, ...]:
        marks = self._shapes.get(shape)
        if marks is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            marks = self._judge(shape[:LONGEST_LINE_BYTES])
            if len(shape) <= LONGEST_LINE_BYTES // 16:
                self._shapes[shape] = marks
        return marks


class _Reader:
    """Turns lines of one source into hits: number, writer, time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._clock = Clock()
        self._file = file_tag(source.name)
        self._lines: list[bytes] = []
        self._before = 0
        self._read = 0
        self._time: float | None = None
        self._numbered: bool | None = None

    def start(self, lines: list[bytes], before: int) -> None:
        """The next lines, of which `before` lines of the log come first."""
        if self._numbered is None:
            self._numbered = is_numbered([clean(line) for line in lines[:_FIRST_LINES] if line.strip()])
        self._lines, self._before, self._read = lines, before, 0

    def hit(self, index: int, text: str, marks: tuple[int, ...]) -> Hit:
        """The hit at `index` of the current lines."""
        said = read_tag(text, bool(self._numbered))
        tag = Tag(
            said.rank if said.rank is not None else self._file.rank,
            said.local_rank if said.local_rank is not None else self._file.local_rank,
            said.node or self._file.node,
            said.rest,
        )
        return Hit(self._source, self._before + index + 1, text, tag, self._when(index, text), marks)

    def _when(self, index: int, text: str) -> float | None:
        """Time of the line itself, else of the nearest line before it."""
        own = self._clock.read(text)
        if own is None:
            for back in range(index - 1, max(self._read, index - LOOK_BACK_LINES) - 1, -1):
                own = self._clock.read(clean(self._lines[back][:400]))
                if own is not None:
                    break
        self._read = index + 1
        if own is not None:
            self._time = own
        return self._time
