"""One order for the lines of several logs: by time where there is one, by place in the log otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Placed(Protocol):
    """Something at a place of a log."""

    @property
    def file(self) -> int:
        """Index of the log."""

    @property
    def number(self) -> int:
        """Line of the log, from 1."""

    @property
    def time_s(self) -> float | None:
        """Seconds on the common axis."""


P = TypeVar("P", bound=Placed)


def in_order(items: Iterable[P]) -> Sequence[P]:
    """`items` by time; within one log the order of lines holds, and lines before the first time come first.

    Clocks that run back within a log (buffered lines) do not move a line before its neighbours.
    """
    latest: dict[int, float] = {}
    keyed: list[tuple[float, int, int, P]] = []
    for item in sorted(items, key=lambda one: (one.file, one.number)):
        known = latest.get(item.file, float("-inf"))
        when = known if item.time_s is None else max(known, item.time_s)
        latest[item.file] = when
        keyed.append((when, item.file, item.number, item))
    keyed.sort(key=lambda row: row[:3])
    return [row[3] for row in keyed]
