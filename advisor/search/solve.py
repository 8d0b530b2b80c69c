"""Exhaustive search: every row with every knob choice is checked, sized, timed and ranked.

Rows go through a sweep in pieces, so that the table is never materialised as more than one piece.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from advisor.rules import findings_of_all, rules
from advisor.search import rank
from advisor.search.candidates import make_candidates
from advisor.search.merge import regroup
from advisor.search.parts import Part, chunks, make_parts
from advisor.search.request import Request
from advisor.search.sweep import MOST_MISSES, Sweep
from advisor.spec.layout import Array, Knobs, Layout
from advisor.spec.plan import Candidate

PIECE = 1 << 20
MANY_PIECES, WORKERS = 12, 2
MOST_PARETO = 8
MOST_FAMILIES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a search saw: counts, the best entry of every feasible row, and the Pareto front over all entries.

    `nearest_miss` holds, for rows that are legal but never fit, the entry that needs least memory: the
    `sweep.MOST_MISSES` rows that come nearest, nearest first.
    """

    request: Request
    parts: tuple[Part, ...]
    searched: int
    feasible: int
    rejected: MappingProxyType[str, int]
    best: rank.Entries
    front: rank.Entries
    nearest_miss: rank.Entries

    def choices(self, entries: rank.Entries) -> dict[tuple[int, int, int], tuple[Layout, Knobs]]:
        """The layouts and knobs of entries, in their order, by (part, row, knob)."""
        keys = zip(entries.part.tolist(), entries.row.tolist(), entries.knob.tolist(), strict=True)
        return {key: (self.parts[key[0]].layout(key[1]), self.parts[key[0]].knobs(key[2])) for key in keys}

    def candidates(self, chosen: Sequence[tuple[Layout, Knobs]]) -> tuple[Candidate, ...]:
        """Layouts with knobs as candidates ranked in the order given, with what the rules remark about each.

        Advice to turn a knob that the search was free to turn is left out: it has been weighed.
        """
        job = self.request
        pinned = {*job.fixed, *(["rc_mlp"] if "recompute" in job.fixed else ())}
        weighed = {one.id for one in rules() if one.weighed and not pinned & set(one.fields)}
        remarks = findings_of_all(job.model, job.cluster, job.workload, chosen)
        return make_candidates(job, chosen, [tuple(r for r in one if r.rule not in weighed) for one in remarks])

    def leading(self, count: int) -> tuple[Candidate, ...]:
        """The best `count` candidates, fewer where fewer fit."""
        first = self.best.take(np.arange(min(count, len(self.best))))
        return tuple(self.candidates(tuple(self.choices(first).values())))

    def winner(self) -> Candidate | None:
        """The best candidate, or None when nothing fits."""
        return next(iter(self.leading(1)), None)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer of a search in values: the best distinct layouts, the Pareto front and the best of each family."""

    searched: int
    feasible: int
    rejected: MappingProxyType[str, int]
    candidates: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    families: tuple[Candidate, ...]


def search(request: Request) -> Found:
    """Search the whole space of a request."""
    parts, before, rejected = make_parts(request)
    return search_parts(request, regroup(parts), before, rejected)


def search_parts(
    request: Request,
    parts: tuple[Part, ...],
    before: int = 0,
    rejected: Mapping[str, int] | None = None,
    *,
    only_best: bool = False,
) -> Found:
    """Search given parts; `before` and `rejected` are what was counted before them.

    With `only_best` neither the Pareto front nor the nearest misses are looked for.
    """
    sweeps = _swept(request, parts, only_best)
    best = rank.joined([one for sweep in sweeps for one in sweep.best])
    best = best.take(rank.order(best, layout_of(parts, best), request.objective))
    front = rank.joined([one for sweep in sweeps for one in sweep.front])
    front = front.take(rank.pareto(front.step_s, front.device_bytes))
    counts = sum((sweep.rejected for sweep in sweeps), Counter(rejected or {}))
    return Found(
        request=request,
        parts=parts,
        searched=before + sum(part.entries for part in parts),
        feasible=sum(sweep.feasible for sweep in sweeps),
        rejected=MappingProxyType(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))),
        best=best,
        front=front,
        nearest_miss=rank.smallest(rank.joined([sweep.misses for sweep in sweeps]), MOST_MISSES),
    )


def _swept(request: Request, parts: tuple[Part, ...], only_best: bool) -> list[Sweep]:
    """Sweeps over all pieces: one, or `WORKERS` on a thread each where there are many; numpy works without the lock.

    Who takes which piece is fixed and the sweeps are joined in order, so that an answer does not depend on timing.
    """
    pieces = [(number, part, piece) for number, part in enumerate(parts) for piece in chunks(part, PIECE)]
    sweeps = [Sweep(request, only_best=only_best) for _ in range(WORKERS if len(pieces) >= MANY_PIECES else 1)]

    def run(worker: int) -> None:
        for number, part, piece in pieces[worker :: len(sweeps)]:
            sweeps[worker].piece(number, part, piece)

    if len(sweeps) == 1:
        run(0)
        return sweeps
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(sweeps)) as pool:
        list(pool.map(run, range(len(sweeps))))
    return sweeps


def layout_of(parts: tuple[Part, ...], entries: rank.Entries) -> dict[str, Array]:
    """The layout columns of entries that may come from several parts."""
    found: dict[str, Array] = {}
    for name in rank.SIMPLER:
        column = np.empty(len(entries), dtype=np.int64)
        for number, part in enumerate(parts):
            own = entries.part == number
            column[own] = part.columns[name][entries.row[own]]
        found[name] = column
    return found


def ranking(found: Found) -> Ranking:
    """The top layouts, the Pareto front and the families of a search, as candidates; each ranked in its own list."""
    best, front = found.best, found.front
    everywhere = np.arange(len(best))
    lists = [
        best.take(everywhere[: found.request.top]),
        front.take(np.arange(min(len(front), MOST_PARETO))),
        best.take(rank.families(everywhere, layout_of(found.parts, best))[:MOST_FAMILIES]),
    ]
    chosen = {key: one for entries in lists for key, one in found.choices(entries).items()}
    made = dict(zip(chosen, found.candidates(tuple(chosen.values())), strict=True))
    top, pareto, families = (
        tuple(dataclasses.replace(made[key], rank=place) for place, key in enumerate(found.choices(entries), 1))
        for entries in lists
    )
    return Ranking(found.searched, found.feasible, found.rejected, top, pareto, families)
