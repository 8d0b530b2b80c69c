"""What measured router statistics make of a table of layouts: the load of the hottest expert-parallel rank.

Experts lie on the ranks of an expert-parallel group in order, so that a rank's load follows from the statistics and EP
alone; EP is a column, so loads are tables over EP that columns are looked up in. A layer runs at the pace of its
fullest rank, whichever that is, and time is that of layers with the mean of these over a stage: exact as far as time
grows linearly with load, a little low where cool layers wait for the host and hot ones do not. Memory is that of one
rank, the fullest over all layers of a stage together, and of its hottest layer while that runs backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.spec.layout import Array, Columns
from advisor.spec.model import ExpertMlp, Model
from advisor.spec.router import DIGITS, RouterStats, shares
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Routed:
    """Statistics and the multiple of the mean beyond which an expert drops tokens (None = it drops none)."""

    stats: RouterStats
    capacity: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Load of the hottest rank over the mean, for the layers of one kind that a stage holds; columns.

    `time` is the mean over layers of each one's hottest rank, `held` that of the rank that gets most in all of them,
    `hottest` the most that any of them puts on a rank.
    """

    time: Array
    held: Array
    hottest: Array


def load_factor(workload: Workload) -> Array | float:
    """Rows on the fullest expert-parallel rank over the mean: router skew, bounded by the capacity factor."""
    capacity = workload.capacity_factor
    if capacity is None or (workload.routing != "token-drop" and not workload.pad_to_capacity):
        return workload.router_skew
    return capacity if workload.pad_to_capacity else np.minimum(workload.router_skew, capacity)


def routed(workload: Workload) -> Routed | None:
    """Statistics of a workload as loads are made from them, None without any."""
    if workload.router is None:
        return None
    return Routed(workload.router, workload.capacity_factor if workload.routing == "token-drop" else None)


@lru_cache(maxsize=4096)
def load_table(router: Routed, layers: tuple[int, ...]) -> Array:
    """Rows time, held and hottest (see `Loads`) by EP, for decoder layers of one kind; shape (3, most experts + 1).

    Ones without layers. Where EP does not divide the experts, which no layout may have, the fullest expert stands in.
    """
    stats = router.stats
    if not layers:
        return np.ones((3, _width(stats)))
    return _table([stats.loads[stats.layers.index(layer)] for layer in layers], router)


def _width(stats: RouterStats) -> int:
    return 1 + max(load.size for load in stats.loads)


def _table(loads: Sequence[Array], router: Routed) -> Array:
    capacity = router.capacity
    worst = max(float(load.max()) for load in loads)
    out = np.full((3, _width(router.stats)), worst if capacity is None else min(worst, capacity))
    for ep in _divisors(loads[0].size):
        ranks = np.stack([shares(load, ep, capacity) for load in loads])
        each = ranks.max(axis=1)
        out[:, ep] = each.mean(), ranks.mean(axis=0).max(), each.max()
    return np.round(out, DIGITS)


def _divisors(experts: int) -> list[int]:
    return [ep for ep in range(1, experts + 1) if experts % ep == 0]


def stage_loads(router: Routed, held: Sequence[tuple[int, ...]], index: Array, columns: Columns) -> Loads:
    """Loads of the layers `held[i]` for entries whose `index` is i."""
    return looked_up(np.stack([load_table(router, layers) for layers in held]), index, columns)


def looked_up(tables: Array, index: Array, columns: Columns) -> Loads:
    """Loads out of `tables[index]` at every entry's EP."""
    ep = np.minimum(columns.ep, tables.shape[-1] - 1)
    return Loads(*(tables[index, row, ep] for row in range(3)))


def whole_loads(router: Routed, model: Model, columns: Columns) -> tuple[Loads | None, ...]:
    """Loads of every kind over all decoder layers of the model, None for kinds without experts."""
    everywhere = np.zeros_like(columns.ep)
    return tuple(
        stage_loads(router, [held], everywhere, columns) if isinstance(kind.mlp, ExpertMlp) else None
        for kind, held in zip(model.kinds, held_layers(model.pattern, len(model.kinds)), strict=True)
    )


def module_loads(router: Routed, model: Model, columns: Columns) -> tuple[Loads | None, ...]:
    """Loads of the layers in prediction modules by kind: of their own statistics, else of the decoder layers."""
    if not router.stats.modules:
        return whole_loads(router, model, columns)
    tables = _table(router.stats.modules, router)
    ep = np.minimum(columns.ep, tables.shape[-1] - 1)
    return (Loads(*(tables[row, ep] for row in range(3))),) * len(model.kinds)


def held_layers(pattern: Sequence[int], kinds: int, first: int = 0) -> tuple[tuple[int, ...], ...]:
    """Positions of the layers of every kind in a piece of the pattern that begins at layer `first`."""
    return tuple(tuple(first + at for at, one in enumerate(pattern) if one == kind) for kind in range(kinds))


def load_weights(router: Routed, layers: tuple[int, ...], count: float, alive: float) -> tuple[float, ...]:
    """What memory of a stage grows with, at every EP, for `count` layers of a kind with `alive` activations."""
    table = load_table(router, layers)[:, _divisors(_width(router.stats) - 1)]
    return tuple(np.concatenate([alive * table[1], min(count, 1) * table[2]]))


@lru_cache(maxsize=4096)
def slowest_table(router: Routed, ranks: tuple[tuple[tuple[int, ...], ...], ...]) -> Array:
    """Tables (see `load_table`) by kind of whichever of `ranks` is the slowest at an EP; shape (kinds, 3, most + 1).

    `ranks` are positions of expert layers by kind, as many of each kind in every rank, so that the rank with the
    highest mean load is the slowest.
    """
    tables = np.stack([[load_table(router, layers) for layers in held] for held in ranks])
    counts = np.array([len(layers) for layers in ranks[0]], dtype=np.float64)
    slowest = np.einsum("k,rke->re", counts, tables[:, :, 0]).argmax(axis=0)
    return np.moveaxis(tables[slowest, :, :, np.arange(tables.shape[-1])], 0, -1)
