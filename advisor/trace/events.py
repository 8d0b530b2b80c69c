"""What a reader makes of a file: columns of device work, host work and marks, with names and groups beside them.

Times are int64 nanoseconds since `Trace.origin_ns`; every column has one entry per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from advisor.trace.intervals import Times

Indices = npt.NDArray[np.int32]


class Sort(IntEnum):
    """What a device event is by its category: the kernel's class comes from its name."""

    kernel = 0
    memcpy = 1
    memset = 2


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as the trace names it; `ranks` is empty where the trace does not list them."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """Device events, or gloo operations of a CPU run.

    `name`, `group` and `collective` index `Trace.names`, `Trace.groups` and `Trace.names`; -1 is unknown.
    `correlation` meets `Launches.correlation`; -1 is unknown. `stream` is the CUDA stream or the host thread.
    """

    start: Times
    end: Times
    name: Indices
    sort: npt.NDArray[np.int8]
    stream: Times
    correlation: Times
    group: Indices
    collective: Indices

    def __len__(self) -> int:
        return len(self.start)

    def only(self, mask: npt.NDArray[np.bool_]) -> Work:
        """The events where `mask` holds."""
        return Work(*(getattr(self, name)[mask] for name in self.__slots__))


def no_work() -> Work:
    """Columns without an event."""
    times, indices = np.array([], np.int64), np.array([], np.int32)
    return Work(times, times, indices, np.array([], np.int8), times, times, indices, indices)


@dataclass(frozen=True, slots=True)
class Launches:
    """Runtime calls that put work on the device, sorted by `correlation`."""

    correlation: Times
    start: Times


@dataclass(frozen=True, slots=True)
class Mark:
    """One profiler step as the host saw it."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One file (or one device of an nsys export) of one rank.

    `device` is empty in a trace of a CPU run; there `gloo` and `host_start`/`host_end` (aten operators) speak.
    `base_ns` is what the file leaves out of its times: a time stamp in it is column + `origin_ns` - `base_ns`.
    `findings` are sentences about what the file lacks or what was left out.
    """

    path: Path
    source: str
    rank: int | None
    world_size: int | None
    backend: str
    origin_ns: int
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    device: Work
    gloo: Work
    host_start: Times
    host_end: Times
    launches: Launches
    marks: tuple[Mark, ...]
    events: int
    findings: tuple[str, ...] = ()
    known_groups: tuple[Group, ...] = ()
    base_ns: int = 0
    device_name: str = ""

    @property
    def on_device(self) -> bool:
        """Whether the device did anything, so that its clock counts."""
        return len(self.device) > 0

    @property
    def work(self) -> Work:
        """What communicates: device events, else gloo operations."""
        return self.device if self.on_device else self.gloo


def launch_of(trace: Trace, work: Work) -> tuple[Times, npt.NDArray[np.bool_]]:
    """Start of the launching call of every event of `work` and whether it is in the trace, both of shape (n,)."""
    calls = trace.launches
    if not len(calls.correlation):
        return np.zeros(len(work), np.int64), np.zeros(len(work), np.bool_)
    index = np.minimum(np.searchsorted(calls.correlation, work.correlation), len(calls.correlation) - 1)
    known = (calls.correlation[index] == work.correlation) & (work.correlation >= 0)
    return calls.start[index], known
