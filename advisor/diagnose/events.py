"""Events: the lines of a job's logs that match a pattern, in one order, in bounded memory."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from advisor.diagnose.patterns import SAID_ONCE, Knowledge, Pattern
from advisor.logs.blocks import Size
from advisor.logs.merge import in_order
from advisor.logs.scan import Hit, Scanner
from advisor.logs.sources import Source

MOST_OF_A_WRITER = 40
MOST_OF_A_PATTERN = 4000
LATEST_KEPT = 400
_EARLIER_JOB = re.compile(r"^\W*(?:previous|earlier|last) (?:attempt|run|job)\b", re.IGNORECASE)
_PROGRESS = ("iteration",)


@dataclass(frozen=True, slots=True)
class Event:
    """A line that matches `pattern`: where, who, when, its named parts; `at` is its place in the order of all."""

    pattern: Pattern
    file: int
    source: str
    number: int
    text: str
    rest: str
    rank: int | None
    local_rank: int | None
    node: str | None
    time_s: float | None
    fields: Mapping[str, str]
    at: int = -1

    @property
    def writer(self) -> tuple[int, int | None, int | None, str | None]:
        """Who wrote it, as far as the log tells."""
        return (self.file, self.rank, self.local_rank, self.node)


@dataclass(slots=True)
class Evidence:
    """All events of a job in order, how often each pattern matched, and what was read."""

    events: Sequence[Event] = ()
    counts: Counter[str] = field(default_factory=Counter)
    sizes: dict[str, Size] = field(default_factory=dict)

    def of(self, *names: str) -> list[Event]:
        """Events of patterns by id, in order."""
        return [event for event in self.events if event.pattern.id in names]

    def with_role(self, *roles: str) -> list[Event]:
        """Events by role, in order."""
        return [event for event in self.events if event.pattern.role in roles]


class _Store:
    """Keeps the first events of every writer and pattern, and the latest where only those matter."""

    def __init__(self) -> None:
        self.first: list[Event] = []
        self.latest: dict[tuple[str, int], deque[Event]] = {}
        self.by_writer: Counter[tuple[str, object]] = Counter()
        self.counts: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        name = event.pattern.id
        self.counts[name] += 1
        if name in _PROGRESS:
            self.latest.setdefault((name, event.file), deque(maxlen=LATEST_KEPT)).append(event)
            return
        key = (name, event.writer)
        self.by_writer[key] += 1
        if self.by_writer[key] <= MOST_OF_A_WRITER and self.counts[name] <= MOST_OF_A_PATTERN:
            self.first.append(event)
        elif len(self.by_writer) > MOST_OF_A_PATTERN:
            self.by_writer.clear()

    def all(self) -> Iterator[Event]:
        yield from self.first
        for latest in self.latest.values():
            yield from latest


def collect(sources: Sequence[Source], known: Knowledge) -> Evidence:
    """Read all `sources` once. Raises OSError where a log cannot be opened."""
    store, sizes = _Store(), {}
    scanner = Scanner(known.gate, known.confirm, known.named(*_PROGRESS))
    for file, source in enumerate(sources):
        size = sizes[source.name] = Size()
        for hit in scanner.hits(source, size):
            for event in events_of(hit, file, known.patterns):
                store.add(event)
    ordered = [replace(event, at=at) for at, event in enumerate(in_order(store.all()))]
    return Evidence(ordered, store.counts, sizes)


def events_of(hit: Hit, file: int, patterns: Sequence[Pattern]) -> Iterable[Event]:
    """Events of one line: of causes, symptoms and teardown the first pattern that matches, of the rest all."""
    if _EARLIER_JOB.match(hit.tag.rest):
        return
    said = False
    for mark in hit.marks:
        pattern = patterns[mark]
        if said and pattern.role in SAID_ONCE:
            continue
        fields = pattern.match(hit.text, hit.tag.rest)
        if fields is None:
            continue
        said = said or pattern.role in SAID_ONCE
        rank, node = hit.tag.rank, hit.tag.node
        if pattern.role in SAID_ONCE:
            rank = int(fields["rank"]) if rank is None and "rank" in fields else rank
            node = node or fields.get("node") or fields.get("node2")
        yield Event(
            pattern, file, hit.source.name, hit.number, hit.text, hit.tag.rest, rank, hit.tag.local_rank, node,
            hit.time_s, fields,
        )  # fmt: skip
