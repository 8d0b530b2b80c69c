"""Sets of time as sorted, disjoint intervals: union, intersection, difference and length, all on numpy columns.

Times are int64 nanoseconds, so that sums are exact; intervals are half open [start, end). Every function takes and
gives `Intervals` that are sorted, disjoint and free of empty members; `union` is the only door from raw columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
NS = 1e9


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of time: `start` and `end` of its members, int64 ns, shape (n,), start[i] < end[i] < start[i+1]."""

    start: Times
    end: Times

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> int:
        """Nanoseconds that the set covers."""
        return int((self.end - self.start).sum())


def _times(values: object) -> Times:
    return np.asarray(values, dtype=np.int64)


EMPTY = Intervals(_times([]), _times([]))


def union(start: Times, end: Times) -> Intervals:
    """The time that at least one of the intervals covers; members of no or negative length cover nothing.

    `start` and `end` have shape (n,), in any order. Members that touch become one.
    """
    start, end = _times(start), _times(end)
    lasting = end > start
    if not lasting.all():
        start, end = start[lasting], end[lasting]
    if not len(start):
        return EMPTY
    start, end = _sorted(start), _sorted(end)
    # Before the i-th start lie i starts; if as many ends do, nothing is open there and a member of the union begins.
    first = np.flatnonzero(np.concatenate(([True], end[:-1] < start[1:])))
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return Intervals(start[first], end[last])


def _sorted(values: Times) -> Times:
    """Sorted values; most traces are in order already, and looking is much cheaper than sorting."""
    return values if bool((values[1:] >= values[:-1]).all()) else np.sort(values)


def join(*sets: Intervals) -> Intervals:
    """The union of several sets."""
    return union(np.concatenate([one.start for one in sets]), np.concatenate([one.end for one in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The time that both sets cover."""
    if not len(a) or not len(b):
        return EMPTY
    # At most two members are open at once; a stable sort merges two sorted runs in linear time.
    start = np.sort(np.concatenate((a.start, b.start)), kind="stable")[1:]
    end = np.sort(np.concatenate((a.end, b.end)), kind="stable")[:-1]
    both = start < end
    return Intervals(start[both], end[both])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The time that `a` covers and `b` does not."""
    if not len(a) or not len(b):
        return a
    return intersect(a, gaps(b, int(min(a.start[0], b.start[0])), int(max(a.end[-1], b.end[-1]))))


def gaps(a: Intervals, low: int, high: int) -> Intervals:
    """The time of [low, high) that the set does not cover."""
    inside = intersect(a, span(low, high))
    start = np.concatenate((_times([low]), inside.end))
    end = np.concatenate((inside.start, _times([high])))
    lasting = end > start
    return Intervals(start[lasting], end[lasting])


def span(low: int, high: int) -> Intervals:
    """The one interval [low, high); empty when high <= low."""
    return Intervals(_times([low]), _times([high])) if high > low else EMPTY


def covered(a: Intervals, low: Times, high: Times) -> Times:
    """Nanoseconds that the set covers of each window [low[i], high[i]), shape of `low`; windows may overlap."""
    return _covered_until(a, _times(high)) - _covered_until(a, _times(low))


def _covered_until(a: Intervals, points: Times) -> Times:
    if not len(a):
        return np.zeros_like(points)
    before = np.concatenate((_times([0]), np.cumsum(a.end - a.start)))
    index = np.searchsorted(a.start, points, side="right")
    last = np.maximum(index - 1, 0)
    unfinished = np.maximum(a.end[last] - np.maximum(points, a.start[last]), 0) * (index > 0)
    return _times(before[index] - unfinished)
