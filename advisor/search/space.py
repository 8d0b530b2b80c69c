"""Every layout of a job, as columns, and the knob choices that make sense within a row.

    layouts(model, cluster, workload, gbs, fixed) -> Space(columns, splits, searched, rejected, traits)
    groups(space) -> [(traits, row indices), ...]
    knob_axes(model, cluster, workload, fixed, extra, traits) -> [[Knobs, ...], ...]

`columns` and `splits` are what `spec.layout.grid` takes, the axes are its knob axes. Rows are TP, PP, VPP, CP, EP, ETP
and MBS, all divisors that can occur, up to three bounds: tensor-parallel groups stay inside an NVLink domain and
context-parallel ranks keep 1024 tokens (rules of severity slow, counted like the others), and a microbatch holds at
most 2**16 tokens. A value given in `fixed` is searched whatever the bounds say.

Values are crossed in steps, and every step asks the rules whose fields are known by then: (tp, cp, pp), then
(ep, etp), then (mbs, vpp). A candidate that falls at a step counts for all rows it would have become, so `searched`
is the size of the full product and `searched - sum(rejected)` the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.rules import rule_of, rules
from advisor.rules.rule import Case, Rule, Verdicts, divisors, judge, partial_columns
from advisor.search.knobs import Traits, knob_axes, row_traits, traits_of
from advisor.search.stages import balanced_split
from advisor.spec.hardware import Cluster
from advisor.spec.layout import LAYOUT_COLUMNS, Array
from advisor.spec.model import Model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

__all__ = ["Space", "Traits", "groups", "knob_axes", "layouts", "mbs_values", "vpp_values"]

MOST_TOKENS = 2**16
MOST_VPP = 6
BOUNDS = {"tp-inside-nvlink": "tp", "etp-inside-nvlink": "etp", "cp-chunk-too-short": "cp"}
"""Rules of severity slow that bound the search, and the field whose value in `fixed` lifts the bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Legal rows as layout columns (rows,), the splits they point into, and what was ruled out on the way.

    `searched` counts candidates, `rejected` those per rule; `traits` are the bits of `knobs.row_traits` (rows,).
    """

    columns: dict[str, Array]
    splits: tuple[PipelineSplit, ...]
    searched: int
    rejected: dict[str, int]
    traits: Array

    @property
    def rows(self) -> int:
        """Number of legal rows."""
        return len(self.columns["tp"])


def vpp_values(num_layers: int, pp: int) -> tuple[int, ...]:
    """At most six interleaving factors of a pipeline of `pp` ranks, ascending.

    1; then the divisors of the layers per rank (counting loss and embedding as a layer if only that divides), spread
    over their range; then 2, 4, 8, 3 and 6, which a layout string makes possible. Every stage keeps a layer, but for
    the one with the embedding and the one with the loss.
    """
    most = (num_layers + 2) // pp if pp > 1 else 1
    even = next((total // pp for total in range(num_layers, num_layers + 3) if total % pp == 0), 1)
    spread = [n for n in divisors(even) if 1 < n <= most]
    picks = spread if len(spread) < MOST_VPP else [spread[i * (len(spread) - 1) // 4] for i in range(5)]
    values = list(dict.fromkeys([1, *picks, *(n for n in (2, 4, 8, 3, 6) if n <= most)]))
    return tuple(sorted(values[:MOST_VPP]))


def mbs_values(workload: Workload, gbs: int) -> list[int]:
    """Microbatch sizes: 1 and the divisors of the global batch up to 2**16 tokens."""
    return [n for n in divisors(gbs) if n == 1 or n * workload.seq_len <= MOST_TOKENS]


class _Search:
    """Asks each rule once, as soon as its fields are known, and keeps count."""

    def __init__(self, model: Model, cluster: Cluster, workload: Workload, fixed: Mapping[str, Any]) -> None:
        self.job = (model, cluster, workload)
        bounds = [rule_of(one) for one, field in BOUNDS.items() if field not in fixed]
        self.left: list[Rule] = [*(one for one in rules() if one.severity == "stop"), *bounds]
        self.rejected: dict[str, int] = {}

    def ask(self, known: Mapping[str, Array], weight: Array) -> Array:
        """Indices of the candidates that break no rule about the `known` fields; the others count `weight` times."""
        due = [one for one in self.left if set(one.fields) <= set(known)]
        self.left = [one for one in self.left if one not in due]
        verdicts: Verdicts = judge(due, Case(*self.job, partial_columns(known)))
        for name, count in verdicts.count(weight).items():
            self.rejected[name] = self.rejected.get(name, 0) + count
        return np.flatnonzero(verdicts.legal)


def _cross(*axes: Array) -> list[Array]:
    """All combinations of one-dimensional arrays, the last one fastest."""
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def _values(name: str, fixed: Mapping[str, Any], values: list[int]) -> Array:
    return np.array([int(fixed[name])] if name in fixed else values, dtype=np.int64)


def _take(columns: Mapping[str, Array], index: Array) -> dict[str, Array]:
    return {name: column[index] for name, column in columns.items()}


def layouts(model: Model, cluster: Cluster, workload: Workload, gbs: int, fixed: Mapping[str, Any]) -> Space:
    """All legal rows for `gbs` sequences per step; `fixed` pins tp, pp, vpp, cp, ep, etp, mbs (int) or sp (bool)."""
    search = _Search(model, cluster, workload, fixed)
    sizes = divisors(cluster.gpus)
    experts = sizes if model.is_moe else [1]
    ep, etp = _cross(_values("ep", fixed, experts), _values("etp", fixed, experts))
    mbs = _values("mbs", fixed, mbs_values(workload, gbs))
    tp, cp, pp = _cross(*(_values(name, fixed, sizes) for name in ("tp", "cp", "pp")))
    vpp = {int(n): _values("vpp", fixed, list(vpp_values(model.num_layers, int(n)))) for n in sorted(set(pp.tolist()))}
    inner = np.array([len(vpp[int(n)]) for n in pp], dtype=np.int64) * len(mbs)
    searched = int(inner.sum()) * len(ep)

    grid = {"tp": tp, "cp": cp, "pp": pp, "sp": tp > 1}
    if "sp" in fixed:
        grid["sp"] = np.full(len(tp), bool(fixed["sp"]))
    kept = search.ask(grid, inner * len(ep))
    grid, inner = _take(grid, kept), inner[kept]
    grid["dp"] = cluster.gpus // (grid["tp"] * grid["cp"] * grid["pp"])

    outer, which = _cross(np.arange(len(kept)), np.arange(len(ep)))
    experts_at = {**_take(grid, outer), "ep": ep[which], "etp": etp[which]}
    experts_at["edp"] = cluster.gpus // np.maximum(experts_at["ep"] * experts_at["etp"] * experts_at["pp"], 1)
    legal = search.ask(experts_at, inner[outer])
    experts_at, outer = _take(experts_at, legal), outer[legal]

    wide = np.bincount(outer, minlength=len(kept))
    batch, home = _batches(grid, mbs, vpp, gbs)
    legal = search.ask(batch, wide[home])
    rows = _join(experts_at, outer, _take(batch, legal), home[legal])
    rows = _take(rows, search.ask(rows, np.ones(1, dtype=np.int64)))
    columns, splits = _with_splits(rows, model, workload)
    traits = row_traits(model, cluster, workload, partial_columns(columns, splits))
    return Space(columns, splits, searched, search.rejected, traits)


def _batches(
    grid: Mapping[str, Array], mbs: Array, vpp: Mapping[int, Array], gbs: int
) -> tuple[dict[str, Array], Array]:
    """Every (mbs, vpp) of every grid row, and the grid row each belongs to."""
    pairs = {n: _cross(mbs, values) for n, values in vpp.items()}
    lengths = np.array([len(pairs[int(n)][0]) for n in grid["pp"]], dtype=np.int64)
    home = np.repeat(np.arange(len(lengths)), lengths)
    known = _take(grid, home)
    for i, name in enumerate(("mbs", "vpp")):
        parts = [pairs[int(n)][i] for n in grid["pp"]]
        known[name] = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    known["gbs"] = np.full(len(home), gbs, dtype=np.int64)
    known["num_microbatches"] = gbs // np.maximum(known["mbs"] * known["dp"], 1)
    return known, home


def _join(
    left: Mapping[str, Array], left_home: Array, right: Mapping[str, Array], right_home: Array
) -> dict[str, Array]:
    """Every left row with every right row of the same home; homes are ascending."""
    most = 1 + max(left_home.max(initial=0), right_home.max(initial=0))
    homes = np.flatnonzero(np.bincount(left_home, minlength=most) * np.bincount(right_home, minlength=most))
    starts = [np.searchsorted(home, homes, side) for home in (left_home, right_home) for side in ("left", "right")]
    lefts, rights = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for a, b, c, d in zip(*starts, strict=True):
        lefts.append(np.repeat(np.arange(a, b), d - c))
        rights.append(np.tile(np.arange(c, d), b - a))
    i, j = np.concatenate(lefts), np.concatenate(rights)
    return {**_take(right, j), **_take(left, i)}


def _with_splits(
    rows: dict[str, Array], model: Model, workload: Workload
) -> tuple[dict[str, Array], tuple[PipelineSplit, ...]]:
    """Adds the index of the balanced split of every row; rows whose layers cannot be dealt were ruled out before."""
    found: list[PipelineSplit] = []
    code = rows["pp"] * (1 + int(rows["vpp"].max(initial=1))) + rows["vpp"]
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    depth = workload.mtp_depth
    for at in first:
        pp, vpp = int(rows["pp"][at]), int(rows["vpp"][at])
        split = balanced_split(model, workload, pp, vpp, depth)
        if split is None:
            raise ValueError(f"rule layers-fill-stages let pp {pp} x vpp {vpp} pass for {model.num_layers} layers")
        found.append(split)
    columns = {name: rows[name] for name in LAYOUT_COLUMNS if name != "split"}
    return {**columns, "split": index.astype(np.int64)}, tuple(found)


def groups(space: Space) -> list[tuple[Traits, Array]]:
    """Row indices of `space` by traits: the rows of a group have the same knob choices."""
    values, index = np.unique(space.traits, return_inverse=True)
    return [(traits_of(int(value)), np.flatnonzero(index == i)) for i, value in enumerate(values)]
