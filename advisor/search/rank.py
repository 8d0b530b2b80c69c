"""Which feasible entry is better: one fixed order, the best of each row, the Pareto front and the families.

Layouts whose predicted times lie within a step of 1 % count as equally fast: repeated runs of one layout differ by more
(2 % median, fidelity of published runs), so the one with more room, and then the simpler one, comes first. Times and
sizes are compared as float32: rounding of the last bits, which differs between machines, reorders nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.spec.layout import Array
from advisor.units import GIB

PARETO_STEP = 0.97
EQUAL_TIME = 1.01
EQUAL_BYTES = 4 * GIB
SIMPLER = ("pp", "vpp", "tp", "cp", "etp", "ep", "mbs")


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Feasible entries of a search, one-dimensional and equally long.

    `part` and `row` say which row of which group of rows, `knob` the flat index into the group's knob choices;
    `step_s` is 0 outside training.
    """

    part: Array
    row: Array
    knob: Array
    step_s: Array
    device_bytes: Array

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Array) -> Entries:
        """The entries `index`, in that order."""
        return Entries(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))


def joined(parts: Sequence[Entries]) -> Entries:
    """All entries of `parts`, in order."""
    names = [field.name for field in dataclasses.fields(Entries)]
    dtypes = (np.int64, np.int64, np.int64, np.float64, np.float64)
    return Entries(
        *(
            np.concatenate([np.empty(0, dtype), *(getattr(part, name) for part in parts)])
            for name, dtype in zip(names, dtypes, strict=True)
        )
    )


def best_of_rows(alive: Array, step_s: Array, device_bytes: Array, objective: str) -> Array:
    """Per row the flat knob index of the best living entry (meaningless where a row has none).

    All three arrays have shape (choices, rows); ties go to the other figure, then to the first choice.
    """
    first, second = (step_s, device_bytes) if objective == "throughput" else (device_bytes, step_s)
    one = np.where(alive, first.astype(np.float32), np.float32(np.inf))
    tie = one == one.min(axis=0)
    return np.asarray(np.where(tie & alive, second.astype(np.float32), np.float32(np.inf)).argmin(axis=0))


def first_of_rows(entries: Entries, objective: str) -> Array:
    """Indices of the best entry of every row of one part, rows ascending; ties go as in `best_of_rows`."""
    figures = [entries.step_s.astype(np.float32), entries.device_bytes.astype(np.float32)]
    if objective == "memory":
        figures.reverse()
    sorted_by = np.lexsort((entries.knob, figures[1], figures[0], entries.row))
    _, first = np.unique(entries.row[sorted_by], return_index=True)
    return sorted_by[first]


def smallest(entries: Entries, count: int) -> Entries:
    """The `count` entries that need least memory, least first."""
    return entries.take(np.argsort(entries.device_bytes, kind="stable")[:count])


def order(entries: Entries, layout: dict[str, Array], objective: str) -> Array:
    """Indices from best to worst: objective, then the other figure (headroom or time), then the simpler layout.

    Times tie within steps of `EQUAL_TIME` above the fastest, sizes within steps of `EQUAL_BYTES`; what still ties goes
    by the exact figures. Outside training, where no entry has a time, sizes are compared exactly. `layout` holds the
    layout columns of the entries; rows that tie in everything keep their order.
    """
    exact = [entries.step_s.astype(np.float32), entries.device_bytes.astype(np.float32)]
    timed = len(entries) > 0 and exact[0].min() > 0
    steps = [_time_step(exact[0]), np.floor(exact[1] / EQUAL_BYTES)] if timed else list(exact)
    if objective == "memory":
        exact.reverse()
        steps.reverse()
    keys = [*steps, *(layout[name] for name in SIMPLER), *exact, entries.knob]
    return np.lexsort(tuple(reversed(keys)))


def _time_step(step_s: Array) -> Array:
    """How many factors of `EQUAL_TIME` each time is above the fastest, rounded down."""
    steps: Array = np.floor(np.log(step_s / step_s.min()) / np.log(EQUAL_TIME))
    return steps


def pareto(step_s: Array, device_bytes: Array, least: float = PARETO_STEP) -> Array:
    """Indices, fastest first, of entries that need at most `least` times the memory of every faster one kept."""
    by_time = np.lexsort((device_bytes.astype(np.float32), step_s.astype(np.float32)))
    lowest = np.minimum.accumulate(device_bytes[by_time])
    leads = np.r_[True, lowest[1:] < lowest[:-1]] if len(by_time) else np.empty(0, bool)
    kept: list[int] = []
    for index in by_time[leads]:
        if not kept or device_bytes[index] <= least * device_bytes[kept[-1]]:
            kept.append(int(index))
    return np.array(kept, dtype=np.int64)


def families(ranked: Array, layout: dict[str, Array]) -> Array:
    """The first of `ranked` of every combination of parallelisms in use (TP, PP, CP, EP), best first."""
    used = sum(((layout[name] > 1).astype(np.int64) << bit) for bit, name in enumerate(("tp", "pp", "cp", "ep")))
    _, first = np.unique(np.asarray(used)[ranked], return_index=True)
    return ranked[np.sort(first)]
