"""Kineto and Chrome JSON to columns: device work, launches, aten operators, gloo operations, step marks, groups."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.trace.chunks import EventStream, opened
from advisor.trace.events import Group, Launches, Mark, Sort, Trace, Work
from advisor.trace.intervals import Times
from advisor.trace.stray import without_strays

DEVICE = {
    "kernel": Sort.kernel,
    "gpu_memcpy": Sort.memcpy,
    "memcpy": Sort.memcpy,
    "gpu_memset": Sort.memset,
    "memset": Sort.memset,
}
RUNTIME, OPERATOR, ANNOTATION, SKIPPED = 3, 4, 5, 6
HOST = {
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "runtime": RUNTIME,
    "driver": RUNTIME,
    "hip_runtime": RUNTIME,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "user_annotation": ANNOTATION,
}
ATEN = "aten::"
GLOO = "gloo:"
PARAMETERS = "record_param_comms"
STEP = re.compile(r"ProfilerStep\s*#?\s*\d+")
NS_PER_US = 1000
MOST_NS = 4 * 10**18
MOST_ID = 2**62
UNKNOWN = -1


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are looked at; anything may stand in them."""

    stream: Any = None
    correlation: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`; times are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: Any = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: Args | None = None


NO_ARGS = Args()


def event_stream(path: Path) -> EventStream[Event]:
    """The events of a file, typed."""
    decoder = msgspec.json.Decoder(list[Event])
    return EventStream(opened(path), decoder.decode, lambda event: msgspec.convert(event, Event, strict=False))


def read_kineto(path: Path) -> Trace:
    """One Kineto or Chrome JSON file, plain or gzip, as a `Trace`.

    Raises:
        InputError: the file cannot be read or holds no list `traceEvents`.
    """
    stream = event_stream(path)
    builder = _Builder()
    with stream.stream:
        for events in stream:
            builder.add(events)
    return builder.trace(path, stream)


class _Columns:
    """Columns that grow by pieces, all of one length."""

    def __init__(self, *names: str) -> None:
        self.pieces: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}

    def add(self, **columns: npt.NDArray[Any]) -> None:
        """One more piece of every column."""
        for name, piece in columns.items():
            self.pieces[name].append(piece)

    def whole(self, name: str, dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
        """A column in one piece; its pieces are let go."""
        found = np.concatenate([np.array([], dtype), *self.pieces.pop(name)], dtype=dtype)
        return found


WORK = ("start", "end", "name", "sort", "stream", "correlation", "external", "group", "collective")


class _Builder:
    """Sorts events into columns as they come."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.groups: dict[Group, int] = {}
        self.said: dict[tuple[str, str, str], int] = {}
        self.device, self.gloo = _Columns(*WORK), _Columns(*WORK)
        self.host, self.launches = _Columns("start", "end"), _Columns("correlation", "start")
        self.communications: dict[int, tuple[int, int]] = {}
        self.marks: set[Mark] = set()
        self.origin_us: int | None = None
        self.events = self.negative = self.no_time = 0

    def add(self, events: list[Event]) -> None:
        """Take the complete events ("X") that matter."""
        self.events += len(events)
        if self.origin_us is None:
            first = (event.ts for event in events if event.ph == "X" and event.ts is not None)
            self.origin_us = next((math.floor(ts) for ts in first if math.isfinite(_float(ts))), None)
        of: tuple[list[Event], ...] = ([], [], [], [], [], [], [])
        codes = self.codes
        for event in events:
            if event.ph == "X":
                code = codes.get(event.cat)
                of[self._code(event.cat) if code is None else code].append(event)
        for sort in Sort:
            self._work(self.device, of[sort], sort)
        runtime, start, _ = self._timed(of[RUNTIME])
        called = _numbers([(event.args or NO_ARGS).correlation for event in runtime], _identity)
        self.launches.add(correlation=called[called >= 0], start=start[called >= 0])
        aten = [event for event in of[OPERATOR] if event.name.startswith(ATEN)]
        _, start, end = self._timed(aten)
        self.host.add(start=start, end=end)
        self._parameters([event for event in of[OPERATOR] if event.name == PARAMETERS])
        marks, starts, ends = self._timed([event for event in of[ANNOTATION] if STEP.fullmatch(event.name)])
        for mark, low, high in zip(marks, starts.tolist(), ends.tolist(), strict=True):
            self.marks.add(Mark(mark.name, low, high))
        self._work(self.gloo, [event for event in of[ANNOTATION] if event.name.startswith(GLOO)], Sort.kernel)

    def _code(self, category: str) -> int:
        name = category.lower()
        code = self.codes[category] = DEVICE.get(name, HOST.get(name, SKIPPED))
        return code

    def _timed(self, events: list[Event]) -> tuple[list[Event], Times, Times]:
        """Events with start and end in ns since the first; those whose times make no sense are counted, not kept."""
        known = [event for event in events if event.ts is not None and event.dur is not None]
        if not known:
            self.no_time += len(events)
            return [], np.array([], np.int64), np.array([], np.int64)
        # Integers stay exact however large; a fraction of a large float is what its 53 bits left of it.
        origin = self.origin_us or 0
        since = _ns([event.ts - origin for event in known])  # type: ignore[operator]
        length = _ns([event.dur for event in known])
        negative = length < 0
        fine = (np.abs(since) < MOST_NS) & (length < MOST_NS) & ~negative
        self.negative += int(negative.sum())
        self.no_time += len(events) - int((fine | negative).sum())
        kept = known if fine.all() else [event for event, good in zip(known, fine.tolist(), strict=True) if good]
        start = since[fine].astype(np.int64)
        return kept, start, start + length[fine].astype(np.int64)

    def _work(self, to: _Columns, events: list[Event], sort: Sort) -> None:
        if not events:
            return
        kept, start, end = self._timed(events)
        args = [event.args or NO_ARGS for event in kept]
        streams = [event.tid if one.stream is None else one.stream for event, one in zip(kept, args, strict=True)]
        to.add(
            start=start, end=end, name=np.array([self._name(event.name) for event in kept], np.int32),
            sort=np.full(len(kept), sort, np.int8), stream=_numbers(streams, _identity),
            correlation=_numbers([one.correlation for one in args], _identity),
            external=_numbers([one.external for one in args], _identity),
            group=np.array([self._group(one) for one in args], np.int32),
            collective=np.array([self._collective(one) for one in args], np.int32),
        )  # fmt: skip

    def _parameters(self, events: list[Event]) -> None:
        """What c10d recorded about a communication, for kernels whose own arguments do not say."""
        for event in events:
            args = event.args or NO_ARGS
            external, group = _identity(args.external), self._group(args)
            if UNKNOWN not in {external, group}:
                self.communications[external] = group, self._collective(args)

    def _name(self, name: object) -> int:
        return self.names.setdefault(str(name), len(self.names))

    def _collective(self, args: Args) -> int:
        return UNKNOWN if args.collective is None else self._name(args.collective)

    def _group(self, args: Args) -> int:
        if not args.group and not args.description:
            return UNKNOWN
        said = str(args.group or ""), str(args.description or ""), str(args.ranks or "")
        index = self.said.get(said)
        if index is None:
            group = Group(said[0], said[1], ranks_of(args.ranks))
            index = self.said[said] = self.groups.setdefault(group, len(self.groups))
        return index

    def _columns_of(self, columns: _Columns) -> Work:
        """As `Work`; an event without a group takes that of the `record_param_comms` with its External id."""
        group, collective = columns.whole("group", np.int32), columns.whole("collective", np.int32)
        external = columns.whole("external")
        for index in np.flatnonzero(group == UNKNOWN).tolist() if self.communications else ():
            known = self.communications.get(int(external[index]))
            if known is not None:
                group[index] = known[0]
                collective[index] = known[1] if collective[index] == UNKNOWN else collective[index]
        return Work(
            start=columns.whole("start"), end=columns.whole("end"), name=columns.whole("name", np.int32),
            sort=columns.whole("sort", np.int8), stream=columns.whole("stream"),
            correlation=columns.whole("correlation"), group=group, collective=collective,
        )  # fmt: skip

    def trace(self, path: Path, stream: EventStream[Event]) -> Trace:
        """What was gathered, with the facts of the file's top object."""
        distributed = stream.outer.get("distributedInfo")
        facts = distributed if isinstance(distributed, dict) else {}
        base_ns = _identity(stream.outer.get("baseTimeNanoseconds", 0))
        correlation, start = self.launches.whole("correlation"), self.launches.whole("start")
        order = np.argsort(correlation, kind="stable")
        found = Trace(
            path=path, source="kineto", rank=_small(facts.get("rank")), world_size=_small(facts.get("world_size")),
            backend=str(facts.get("backend") or ""), base_ns=base_ns,
            origin_ns=(self.origin_us or 0) * NS_PER_US + base_ns, names=tuple(self.names), groups=tuple(self.groups),
            device=self._columns_of(self.device), gloo=self._columns_of(self.gloo),
            host_start=self.host.whole("start"), host_end=self.host.whole("end"),
            launches=Launches(correlation[order], start[order]),
            marks=tuple(sorted(self.marks, key=lambda mark: (mark.start, mark.end))), events=self.events,
            findings=tuple(self._findings(stream)), known_groups=tuple(_configured(facts.get("pg_config"))),
        )  # fmt: skip
        return without_strays(found)

    def _findings(self, stream: EventStream[Event]) -> Iterator[str]:
        if stream.truncated:
            yield f"the file ends within its list of events: {self.events} events were read"
        if stream.damaged:
            yield f"{stream.damaged} events are no JSON and were left out"
        if self.negative:
            yield f"{self.negative} events have a negative duration and were left out"
        if self.no_time:
            yield f"{self.no_time} events have no usable time or duration and were left out"


def _ns(microseconds: Sequence[int | float | None]) -> npt.NDArray[Any]:
    """Nanoseconds: int64 where all are whole and small, else rounded floats (infinite where nothing sensible stood)."""
    try:
        values = np.array(microseconds)
    except OverflowError:
        values = np.array([], object)
    if values.dtype.kind == "i" and len(values) and np.abs(values).max() < MOST_NS // NS_PER_US:
        return values * NS_PER_US
    floats = values if values.dtype.kind == "f" else np.array([_float(value) for value in microseconds])
    with np.errstate(over="ignore"):
        rounded: npt.NDArray[Any] = np.rint(floats * NS_PER_US)
    return rounded


def _float(value: int | float | None) -> float:
    try:
        return float(value) if value is not None else math.inf
    except OverflowError:
        return math.inf


def _numbers(values: list[Any], convert: Callable[[Any], int]) -> Times:
    """A column of integers; `convert` is asked where something else stands among them."""
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([convert(value) for value in values], np.int64)


def _identity(value: object) -> int:
    """A stream, thread or correlation as a number; a name gets one of its own, what is missing gets -1."""
    if isinstance(value, int) and abs(value) < MOST_ID:
        return value
    return UNKNOWN if value is None else MOST_ID + zlib.crc32(str(value).encode("utf-8", "replace"))


def _small(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def ranks_of(value: object) -> tuple[int, ...]:
    """Ranks as Kineto writes them: a list, or its text `[0, 1, 2]`, where a long one may end in dots."""
    if isinstance(value, list | tuple):
        return tuple(rank for rank in value if isinstance(rank, int))
    if not isinstance(value, str) or "..." in value:
        return ()
    return tuple(int(word) for word in re.findall(r"\d{1,9}", value))


def _configured(value: object) -> Iterator[Group]:
    """Groups of `distributedInfo.pg_config`."""
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict) and ("pg_name" in entry or "pg_desc" in entry):
            yield Group(str(entry.get("pg_name") or ""), str(entry.get("pg_desc") or ""), ranks_of(entry.get("ranks")))
