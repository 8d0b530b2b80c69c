"""Writes a Chrome trace with the events of the files and, above them, tracks of what was measured.

Open it in Perfetto or chrome://tracing. The tracks of a rank are one process `advisor: rank N`: steps, compute, hidden
and exposed communication per kind, copies, idle, host bound. With several files, clocks are shifted by what `skew`
found and process ids get the rank before them, since machines share them. A file is written whole or not at all.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from advisor.errors import InputError
from advisor.files import replaced
from advisor.trace.analysis import Analysis, Part, Rank
from advisor.trace.chunks import EventStream, opened
from advisor.trace.files import read
from advisor.trace.intervals import Intervals

NS_PER_US = 1000
BATCH = 4096


@dataclass(frozen=True, slots=True)
class _Clock:
    """What turns the time of a file into that of the output, microseconds; `prefix` goes before process ids."""

    shift_us: float
    prefix: str


def write_annotated(analysis: Analysis, path: Path) -> None:
    """Write the trace to `path`, packed when it ends in .gz.

    Raises:
        InputError: the file cannot be written, or an input has gone since it was measured.
    """
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(replaced(path))
            out: BinaryIO | gzip.GzipFile = raw
            if path.suffix == ".gz":
                out = stack.enter_context(gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=5, filename="", mtime=0))
            _write(analysis, out)
    except OSError as problem:
        raise InputError(f"--out {path}: {problem.strerror}") from problem


def _write(analysis: Analysis, out: BinaryIO | gzip.GzipFile) -> None:
    parts = [part for rank in analysis.ranks for part in rank.parts]
    several = len(parts) > 1
    # One file keeps its own time stamps; several are laid on one clock that begins with the earliest of them.
    base = min(part.origin_ns for part in parts) if several else parts[0].base_ns
    out.write(b'{"schemaVersion":1,"displayTimeUnit":"ms",')
    out.write(f'"baseTimeNanoseconds":{base},"traceEvents":[\n'.encode())
    written = False
    for batch in _batches(analysis, base, several):
        if batch:
            text = b",\n".join(batch)
            out.write(b",\n" + text if written else text)
            written = True
    out.write(b"\n]}\n")


def _batches(analysis: Analysis, base: int, several: bool) -> Iterator[list[bytes]]:
    encode = msgspec.json.Encoder().encode
    for rank in analysis.ranks:
        offset = analysis.skew.ranks[rank.rank].offset_s or 0.0
        for part in rank.parts:
            shift = (part.base_ns - base - round(offset * 1e9)) / NS_PER_US
            clock = _Clock(shift if several else 0.0, f"rank {rank.rank}: " if several else "")
            for events in _originals(part, clock):
                yield [encode(event) for event in events]
            ns = part.origin_ns - base - (round(offset * 1e9) if several else 0)
            yield from ([encode(event) for event in batch] for batch in _tracks(rank, part, ns))


def _originals(part: Part, clock: _Clock) -> Iterator[list[Any]]:
    """The file's own events, on the clock of the output; device events where the file is no JSON."""
    if part.source != "kineto":
        yield from _device_events(part, clock)
        return
    decoder = msgspec.json.Decoder(list[dict[str, Any]])
    stream = EventStream[dict[str, Any]](opened(part.path), decoder.decode, lambda event: event)
    with stream.stream:
        for events in stream:
            if clock.prefix:
                for event in events:
                    _move(event, clock)
            yield events


def _move(event: dict[str, Any], clock: _Clock) -> None:
    time = event.get("ts")
    if isinstance(time, int | float):
        event["ts"] = time + clock.shift_us
    if "pid" in event:
        event["pid"] = f"{clock.prefix}{event['pid']}"
    if "id" in event and event.get("ph") in {"s", "t", "f"}:
        event["id"] = f"{clock.prefix}{event['id']}"


def _device_events(part: Part, clock: _Clock) -> Iterator[list[Any]]:
    for trace in read(part.path):
        if part.device != trace.device_name:
            continue
        work = trace.device
        columns = (work.start.tolist(), work.end.tolist(), work.name.tolist(), work.stream.tolist())
        shift = (trace.origin_ns - trace.base_ns) / NS_PER_US + clock.shift_us
        events: list[Any] = []
        for start, end, name, stream in zip(*columns, strict=True):
            events.append(_complete(trace.names[name], f"{clock.prefix}{trace.device_name}", f"stream {stream}",
                                    start / NS_PER_US + shift, (end - start) / NS_PER_US))  # fmt: skip
        yield from _batched(events)


def _complete(name: str, pid: str, tid: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "advisor", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}


def _tracks(rank: Rank, part: Part, shift_ns: int) -> Iterator[list[Any]]:
    pid = f"advisor: rank {rank.rank}"
    yield [{"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": -1000 + rank.rank}}]
    windows = zip(part.windows.names, part.windows.low.tolist(), part.windows.high.tolist(), strict=True)
    yield from _batched(
        _complete(name, pid, "steps", (low + shift_ns) / NS_PER_US, (high - low) / NS_PER_US)
        for name, low, high in windows
    )
    for name, intervals in part.tracks.items():
        yield from _batched(_track(name, pid, intervals, shift_ns))


def _track(name: str, pid: str, intervals: Intervals, shift_ns: int) -> Iterator[dict[str, Any]]:
    for start, end in zip(intervals.start.tolist(), intervals.end.tolist(), strict=True):
        yield _complete(name, pid, name, (start + shift_ns) / NS_PER_US, (end - start) / NS_PER_US)


def _batched(events: Iterable[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for event in events:
        batch.append(event)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
