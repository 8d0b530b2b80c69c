"""The sparse middle of a search: what is left of a broadcast table once its coarse costs are known."""

from __future__ import annotations

import numpy as np

from advisor.cost.memory import MemoryColumns
from advisor.search import rank
from advisor.spec.layout import Array, Columns, Fold

CELL_ENTRIES = 10
"""Entries of a cell that take as long as what is computed once for it."""


class Cells:
    """Legal rows of a part with their memory, as cells: one per row and choice on the axes that the floor depends on.

    `rows` are numbers in part `part`; `legal` has the shape of the table. Leading knob axes that the floor does not
    depend on lie within a cell. `entries` (inner axes, rows) counts the legal entries of each cell; cells go by flat
    index into it.
    """

    def __init__(
        self, part: int, rows: Array, columns: Columns, legal: Array, sizes: MemoryColumns, *, lead: int | None = None
    ) -> None:
        self.part, self.rows, self.columns, self.legal, self.sizes = part, rows, columns, legal, sizes
        floor = _whole(sizes.floor_bytes, legal.ndim)
        own = next((axis for axis, size in enumerate(floor.shape[:-1]) if size > 1), legal.ndim - 1)
        self._lead = own if lead is None else lead
        self.entries = np.add.reduce(legal, axis=tuple(range(self._lead)), dtype=np.int64)

    def __len__(self) -> int:
        return int(self.entries.size)

    @property
    def size(self) -> int:
        """Entries of a cell, legal or not."""
        return self.legal.size // len(self)

    def only(self, cells: Array) -> tuple[Cells, Array]:
        """These cells without any other, and `cells` among them; whole rows as cells where that takes less time.

        A cell costs `CELL_ENTRIES` entries of its own for what depends on nothing within it.
        """
        rows = np.count_nonzero(np.bincount(self.local_row(cells)))
        choices = self.legal.size // len(self.rows)
        if len(cells) * (CELL_ENTRIES + self.size) < rows * (CELL_ENTRIES + choices):
            return self, cells
        left = np.zeros(len(self), dtype=np.bool_)
        left[cells] = True
        legal = self.legal & left.reshape(self.entries.shape)
        whole = Cells(self.part, self.rows, self.columns, legal, self.sizes, lead=legal.ndim - 1)
        return whole, np.flatnonzero(whole.entries)

    def inner(self, array: Array) -> Array:
        """An array that does not depend on what lies within a cell, over cells."""
        whole = _whole(array, self.legal.ndim)
        return np.broadcast_to(whole.reshape(whole.shape[self._lead :]), self.entries.shape)

    def fold(self, cells: Array) -> Fold:
        """Lays out `cells` as rows, crossed with what lies within a cell."""
        return Fold(self.legal.shape, self._lead, cells)

    def local_row(self, cells: Array) -> Array:
        """Index into `rows` of each cell."""
        return cells % len(self.rows)

    def legal_within(self, cells: Array) -> Array:
        """Which entries of `cells` are legal, cells last."""
        return self.legal.reshape(*self.legal.shape[: self._lead], -1).take(cells, axis=-1)

    def entry(self, choice: Array, cells: Array, step_s: Array, device_bytes: Array) -> rank.Entries:
        """Entries by their flat choice within their cell."""
        knob = choice * (len(self) // len(self.rows)) + cells // len(self.rows)
        part = np.full(len(cells), self.part)
        return rank.Entries(part, self.rows[self.local_row(cells)], knob, step_s, device_bytes)

    def floor_bytes(self) -> Array:
        """The floor of every cell, infinite where nothing is legal (inner axes, rows)."""
        return np.where(self.entries > 0, self.inner(self.sizes.floor_bytes), np.inf)

    def least_memory(self, cells: Array) -> rank.Entries:
        """For each row of `cells` the legal entry in them that needs least memory."""
        legal = self.legal_within(cells)
        device = np.where(legal, self.sizes.fold(self.fold(cells)).device_bytes, np.inf).reshape(-1, len(cells))
        choice = device.argmin(axis=0)
        size = device[choice, np.arange(len(cells))]
        found = self.entry(choice, cells, np.zeros(len(cells)), size)
        return found.take(rank.first_of_rows(found, "memory"))


def _whole(array: Array, depth: int) -> Array:
    return array.reshape((1,) * (depth - array.ndim) + array.shape)
