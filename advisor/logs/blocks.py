"""A stream of bytes as blocks of whole lines: however the stream is cut into blocks, its lines are the same."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from advisor.logs.text import LONGEST_LINE_BYTES

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 1 << 16
LOOK_BACK_LINES = 60
LOOK_BACK_BYTES = 400


@dataclass(slots=True)
class Size:
    """What has been read so far."""

    bytes: int = 0
    lines: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a log, each with a line feed at its end (`ends`, ascending).

    `number` is that of the first line in the log, from 1, and `place` how many pieces came before it: an endless line
    is cut into pieces of `LONGEST_LINE_BYTES`, and a piece in `joined` continues the line of the piece before.
    `before` holds the heads of the last lines of the block before, the nearest last.
    """

    data: bytes
    ends: NDArray[Any]
    number: int
    place: int
    joined: tuple[int, ...] = ()
    before: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    def line(self, index: int) -> bytes:
        """A line without its line feed."""
        return self.data[int(self.ends[index - 1]) + 1 if index else 0 : int(self.ends[index])]

    def number_of(self, index: int) -> int:
        """Number of a line in the log, from 1."""
        return self.number + index - bisect_right(self.joined, index)

    def back(self, index: int, count: int) -> Iterator[bytes]:
        """Heads of the `count` lines before a line, the nearest first."""
        for at in range(index - 1, max(index - count, 0) - 1, -1):
            yield self.line(at)[:LOOK_BACK_BYTES]
        rest = count - index
        if rest > 0:
            yield from self.before[: -rest - 1 : -1]

    def alone(self, index: int) -> Block:
        """The same line in a block of its own, so that this one can go."""
        data = self.line(index) + b"\n"
        before = tuple(self.back(index, LOOK_BACK_LINES))[::-1]
        return Block(data, line_feeds(data), self.number_of(index), self.place + index, (), before)


def line_feeds(data: bytes) -> NDArray[Any]:
    """Places of the line feeds."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == 10)


class Feed:
    """Reads a stream: `head` is known before the first block. A broken gz ends the stream where it breaks."""

    def __init__(self, stream: IO[bytes], size: Size) -> None:
        self._stream, self._size = stream, size
        self.head = self._read(HEAD_BYTES)

    def blocks(self) -> Iterator[Block]:
        """All lines, in blocks of about `CHUNK_BYTES`."""
        rest, joins, number, place, before = b"", False, 1, 0, tuple[bytes, ...]()
        for part in self._parts():
            whole, rest = _whole_lines(rest + part)
            whole, rest, joined, joins = _cut(whole, rest, joins)
            if not whole:
                continue
            block = Block(whole, line_feeds(whole), number, place, joined, before)
            yield block
            before = tuple(block.back(len(block), LOOK_BACK_LINES))[::-1]
            place += len(block)
            self._size.lines = block.number_of(len(block) - 1)
            number = self._size.lines + (not joins)
        if rest:
            yield Block(rest + b"\n", np.array([len(rest)]), number, place, (), before)
            self._size.lines = number

    def _parts(self) -> Iterator[bytes]:
        for at in range(0, len(self.head), CHUNK_BYTES):
            yield self.head[at : at + CHUNK_BYTES]
        while part := self._read(CHUNK_BYTES):
            yield part

    def _read(self, length: int) -> bytes:
        """As many bytes, gathered from small reads so that nothing before a broken place is lost."""
        parts: list[bytes] = []
        missing = 0 if self._size.problem else length
        read = getattr(self._stream, "read1", self._stream.read)
        try:
            while missing > 0 and (part := read(missing)):
                parts.append(part)
                missing -= len(part)
        except (OSError, EOFError, zlib.error) as problem:
            self._size.problem = str(problem)
        data = b"".join(parts)
        self._size.bytes += len(data)
        return data


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


def _cut(whole: bytes, rest: bytes, joins: bool) -> tuple[bytes, bytes, tuple[int, ...], bool]:
    """Lines without endless ones: a line feed after every `LONGEST_LINE_BYTES` of a line.

    `joins` says that the first line has begun before. Returned are the lines, the rest without the pieces cut from it,
    the indices of pieces that continue the one before, and whether the rest continues the last one.
    """
    lengths = np.diff(line_feeds(whole), prepend=-1)
    if len(rest) <= LONGEST_LINE_BYTES and (not len(lengths) or lengths.max() <= LONGEST_LINE_BYTES + 1):
        return whole, rest, (), joins and not whole
    pieces: list[bytes] = []
    joined: list[int] = []
    for line in whole.split(b"\n")[:-1]:
        for at in range(0, max(len(line), 1), LONGEST_LINE_BYTES):
            joined += [len(pieces)] if at else []
            pieces.append(line[at : at + LONGEST_LINE_BYTES])
    joins = joins and not pieces
    while len(rest) > LONGEST_LINE_BYTES:
        joined += [len(pieces)] if joins and pieces else []
        pieces.append(rest[:LONGEST_LINE_BYTES])
        rest, joins = rest[LONGEST_LINE_BYTES:], True
    return b"".join(piece + b"\n" for piece in pieces), rest, tuple(joined), joins
