"""Streams a log and hands on the few lines that matter, in bounded memory.

A log is millions of lines of few shapes: lines that differ in digits and blanks only are one shape, and what a shape
can match is decided once. Every line costs one `translate` and one look-up; patterns run on the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from advisor.logs.sources import Source
from advisor.logs.tags import Tag, file_tag, is_numbered, read_tag
from advisor.logs.text import LONGEST_LINE_BYTES, clean
from advisor.logs.times import Clock

CHUNK_BYTES = 1 << 20
MOST_SHAPES = 1 << 14
DROPPED = b"0123456789 \t\0"
LOOK_BACK_LINES = 200
_FIRST_LINES = 200


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
        try:
            block = stream.read(CHUNK_BYTES)
        except (OSError, EOFError, zlib.error) as problem:
            size.problem = str(problem)
            block = b""
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


class Scanner:
    """Reads logs with one judgement of shapes.

    `judge` maps the shape of a line to the marks it may carry (empty = a line of no interest). Marks in `latest` are of
    interest only as the first line after another hit and the last before one: they may be on every line.
    """

    def __init__(self, judge: Callable[[bytes], tuple[int, ...]], latest: frozenset[int] = frozenset()) -> None:
        self._judge = judge
        self._latest = latest
        self._shapes: dict[bytes, tuple[int, ...]] = {}

    def hits(self, source: Source, size: Size) -> Iterator[Hit]:
        """Lines of interest in order; times of earlier lines are carried on to lines without one."""
        reader = _Reader(source)
        with source.open() as stream:
            pending: tuple[int, bytes, tuple[int, ...]] | None = None
            fresh = True
            for lines in chunks(stream, size):
                reader.start(lines, size.lines)
                for index, marks in self._marked(lines):
                    found = (index, lines[index], marks)
                    repeats = self._latest.issuperset(marks)
                    if repeats and not fresh:
                        pending = found
                        continue
                    if pending is not None:
                        yield reader.hit(*pending)
                        pending = None
                    fresh = not repeats
                    yield reader.hit(*found)
                if pending is not None:
                    yield reader.hit(*pending)
                    pending = None
                size.lines += len(lines)

    def _marked(self, lines: list[bytes]) -> Iterator[tuple[int, tuple[int, ...]]]:
        shapes, judge, dropped = self._shapes, self._judge, DROPPED
        for index, line in enumerate(lines):
            shape = line.translate(None, dropped)
            marks = shapes.get(shape)
            if marks is None:
                if len(shapes) >= MOST_SHAPES:
                    shapes.clear()
                marks = judge(shape[:LONGEST_LINE_BYTES])
                if len(shape) <= LONGEST_LINE_BYTES // 16:
                    shapes[shape] = marks
            if marks:
                yield index, marks


class _Reader:
    """Turns raw lines of one source into hits: number, writer, time."""

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

    def hit(self, index: int, raw: bytes, marks: tuple[int, ...]) -> Hit:
        """The hit at `index` of the current lines."""
        text = clean(raw)
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
