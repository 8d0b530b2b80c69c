"""Exhaustive search: every row with every knob choice is checked, sized, timed and ranked.

Rows go through in pieces: legality masks, then memory, and only rows with an entry within the budget are timed. Costs
are computed once per value of what they depend on and added up by broadcasting, so the table is never materialised as
more than one piece.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from advisor.cost.memory import MemoryColumns, memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import findings, legality
from advisor.search import rank
from advisor.search.candidates import make_candidates
from advisor.search.merge import regroup
from advisor.search.parts import Part, chunks, make_parts
from advisor.search.request import Request
from advisor.spec.layout import Array, Columns, Knobs, Layout
from advisor.spec.plan import Candidate

PIECE = 1 << 19
WORKERS = 2
MOST_PARETO = 8
SEEDS = 8
MOST_FAMILIES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a search saw: counts, the best entry of every feasible row, and the Pareto front over all entries.

    `nearest_miss` holds, for every row that is legal but never fits, the entry that needs least memory.
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
        """Layouts with knobs as candidates ranked in the order given, with what the rules remark about each."""
        job = self.request
        remarks = [findings(job.model, job.cluster, job.workload, layout, knobs) for layout, knobs in chosen]
        return make_candidates(job, chosen, remarks)

    def winner(self) -> Candidate | None:
        """The best candidate, or None when nothing fits."""
        first = self.best.take(np.arange(min(1, len(self.best))))
        return next(iter(self.candidates(tuple(self.choices(first).values()))), None)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer of a search in values: the best distinct layouts, the Pareto front and the best of each family."""

    searched: int
    feasible: int
    rejected: MappingProxyType[str, int]
    candidates: tuple[Candidate, ...]
    pareto: tuple[Candidate, ...]
    families: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """Entries of some rows of one part, over knob axes and rows: which of them live, their seconds and bytes."""

    part: int
    rows: Array
    alive: Array
    step_s: Array
    device_bytes: Array


class _Sweep:
    """One pass over a table: piece by piece, with the counts and the entries worth keeping."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.job = (request.model, request.cluster, request.workload)
        self.profile = load_profile(request.cluster.gpu)
        self.rejected: Counter[str] = Counter()
        self.feasible = 0
        self.best: list[rank.Entries] = []
        self.front: list[rank.Entries] = []
        self.misses: list[rank.Entries] = []

    def piece(self, number: int, part: Part, piece: slice) -> None:
        """Rows `piece` of part `number`: legality, memory, then the time of rows with an entry within the budget."""
        columns = part.table(piece)
        legal = self._legal(columns, part.mask(piece))
        axes = tuple(range(len(part.axes)))
        rows = np.flatnonzero(legal.any(axis=axes))
        if not len(rows):
            return
        columns, legal = columns.take(rows), legal[..., rows]
        rows = rows + piece.start
        sizes = memory(*self.job, columns)
        device = np.broadcast_to(sizes.device_bytes, legal.shape)
        alive = legal & (device <= self.request.budget_bytes)
        self._count_over_budget(sizes, legal & ~alive)
        fits = alive.any(axis=axes)
        self._keep_misses(number, rows[~fits], legal[..., ~fits], device[..., ~fits])
        kept = np.flatnonzero(fits)
        if not len(kept):
            return
        alive, device = alive[..., kept], device[..., kept]
        self.feasible += int(alive.sum())
        self._keep_best(_Timed(number, rows[kept], alive, self._times(columns.take(kept), alive), device))

    def _legal(self, columns: Columns, left: Array) -> Array:
        """The entries of `left` that break no rule; the others are counted under the first one they break."""
        for rule, mask in legality(*self.job, columns).masks.items():
            count = int(np.count_nonzero(left & mask))
            if count:
                self.rejected[rule] += count
                left &= ~mask
        return left

    def _times(self, columns: Columns, alive: Array) -> Array:
        """Seconds per step, of the shape of `alive`; zero outside training."""
        if self.request.workload.mode != "train":
            return np.zeros(alive.shape)
        return np.broadcast_to(step(*self.job, columns, self.profile).step_s, alive.shape)

    def _count_over_budget(self, sizes: MemoryColumns, over: Array) -> None:
        """Count every entry over the budget under the term that broke it."""
        for term, broken in sizes.breaking(self.request.budget_bytes):
            if not over.any():
                return
            count = int((over & broken).sum())
            if count:
                self.rejected[f"memory-{term.replace('_', '-')}"] += count
                over = over & ~broken
        if over.any():
            self.rejected["memory-outside-allocator"] += int(over.sum())

    def _keep_best(self, timed: _Timed) -> None:
        """The best entry of every row, and the piece's Pareto front over all entries."""
        living, times, sizes = _flat(timed.alive), _flat(timed.step_s), _flat(timed.device_bytes)
        at = np.arange(len(timed.rows))
        knob = rank.best_of_rows(living, times, sizes, self.request.objective)
        part = np.full(len(at), timed.part)
        self.best.append(rank.Entries(part, timed.rows, knob, times[knob, at], sizes[knob, at]))
        knobs, columns = np.nonzero(self._not_beaten(living, times, sizes))
        front = rank.pareto(times[knobs, columns], sizes[knobs, columns], least=1.0)
        knobs, columns = knobs[front], columns[front]
        part = np.full(len(front), timed.part)
        self.front.append(rank.Entries(part, timed.rows[columns], knobs, times[knobs, columns], sizes[knobs, columns]))

    def _not_beaten(self, living: Array, step_s: Array, device_bytes: Array) -> Array:
        """The living entries that a few good ones leave over for the Pareto front: sorting all of them takes long."""
        known = rank.joined([*self.front, self.best[-1]])
        good = rank.pareto(known.step_s, known.device_bytes, least=1.0)
        for index in good[:: max(1, len(good) // SEEDS)]:
            beaten = step_s > known.step_s[index]
            beaten &= device_bytes >= known.device_bytes[index]
            living = living & ~beaten
        return living

    def _keep_misses(self, number: int, rows: Array, legal: Array, device: Array) -> None:
        """Per row that is legal but never fits, the entry that needs least memory."""
        if not len(rows):
            return
        sizes = np.where(_flat(legal), _flat(device), np.inf)
        knob, at = sizes.argmin(axis=0), np.arange(len(rows))
        part = np.full(len(rows), number)
        self.misses.append(rank.Entries(part, rows, knob, np.zeros(len(rows)), sizes[knob, at]))


def _flat(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def search(request: Request) -> Found:
    """Search the whole space of a request."""
    parts, before, rejected = make_parts(request)
    return search_parts(request, regroup(parts), before, rejected)


def search_parts(
    request: Request, parts: tuple[Part, ...], before: int = 0, rejected: Mapping[str, int] | None = None
) -> Found:
    """Search given parts; `before` and `rejected` are what was counted before them."""
    sweeps = _swept(request, parts)
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
        nearest_miss=rank.joined([one for sweep in sweeps for one in sweep.misses]),
    )


def _swept(request: Request, parts: tuple[Part, ...]) -> list[_Sweep]:
    """Sweeps that share the pieces of all parts, each on a thread: numpy works on large arrays without the lock.

    Who takes which piece is fixed and the sweeps are joined in order, so that an answer does not depend on timing.
    """
    pieces = [(number, part, piece) for number, part in enumerate(parts) for piece in chunks(part, PIECE)]
    sweeps = [_Sweep(request) for _ in range(min(WORKERS, max(1, len(pieces))))]

    def run(worker: int) -> None:
        for number, part, piece in pieces[worker :: len(sweeps)]:
            sweeps[worker].piece(number, part, piece)

    if len(sweeps) == 1:
        run(0)
    else:
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
