"""Kineto and Chrome JSON to columns: device work, launches, aten operators, gloo operations, step marks, groups."""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from advisor.trace.chunks import EventStream, opened
from advisor.trace.events import Group, Launches, Mark, Sort, Trace, Work
from advisor.trace.stray import without_strays

SORTS = {
    "kernel": Sort.kernel,
    "gpu_memcpy": Sort.memcpy,
    "memcpy": Sort.memcpy,
    "gpu_memset": Sort.memset,
    "memset": Sort.memset,
}
RUNTIMES = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "driver"}
OPERATORS = {"cpu_op", "operator"}
MARKS = {"user_annotation", "cpu_op", "operator"}
GLOO = "gloo:"
PARAMETERS = "record_param_comms"
STEP = re.compile(r"ProfilerStep\s*#?\s*\d+")
NS_PER_US = 1000
MOST_NS = 10**18
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
    """One entry of `traceEvents`."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


NO_ARGS = Args()


def event_stream(path: Path) -> EventStream[Event]:
    """The events of a file, typed."""
    decoder = msgspec.json.Decoder(list[Event])
    return EventStream(opened(path), decoder.decode, lambda event: msgspec.convert(event, Event))


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


@dataclass(slots=True)
class _WorkColumns:
    """Growing columns of `Work`, with the External id beside them."""

    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    name: array[int] = field(default_factory=lambda: array("i"))
    sort: array[int] = field(default_factory=lambda: array("b"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    external: array[int] = field(default_factory=lambda: array("q"))
    group: array[int] = field(default_factory=lambda: array("i"))
    collective: array[int] = field(default_factory=lambda: array("i"))

    def work(self, communications: Mapping[int, tuple[int, int]]) -> Work:
        """As numpy; an event without a group takes that of the `record_param_comms` with its External id."""
        group, collective = np.array(self.group, np.int32), np.array(self.collective, np.int32)
        if communications:
            for index in np.flatnonzero(group == UNKNOWN).tolist():
                known = communications.get(self.external[index])
                if known is not None:
                    group[index] = known[0]
                    collective[index] = known[1] if collective[index] == UNKNOWN else collective[index]
        return Work(
            start=np.array(self.start, np.int64), end=np.array(self.end, np.int64), name=np.array(self.name, np.int32),
            sort=np.array(self.sort, np.int8), stream=np.array(self.stream, np.int64),
            correlation=np.array(self.correlation, np.int64), group=group, collective=collective,
        )  # fmt: skip


class _Builder:
    """Sorts events into columns as they come."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.groups: dict[Group, int] = {}
        self.device, self.gloo = _WorkColumns(), _WorkColumns()
        self.host_start, self.host_end = array("q"), array("q")
        self.launch_correlation, self.launch_start = array("q"), array("q")
        self.communications: dict[int, tuple[int, int]] = {}
        self.marks: dict[tuple[str, int], Mark] = {}
        self.origin_us: int | None = None
        self.events = self.negative = self.no_time = 0

    def add(self, events: list[Event]) -> None:
        """Take the complete events ("X") that matter."""
        self.events += len(events)
        for event in events:
            if event.ph != "X" or not isinstance(event.cat, str):
                continue
            category = event.cat.lower()
            sort = SORTS.get(category)
            if sort is None and category not in RUNTIMES and category not in MARKS:
                continue
            times = self._times(event)
            if times is None:
                continue
            start, end = times
            if sort is not None:
                self._work(self.device, event, sort, start, end)
            elif category in RUNTIMES:
                correlation = _identity((event.args or NO_ARGS).correlation)
                if correlation != UNKNOWN:
                    self.launch_correlation.append(correlation)
                    self.launch_start.append(start)
            else:
                self._host(event, category, start, end)

    def _times(self, event: Event) -> tuple[int, int] | None:
        """Start and end in nanoseconds since the first event; None, and counted, where they make no sense."""
        start, length = _number(event.ts), _number(event.dur)
        if start is None or length is None:
            self.no_time += 1
            return None
        if length < 0:
            self.negative += 1
            return None
        if self.origin_us is None:
            self.origin_us = math.floor(start)
        # Integers stay exact however large; a fraction of a large float is what its 53 bits left of it.
        since = round((start - self.origin_us) * NS_PER_US)
        end = round((start - self.origin_us + length) * NS_PER_US)
        if abs(since) > MOST_NS or end > MOST_NS:
            self.no_time += 1
            return None
        return since, end

    def _work(self, to: _WorkColumns, event: Event, sort: Sort, start: int, end: int) -> None:
        args = event.args or NO_ARGS
        to.start.append(start)
        to.end.append(end)
        to.name.append(self._name(event.name))
        to.sort.append(sort)
        to.stream.append(_identity(event.tid if args.stream is None else args.stream))
        to.correlation.append(_identity(args.correlation))
        to.external.append(_identity(args.external))
        to.group.append(self._group(args))
        to.collective.append(UNKNOWN if args.collective is None else self._name(args.collective))

    def _host(self, event: Event, category: str, start: int, end: int) -> None:
        name = event.name if isinstance(event.name, str) else ""
        if name.startswith("aten::"):
            self.host_start.append(start)
            self.host_end.append(end)
        elif category not in OPERATORS and name.startswith(GLOO):
            self._work(self.gloo, event, Sort.kernel, start, end)
        elif name == PARAMETERS:
            args = event.args or NO_ARGS
            external, group = _identity(args.external), self._group(args)
            if UNKNOWN not in {external, group}:
                collective = UNKNOWN if args.collective is None else self._name(args.collective)
                self.communications[external] = (group, collective)
        elif STEP.fullmatch(name):
            self.marks[name, start] = Mark(name, start, end)

    def _name(self, name: object) -> int:
        return self.names.setdefault(str(name), len(self.names))

    def _group(self, args: Args) -> int:
        if args.group is None and args.description is None:
            return UNKNOWN
        group = Group(str(args.group or ""), str(args.description or ""), ranks_of(args.ranks))
        return self.groups.setdefault(group, len(self.groups))

    def trace(self, path: Path, stream: EventStream[Event]) -> Trace:
        """What was gathered, with the facts of the file's top object."""
        distributed = stream.outer.get("distributedInfo")
        facts = distributed if isinstance(distributed, dict) else {}
        base = _number(stream.outer.get("baseTimeNanoseconds"))
        base_ns = round(base) if base is not None and abs(base) < MOST_ID else 0
        order = np.argsort(np.array(self.launch_correlation, np.int64), kind="stable")
        found = Trace(
            path=path, source="kineto", rank=_small(facts.get("rank")), world_size=_small(facts.get("world_size")),
            backend=str(facts.get("backend") or ""), base_ns=base_ns,
            origin_ns=(self.origin_us or 0) * NS_PER_US + base_ns,
            names=tuple(self.names), groups=tuple(self.groups), device=self.device.work(self.communications),
            gloo=self.gloo.work({}), host_start=np.array(self.host_start, np.int64),
            host_end=np.array(self.host_end, np.int64),
            launches=Launches(np.array(self.launch_correlation, np.int64)[order],
                              np.array(self.launch_start, np.int64)[order]),
            marks=tuple(sorted(self.marks.values(), key=lambda mark: (mark.start, mark.end))), events=self.events,
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


def _number(value: object) -> int | float | None:
    """A finite number, also from text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


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
