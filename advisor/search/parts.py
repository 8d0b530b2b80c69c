"""The searched table in parts: rows of equal traits crossed with the knob choices that make sense for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.search.dials import ALLOWANCES
from advisor.search.request import Request
from advisor.search.space import groups, knob_axes, layouts
from advisor.spec.layout import LAYOUT_COLUMNS, Array, Columns, Knobs, Layout, grid
from advisor.spec.split import PipelineSplit

Axes = tuple[tuple[Knobs, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows (`columns`, each of shape (rows,)) and the independent knob axes that they are crossed with.

    `offered` has a mask (choices, rows) per axis: which choices a row has. Entries outside are not searched.
    """

    columns: dict[str, Array]
    splits: tuple[PipelineSplit, ...]
    axes: Axes
    offered: tuple[Array, ...]

    @property
    def rows(self) -> int:
        """Number of layouts."""
        return len(self.columns["tp"])

    @property
    def choices(self) -> int:
        """Number of knob combinations of the table per row, offered or not."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def entries(self) -> int:
        """Number of row x knob combinations that are offered."""
        return int(math.prod(mask.sum(axis=0) for mask in self.offered).sum())

    def take(self, index: Array) -> Part:
        """The same choices for the rows `index`."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns, offered=tuple(mask[:, index] for mask in self.offered))

    def mask(self, piece: slice) -> Array:
        """Which entries of `table(piece)` are offered, in its full shape; a new array."""
        depth = len(self.axes)
        found = np.ones((*(len(axis) for axis in self.axes), piece.stop - piece.start), dtype=np.bool_)
        for i, mask in enumerate(self.offered):
            own = mask[:, piece]
            if not own.all():
                found &= own.reshape(*(len(own) if j == i else 1 for j in range(depth)), -1)
        return found

    def table(self, piece: slice) -> Columns:
        """Rows `piece` as a broadcast table: knob axes first, rows last."""
        columns = {name: column[piece] for name, column in self.columns.items()}
        return grid(columns, self.splits, self.axes)

    def layout(self, row: int) -> Layout:
        """One row as a value."""
        fields: dict[str, Any] = {
            name: int(self.columns[name][row])
            for name in LAYOUT_COLUMNS
            if name not in {"split", "sp", "num_microbatches"}
        }
        split = self.splits[int(self.columns["split"][row])]
        return Layout(**fields, sp=bool(self.columns["sp"][row]), split=split)

    def knobs(self, choice: int) -> Knobs:
        """One combination of knobs by its flat index over the axes."""
        base = self.axes[0][0]
        where = np.unravel_index(choice, tuple(len(axis) for axis in self.axes))
        changes: dict[str, Any] = {}
        for axis, at in zip(self.axes, where, strict=True):
            chosen = axis[int(at)]
            changes.update(
                {
                    field.name: getattr(chosen, field.name)
                    for field in dataclasses.fields(Knobs)
                    if getattr(chosen, field.name) != getattr(base, field.name)
                }
            )
        return dataclasses.replace(base, **changes)

    def with_knob(self, name: str, value: Any) -> Part:
        """The same part with one knob set to `value` in every choice."""
        axes = tuple(tuple(dataclasses.replace(one, **{name: value}) for one in axis) for axis in self.axes)
        return dataclasses.replace(self, axes=axes)

    def with_batch(self, gbs: int) -> Part:
        """The same rows at another global batch size; rows that it does not divide by are left to the rules."""
        batch = np.full(self.rows, gbs, dtype=np.int64)
        counts = batch // (self.columns["mbs"] * self.columns["dp"])
        return dataclasses.replace(self, columns=self.columns | {"gbs": batch, "num_microbatches": counts})


def make_parts(request: Request) -> tuple[tuple[Part, ...], int, dict[str, int]]:
    """Parts of a request's whole search space, with the rows that the enumeration ruled out: how many, by rule."""
    model, cluster, workload = request.model, request.cluster, request.workload
    space = layouts(model, cluster, workload, request.gbs, request.fixed)
    extra = {one.knob: one.value for one in ALLOWANCES.values() if one.knob and one.name in request.allow}
    extra = {knob: value for knob, value in extra.items() if knob not in request.fixed}
    parts = []
    for traits, index in groups(space):
        axes = knob_axes(model, cluster, workload, request.fixed, extra, traits)
        offered = tuple(np.ones((len(axis), len(index)), dtype=np.bool_) for axis in axes)
        columns = {name: space.columns[name][index] for name in LAYOUT_COLUMNS}
        parts.append(Part(columns, space.splits, tuple(tuple(axis) for axis in axes), offered))
    return tuple(parts), sum(space.rejected.values()), dict(space.rejected)


def chunks(part: Part, entries: int) -> Iterator[slice]:
    """The rows of a part in pieces of about `entries` table entries each, at least one row."""
    rows = max(1, entries // part.choices)
    for start in range(0, part.rows, rows):
        yield slice(start, min(start + rows, part.rows))
