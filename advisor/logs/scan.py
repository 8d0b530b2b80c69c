"""Streams a log and hands on the few lines that matter, in bounded memory.

A log is millions of lines, and few matter. A gate looks through whole blocks of bytes for the texts of interest; only
lines that hold one are cut out. These are of few shapes (they differ in digits and blanks), and what a shape can match
is decided once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from advisor.logs.blocks import LOOK_BACK_LINES, Block, Feed, Size
from advisor.logs.gate import Gate, shape_of
from advisor.logs.sources import Source
from advisor.logs.tags import Tag, file_tag, is_numbered, read_tag
from advisor.logs.text import LONGEST_LINE_BYTES, clean, last_state
from advisor.logs.times import Clock

MOST_SHAPES = 1 << 14
MOST_OF_A_SHAPE = 5000
_FIRST_LINES = 200
_FEWEST_ROWS = 8

Marks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that matters: where it is, who wrote it, when (seconds, None = unknown), and what it may match."""

    source: Source
    number: int
    text: str
    tag: Tag
    time_s: float | None
    marks: Marks


class Rows(Protocol):
    """Reads lines that are rows of one table, many at once."""

    def fit(self, shape: bytes, marks: Marks) -> bool:
        """Whether lines of this shape, which hold no more than `marks`, may be read so."""

    def beside(self, marks: Marks) -> bool:
        """Whether lines that may hold `marks` may be handed on before rows that stand above them."""

    def take(self, source: Source, block: Block, lines: Sequence[int]) -> bool:
        """Read lines of a block, all or none of them; False = none, they are then handed on one by one."""


class Scanner:
    """Reads logs with one judgement of shapes.

    `gate` knows the texts of interest and their marks, `confirm` looks at a line that holds some of them and says which
    marks hold. Marks in `latest` may be on every line: of those only the first after another hit and the last before
    one are handed on. So it goes with a shape that has been seen `most` times. Lines have times where `timed`.
    Lines whose shape fits `rows` go there, in order, unless they are followed; only those refused are handed on.
    """

    def __init__(
        self,
        gate: Gate,
        confirm: Callable[[str, Marks], Marks],
        latest: frozenset[int] = frozenset(),
        most: float = MOST_OF_A_SHAPE,
        *,
        timed: bool = True,
        rows: Rows | None = None,
    ) -> None:
        self._gate, self._confirm, self._latest, self._most, self._timed = gate, confirm, latest, most, timed
        self._rows = rows
        self._shapes: dict[bytes, tuple[Marks, bool]] = {}
        self._following = 0

    def follow(self, lines: int) -> None:
        """Hand on the next lines whatever they hold; those of no interest have no marks. 0 = no more."""
        self._following = lines

    def hits(self, source: Source, size: Size) -> Iterator[Hit]:
        """Lines of interest in order; times of earlier lines are carried on to lines without one."""
        self._following = 0
        repeats = _Repeats()
        with source.open() as stream:
            feed = Feed(stream, size)
            reader = _Reader(source, feed.head, self._timed)
            for block in feed.blocks():
                for line in self._of_block(source, block, repeats):
                    yield reader.hit(line)
                repeats.keep(block)
            for line in filter(self._confirmed, repeats.flush(None)):
                yield reader.hit(line)

    def _of_block(self, source: Source, block: Block, repeats: _Repeats) -> Iterator[_Line]:
        """Lines of interest without rows and the bulk of what repeats, and those that are followed."""
        fresh, waiting, known, done, rows = repeats.fresh, repeats.waiting, self._shapes, 0, list[int]()
        for index, shape in self._gate.candidates(block.data):
            if self._following > 0:
                yield from self._followed(block, done, index)
            done = index + 1
            possible, is_row = known.get(shape) or self._judged(shape)
            if is_row and self._following <= 0:
                rows.append(index)
                continue
            if rows and self._rows is not None and (self._following > 0 or not self._rows.beside(possible)):
                yield from self._refused(source, block, rows)
                rows.clear()
            if possible in fresh:
                waiting[possible] = index
            elif possible or self._following > 0:
                yield from self._one(_Line(block, index, possible, self._following > 0), repeats)
        yield from self._refused(source, block, rows)
        yield from self._followed(block, done, len(block))

    def _one(self, line: _Line, repeats: _Repeats) -> Iterator[_Line]:
        """A line that may matter, after what was kept before it."""
        self._following -= line.followed
        if not self._confirmed(line):
            return
        if line.possible and repeats.bulk(line.possible, self._latest, self._most):
            repeats.fresh.add(line.possible)
        else:
            yield from filter(self._confirmed, repeats.flush(line.block))
        yield line

    def _refused(self, source: Source, block: Block, rows: list[int]) -> Iterator[_Line]:
        """Hand lines to `rows`; what these refuse is halved until the lines that do not fit are alone."""
        if not rows or (self._rows is not None and self._following <= 0 and self._rows.take(source, block, rows)):
            return
        if len(rows) > _FEWEST_ROWS:
            half = len(rows) // 2
            yield from self._refused(source, block, rows[:half])
            yield from self._refused(source, block, rows[half:])
            return
        for index in rows:
            line = _Line(block, index, self._judged(shape_of(block.line(index)))[0], self._following > 0)
            self._following -= line.followed
            if self._confirmed(line):
                yield line

    def _followed(self, block: Block, start: int, stop: int) -> Iterator[_Line]:
        """Lines from `start` on that are followed though they hold nothing of interest."""
        while self._following > 0 and start < stop:
            self._following -= 1
            line = _Line(block, start, (), True)
            if self._confirmed(line):
                yield line
            start += 1

    def _confirmed(self, line: _Line) -> bool:
        """Read the line; whether it is of interest, or followed."""
        line.text = clean(line.block.line(line.index))
        line.marks = self._confirm(line.text, line.possible) if line.possible else ()
        return bool(line.marks) or line.followed

    def _judged(self, shape: bytes) -> tuple[Marks, bool]:
        """What a shape may hold, and whether its lines are rows."""
        found = self._shapes.get(shape)
        if found is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            marks = self._gate.marks(last_state(shape))
            found = (marks, bool(marks) and self._rows is not None and self._rows.fit(shape, marks))
            if len(shape) <= LONGEST_LINE_BYTES // 16:
                self._shapes[shape] = found
        return found


@dataclass(slots=True)
class _Line:
    """A line of a block, the marks it may carry, whether it is followed; its text and marks once it is confirmed."""

    block: Block
    index: int
    possible: Marks
    followed: bool
    text: str = ""
    marks: Marks = ()

    @property
    def place(self) -> int:
        return self.block.place + self.index


class _Repeats:
    """What repeats: the first of a row is handed on, of the rest only the last is kept.

    `fresh` are marks of which nothing but the last line before another hit matters; `waiting` are their last lines in
    the block at hand, `kept` those of earlier blocks, without the rest of these.
    """

    def __init__(self) -> None:
        self.fresh: set[Marks] = set()
        self.waiting: dict[Marks, int] = {}
        self.kept: dict[Marks, _Line] = {}
        self._seen: Counter[Marks] = Counter()

    def bulk(self, marks: Marks, latest: frozenset[int], most: float) -> bool:
        """Count a line; whether the next ones like it are only bulk."""
        self._seen[marks] += 1
        return latest.issuperset(marks) or self._seen[marks] >= most

    def keep(self, block: Block) -> None:
        """Let go of a block."""
        for marks, index in self.waiting.items():
            self.kept[marks] = _Line(block.alone(index), 0, marks, False)
        self.waiting.clear()

    def flush(self, block: Block | None) -> list[_Line]:
        """The lines that were kept, in order; what comes next begins a new row."""
        if block is not None:
            self.keep(block)
        lines = sorted(self.kept.values(), key=lambda line: line.place)
        self.kept.clear()
        self.fresh.clear()
        return lines


class _Reader:
    """Turns lines of one source into hits: number, writer, time."""

    def __init__(self, source: Source, head: bytes, timed: bool) -> None:
        self._source, self._timed = source, timed
        self._clock = Clock()
        self._file = file_tag(source.name)
        self._read = 0
        self._time: float | None = None
        lines = head.split(b"\n")[:_FIRST_LINES]
        self._numbered = is_numbered([clean(line) for line in lines if line.strip()])

    def hit(self, line: _Line) -> Hit:
        """The hit at a line."""
        said = read_tag(line.text, self._numbered)
        tag = Tag(
            said.rank if said.rank is not None else self._file.rank,
            said.local_rank if said.local_rank is not None else self._file.local_rank,
            said.node or self._file.node,
            said.rest,
        )
        number = line.block.number_of(line.index)
        return Hit(self._source, number, line.text, tag, self._when(line) if self._timed else None, line.marks)

    def _when(self, line: _Line) -> float | None:
        """Time of the line itself, else of the nearest line before it."""
        own = self._clock.read(line.text)
        if own is None:
            for head in line.block.back(line.index, min(LOOK_BACK_LINES, line.place - self._read)):
                own = self._clock.read(clean(head))
                if own is not None:
                    break
        self._read = line.place + 1
        if own is not None:
            self._time = own
        return self._time
