"""Ranks beside each other: clock offsets from collectives that all ranks end at once, and who lets the others wait.

Every machine has its own clock. A collective such as an all-reduce can end nowhere before the last rank has come, so
that its ends are simultaneous up to its own tail: the offset of two clocks is the median of the differences of ends.
After that, a rank that begins a collective later than the others is the one they waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.trace.collectives import Collectives, Key
from advisor.trace.intervals import NS, Times

LEAST_MATCHES = 3
SPREAD_NS = 1_000_000
SPREAD_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class RankSkew:
    """One rank: what to take from its clock, how far ends still differ, and how long it waited in collectives.

    `offset_s` and the figures that rest on it are None where the clock could not be tied to the first rank's.
    `waited_s` sums, over matched collectives, from its own begin to the last rank's; `last` counts how often it was the
    last one.
    """

    offset_s: float | None
    spread_s: float | None
    matched: int
    waited_s: float | None
    last: int


@dataclass(frozen=True, slots=True)
class Skew:
    """All ranks; `slowest` is the one that others wait for (None with one rank or clocks that cannot be tied)."""

    ranks: dict[int, RankSkew]
    slowest: int | None

    @property
    def aligned(self) -> bool:
        """Whether every rank has an offset."""
        return all(rank.offset_s is not None for rank in self.ranks.values())


def skew_of(parts: Mapping[int, Sequence[Collectives]]) -> Skew:
    """Offsets and waiting of all ranks, from their collectives (several parts of a rank are one after another)."""
    found = {rank: {key: calls for part in of for key, calls in part.items()} for rank, of in parts.items()}
    matches = list(_matches(found))
    offsets = _offsets(sorted(found), matches)
    waited: defaultdict[int, float] = defaultdict(float)
    last: defaultdict[int, int] = defaultdict(int)
    matched: defaultdict[int, int] = defaultdict(int)
    for members, starts, ends in matches:
        for rank in members:
            matched[rank] += starts.shape[1]
        if any(rank not in offsets for rank in members):
            continue
        shift = np.array([[offsets[rank][0]] for rank in members])
        begin = starts - shift
        late = begin.max(axis=0) - begin
        # Nobody waits longer than its own call lasts.
        wait = np.minimum(late, ends - starts).sum(axis=1) / NS
        # Who came last is only known where arrivals differ by more than ends do.
        told = late.max(axis=0) > max(offsets[rank][1] for rank in members)
        winner, calls = np.unique(np.argmin(late[:, told], axis=0), return_counts=True)
        for at, rank in enumerate(members):
            waited[rank] += float(wait[at])
        for at, n in zip(winner.tolist(), calls.tolist(), strict=True):
            last[members[at]] += n
    ranks = {rank: _rank(offsets.get(rank), matched[rank], waited.get(rank), last[rank]) for rank in sorted(found)}
    return Skew(ranks, _slowest(ranks))


def _rank(offset: tuple[int, int] | None, matched: int, waited: float | None, last: int) -> RankSkew:
    if offset is None:
        return RankSkew(None, None, matched, None, 0)
    return RankSkew(offset[0] / NS, offset[1] / NS, matched, waited, last)


def _slowest(ranks: Mapping[int, RankSkew]) -> int | None:
    """Who was last most often; of equals, who waited least."""
    known = [rank for rank, skew in ranks.items() if skew.waited_s is not None and skew.matched]
    if len(known) < 2 or not any(ranks[rank].last for rank in known):
        return None
    return max(known, key=lambda rank: (ranks[rank].last, -(ranks[rank].waited_s or 0.0), -rank))


Match = tuple[tuple[int, ...], Times, Times]


def _matches(found: Mapping[int, Collectives]) -> Iterator[Match]:
    """Calls of the same key on at least two ranks with equal counts: ranks, starts and ends of shape (ranks, calls)."""
    of_key: defaultdict[Key, list[int]] = defaultdict(list)
    for rank, calls in found.items():
        for key in calls:
            if not key[2] or rank in key[2]:
                of_key[key].append(rank)
    for key, ranks in of_key.items():
        counts = {len(found[rank][key][0]) for rank in ranks}
        if len(ranks) > 1 and len(counts) == 1:
            order = tuple(sorted(ranks))
            yield order, *(np.stack([found[rank][key][side] for rank in order]) for side in (0, 1))  # type: ignore[misc]


def _offsets(ranks: Sequence[int], matches: Sequence[Match]) -> dict[int, tuple[int, int]]:
    """Offset and spread of the clocks that collectives tie to the first rank's, directly or over others."""
    difference: defaultdict[int, defaultdict[int, list[Times]]] = defaultdict(lambda: defaultdict(list))
    length: list[Times] = []
    for members, starts, ends in matches:
        length.append((ends - starts).min(axis=0))
        for at, other in enumerate(members[1:], start=1):
            difference[members[0]][other].append(ends[at] - ends[0])
            difference[other][members[0]].append(ends[0] - ends[at])
    usual = int(np.median(np.concatenate(length))) if length else 0
    limit = max(SPREAD_NS, int(SPREAD_SHARE * usual))
    known = {ranks[0]: (0, 0)} if ranks else {}
    waiting = list(known)
    while waiting:
        rank = waiting.pop(0)
        for other, parts in sorted(difference[rank].items()):
            values = np.concatenate(parts)
            middle = int(np.median(values))
            spread = int(np.median(np.abs(values - middle)))
            if other not in known and len(values) >= LEAST_MATCHES and spread <= limit:
                known[other] = known[rank][0] + middle, max(known[rank][1], spread)
                waiting.append(other)
    return known
