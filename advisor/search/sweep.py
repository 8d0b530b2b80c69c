"""One pass over a table of layouts and knobs: counts what rules and memory refuse, times the rest, keeps the best.

Costs are computed once per value of what they depend on, and a table is looked at from coarse to fine: rules, then
what weights, gradients, optimizer and activations alone need. That leaves few cells (rows with recompute, overlap and
optimizer choices); only those are laid out as rows of their own and crossed with the other knobs, for the rest of
their memory and for time.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from advisor.cost.memory import MemoryColumns, memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import legality
from advisor.search import rank
from advisor.search.cells import Cells
from advisor.search.parts import Part
from advisor.search.request import Request
from advisor.spec.layout import Array, Columns

MOST_ENTRIES = 1 << 19
MOST_MISSES = 16
SEEDS = 8


class Sweep:
    """What the pieces of a search seen so far amount to: counts, and the entries worth keeping.

    `best` has the best entry of every feasible row, `front` the entries that a Pareto front may hold, `misses` for the
    `MOST_MISSES` rows that are legal, never fit and come nearest, the entry that needs least memory; these two stay
    empty with `only_best`.
    """

    def __init__(self, request: Request, *, only_best: bool = False) -> None:
        self.request, self.only_best = request, only_best
        self.job = (request.model, request.cluster, request.workload)
        self.profile = load_profile(request.cluster.gpu)
        self.rejected: Counter[str] = Counter()
        self.feasible = 0
        self.best: list[rank.Entries] = []
        self.front: list[rank.Entries] = []
        self.misses = rank.joined([])

    def piece(self, number: int, part: Part, piece: slice) -> None:
        """Rows `piece` of part `number`."""
        columns = part.table(piece)
        legal = self._legal(columns, part.mask(piece))
        rows = np.flatnonzero(legal.any(axis=tuple(range(legal.ndim - 1))))
        if not len(rows):
            return
        columns, legal = columns.take(rows), legal.take(rows, axis=-1)
        cells = Cells(number, rows + piece.start, columns, legal, memory(*self.job, columns))
        fitting = self._fitting(cells, self._below_floor(cells))
        if not self.only_best:
            self._keep_misses(cells, fitting)

    def _legal(self, columns: Columns, left: Array) -> Array:
        """The entries of `left` that break no rule; the others are counted under the first one they break."""
        count = int(np.count_nonzero(left))
        for rule, mask in legality(*self.job, columns).masks.items():
            left &= ~mask
            before, count = count, int(np.count_nonzero(left))
            if count < before:
                self.rejected[rule] += before - count
        return left

    def _below_floor(self, cells: Cells) -> Array:
        """The cells whose floor is within the budget; entries of the others are counted under what breaks it."""
        left = cells.entries
        for term, mask in cells.sizes.over_floor(self.request.budget_bytes):
            broken = cells.inner(mask)
            self._count(term, int(left[broken].sum()))
            left = np.where(broken, 0, left)
        return np.flatnonzero(left)

    def _fitting(self, cells: Cells, below: Array) -> Array:
        """The rows (local) of the cells `below` with an entry within the budget; their entries are timed."""
        if not len(below):
            return below
        cells, below = cells.only(below)
        some = max(1, MOST_ENTRIES // cells.size)
        best = [self._look_at(cells, below[start : start + some]) for start in range(0, len(below), some)]
        found = rank.joined(best)
        self.best.append(found.take(rank.first_of_rows(found, self.request.objective)))
        return np.searchsorted(cells.rows, self.best[-1].row)

    def _look_at(self, cells: Cells, below: Array) -> rank.Entries:
        """Times the entries of the cells `below` that are within the budget: the best of each cell."""
        sizes, legal = cells.sizes.fold(cells.fold(below)), cells.legal_within(below)
        device = np.broadcast_to(sizes.device_bytes, legal.shape)
        alive = legal & (device <= self.request.budget_bytes)
        self._count_over_budget(sizes, legal & ~alive)
        kept = np.flatnonzero(alive.any(axis=tuple(range(alive.ndim - 1))))
        fitting, alive, device = below[kept], alive.take(kept, axis=-1), device.take(kept, axis=-1)
        if not len(kept):
            return rank.joined([])
        self.feasible += int(np.count_nonzero(alive))
        times = self._times(cells.columns.fold(cells.fold(fitting)), alive.shape)
        return self._best(cells, fitting, *(one.reshape(-1, len(kept)) for one in (alive, times, device)))

    def _times(self, columns: Columns, shape: tuple[int, ...]) -> Array:
        """Seconds per step; zero outside training."""
        if self.request.workload.mode != "train":
            return np.zeros(shape)
        return np.broadcast_to(step(*self.job, columns, self.profile).step_s, shape)

    def _count_over_budget(self, sizes: MemoryColumns, over: Array) -> None:
        """Count every entry over the budget, but below the floor, under what breaks it."""
        for term, broken in sizes.over_moments(self.request.budget_bytes):
            if not over.any():
                return
            self._count(term, int(np.count_nonzero(over & broken)))
            over = over & ~broken
        self._count("outside-allocator", int(np.count_nonzero(over)))

    def _count(self, term: str, entries: int) -> None:
        if entries:
            self.rejected[f"memory-{term.replace('_', '-')}"] += entries

    def _best(self, cells: Cells, at: Array, living: Array, step_s: Array, device_bytes: Array) -> rank.Entries:
        """The best entry of each of the cells `at`; keeps their Pareto front. Arrays have shape (choices, cells)."""
        which = np.arange(len(at))
        choice = rank.best_of_rows(living, step_s, device_bytes, self.request.objective)
        best = cells.entry(choice, at, step_s[choice, which], device_bytes[choice, which])
        if not self.only_best:
            choice, which = np.nonzero(self._not_beaten(living, step_s, device_bytes, best))
            found = cells.entry(choice, at[which], step_s[choice, which], device_bytes[choice, which])
            found = found.take(np.lexsort((found.row, found.knob)))
            self.front.append(found.take(rank.pareto(found.step_s, found.device_bytes, least=1.0)))
        return best

    def _not_beaten(self, living: Array, step_s: Array, device_bytes: Array, best: rank.Entries) -> Array:
        """The living entries that a few good ones leave over for the Pareto front: sorting all of them takes long."""
        known = rank.joined([*self.front, best])
        good = rank.pareto(known.step_s, known.device_bytes, least=1.0)
        for index in good[:: max(1, len(good) // SEEDS)]:
            beaten = step_s > known.step_s[index]
            beaten &= device_bytes >= known.device_bytes[index]
            living = living & ~beaten
        return living

    def _keep_misses(self, cells: Cells, fitting: Array) -> None:
        """The nearest rows that are not among the rows `fitting`.

        What the rows with the lowest floors need in the cells of these floors is enough for `MOST_MISSES` rows, so that
        no cell with a higher floor can hold one of the nearest.
        """
        missed = np.ones(len(cells.rows), dtype=np.bool_)
        missed[fitting] = False
        floor = np.where(missed, cells.floor_bytes(), np.inf)
        lowest = floor.reshape(-1, len(cells.rows)).argmin(axis=0) * len(cells.rows) + np.arange(len(cells.rows))
        floor = floor.ravel()
        near = lowest[np.argsort(floor[lowest], kind="stable")[: min(MOST_MISSES, int(missed.sum()))]]
        if len(self.misses) == MOST_MISSES:
            near = near[floor[near] < self.misses.device_bytes[-1]]
        if len(near):
            enough = cells.least_memory(near).device_bytes.max()
            if len(self.misses) == MOST_MISSES:
                enough = min(enough, self.misses.device_bytes[-1])
            found = cells.least_memory(np.flatnonzero(floor <= enough))
            self.misses = rank.smallest(rank.joined([self.misses, found]), MOST_MISSES)
