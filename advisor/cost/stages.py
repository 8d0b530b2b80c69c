"""Pipeline stages as columns: the few ranks of a split that can be worst, and what each of them holds.

A stage axis over all pipeline ranks would multiply every formula by pp. Memory and time of a rank grow with each of
its layer counts, in-flight counts, embedding, loss and prediction modules, so only ranks that no other rank dominates
in all of these can be the peak. There are a handful of them; the rest is never evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from advisor.cost.router import Loads, Routed, held_layers, load_weights, looked_up, slowest_table, stage_loads
from advisor.spec.layout import Array, Columns
from advisor.spec.model import ExpertMlp, Model
from advisor.spec.split import PipelineSplit


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One representative pipeline rank of every row; all fields broadcast with the columns.

    `layers[k]` decoder layers of kind k; `in_flight[k]` layer-microbatches of kind k whose activations are alive at
    the end of warm-up; `microbatches` the microbatches in flight on the rank's last chunk; `modules` the
    prediction modules; `embedding`, `loss` and `final_norm` are 0/1; `loads[k]` is how router statistics load the
    experts of kind k (None without experts, () without statistics).
    """

    rank: Array
    layers: tuple[Array, ...]
    in_flight: tuple[Array, ...]
    embedding: Array
    loss: Array
    modules: Array
    microbatches: Array
    final_norm: Array
    loads: tuple[Loads | None, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one pipeline rank of one split holds.

    `first` and `last` are layers by kind of its first and last chunk, `held` the positions of all its layers by kind.
    """

    rank: int
    layers: tuple[int, ...]
    middle: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    embedding: int
    loss: int
    modules: int
    final_norm: int
    held: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def _ranks(pattern: tuple[int, ...], kinds: int, split: PipelineSplit, depth: int) -> tuple[_Rank, ...]:
    """All ranks of a split. The final norm sits with the loss, or behind the last decoder layer if modules are trained.

    Source: megatron-core 0.16.1, transformer/transformer_block.py, has_final_layernorm_in_this_stage.
    """
    starts = split.starts()
    last_filled = max((chunk for chunk, count in enumerate(split.layers) if count), default=len(split.layers) - 1)
    norm_chunk = last_filled if depth else split.pp * split.vpp - 1
    mtp_chunk = split.pp * split.vpp - 1 if split.mtp_chunk is None else split.mtp_chunk
    out = []
    for rank in range(split.pp):
        chunks = []
        held: list[tuple[int, ...]] = [()] * kinds
        for chunk in range(rank, split.pp * split.vpp, split.pp):
            piece = pattern[starts[chunk] : starts[chunk] + split.layers[chunk]]
            chunks.append(tuple(piece.count(kind) for kind in range(kinds)))
            more = held_layers(piece, kinds, starts[chunk])
            held = [before + own for before, own in zip(held, more, strict=True)]
        total = tuple(sum(chunk[kind] for chunk in chunks) for kind in range(kinds))
        middle = tuple(sum(chunk[kind] for chunk in chunks[1:-1]) for kind in range(kinds))
        modules = depth if mtp_chunk % split.pp == rank else 0
        embedding, loss, norm = int(rank == 0), int(rank == split.pp - 1), int(norm_chunk % split.pp == rank)
        out.append(_Rank(rank, total, middle, chunks[0], chunks[-1], embedding, loss, modules, norm, tuple(held)))
    return tuple(out)


def _weights(rank: _Rank, split: PipelineSplit, router: Routed | None, expert_kinds: set[int]) -> tuple[float, ...]:
    """Everything that memory and time of a rank grow with, for many microbatches; of the loads, memory alone."""
    extra = 2 * (split.pp - rank.rank - 1) + 1
    group = split.group or split.pp
    if split.vpp == 1:
        alive = [count * (split.pp - rank.rank) for count in rank.layers]
    else:
        alive = [
            (middle + first) * group + last * min(extra, group) + first * max(0, extra - group)
            for middle, first, last in zip(rank.middle, rank.first, rank.last, strict=True)
        ]
    loads: list[float] = []
    if router is not None:
        for kind in sorted(expert_kinds):
            loads += load_weights(router, rank.held[kind], rank.layers[kind], alive[kind])
    return (*rank.layers, *alive, *loads, rank.embedding, rank.loss, rank.modules)


@lru_cache(maxsize=4096)
def _representatives(
    pattern: tuple[int, ...], kinds: int, split: PipelineSplit, depth: int, router: Routed | None
) -> tuple[_Rank, ...]:
    """Ranks that no other rank dominates, lowest rank first."""
    ranks = _ranks(pattern, kinds, split, depth)
    experts = set() if router is None else {pattern[layer] for layer in router.stats.layers}
    weights = np.array([_weights(rank, split, router, experts) for rank in ranks], dtype=np.float64)
    keep = []
    for i, own in enumerate(weights):
        at_least = (weights >= own).all(axis=1)
        better = at_least & (weights > own).any(axis=1)
        equal_before = at_least[:i] & (weights[:i] == own).all(axis=1)
        if not better.any() and not equal_before.any():
            keep.append(ranks[i])
    return tuple(keep)


def _gather(values: Sequence[Sequence[int]], split: Array) -> Array:
    return np.array(values, dtype=np.int64)[split]


def representative_stages(
    model: Model, columns: Columns, depth: int, router: Routed | None = None
) -> tuple[Stage, ...]:
    """The representative stages of every row, as many as the row with most of them has (others repeat their first).

    `depth` is the number of multi-token prediction modules trained; with `router` statistics hotter experts make a rank
    larger (slower: `paced_stages`). In-flight counts follow Megatron's schedules: 1F1B keeps min(pp - r, m)
    microbatches on rank r; interleaving keeps (vpp - 1) * pp + 2 (pp - r - 1) + 1 chunks
    (ML:megatron/core/pipeline_parallel/schedules.py@d98e8a64, lines 929-986). Expert-parallel overlap schedules one
    more chunk, but runs it layer by layer against a backward pass that frees as it goes: one layer more is alive.
    """
    per_split = [_representatives(model.pattern, len(model.kinds), split, depth, router) for split in columns.splits]
    slots = max(len(ranks) for ranks in per_split)
    stages = []
    for slot in range(slots):
        ranks = [found[slot] if slot < len(found) else found[0] for found in per_split]
        stages.append(_stage(ranks, model, columns, router))
    return tuple(stages)


def paced_stages(model: Model, columns: Columns, depth: int, router: Routed | None = None) -> tuple[Stage, ...]:
    """The stages of every row that can be the slowest.

    With statistics one stands for all ranks that hold as many layers of each kind, loaded as the hottest of them at the
    entry's EP; its rank and its counts in flight, which no time depends on, are those of the first.
    """
    if router is None:
        return representative_stages(model, columns, depth)
    per_split = [_alike(model.pattern, len(model.kinds), split, depth) for split in columns.splits]
    experts = [isinstance(kind.mlp, ExpertMlp) for kind in model.kinds]
    stages = []
    for slot in range(max(len(groups) for groups in per_split)):
        groups = [found[slot] if slot < len(found) else found[0] for found in per_split]
        tables = np.stack([slowest_table(router, _expert_layers(group, experts)) for group in groups])
        loads = [
            looked_up(tables[:, kind], columns.split, columns) if has else None for kind, has in enumerate(experts)
        ]
        plain = _stage([group[0] for group in groups], model, columns, None)
        stages.append(replace(plain, loads=tuple(loads)))
    return tuple(stages)


@lru_cache(maxsize=4096)
def _alike(pattern: tuple[int, ...], kinds: int, split: PipelineSplit, depth: int) -> tuple[tuple[_Rank, ...], ...]:
    """Ranks of a split in groups that differ in nothing but which layers they hold."""
    groups: dict[tuple[object, ...], list[_Rank]] = {}
    for rank in _ranks(pattern, kinds, split, depth):
        alike = (rank.layers, rank.embedding, rank.loss, rank.modules, rank.final_norm)
        groups.setdefault(alike, []).append(rank)
    return tuple(tuple(group) for group in groups.values())


def _expert_layers(group: Sequence[_Rank], experts: Sequence[bool]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Positions of the layers of every rank by kind, () for kinds without experts."""
    return tuple(tuple(held if has else () for held, has in zip(one.held, experts, strict=True)) for one in group)


def stage_of_rank(model: Model, columns: Columns, depth: int, rank: int, router: Routed | None = None) -> Stage:
    """Pipeline rank `rank` of every row (of a row with fewer ranks, its last), whether it can be the worst or not."""
    per_split = [_ranks(model.pattern, len(model.kinds), split, depth) for split in columns.splits]
    return _stage([ranks[min(rank, len(ranks) - 1)] for ranks in per_split], model, columns, router)


def first_chunk(model: Model, columns: Columns, depth: int) -> Stage:
    """The first model chunk of the first rank of every row: all of the rank without interleaving.

    Loss and prediction modules lie on it only where there is no second chunk.
    """
    whole = stage_of_rank(model, columns, depth, 0)
    ranks = [_ranks(model.pattern, len(model.kinds), split, depth)[0] for split in columns.splits]
    layers = _gather([one.first for one in ranks], columns.split)
    alone = columns.vpp == 1
    return replace(
        whole,
        layers=tuple(layers[..., kind] for kind in range(len(model.kinds))),
        modules=whole.modules * alone,
        final_norm=whole.final_norm * alone,
    )


def _stage(ranks: Sequence[_Rank], model: Model, columns: Columns, router: Routed | None) -> Stage:
    rank = np.array([one.rank for one in ranks], dtype=np.int64)[columns.split]
    pp, vpp, m = columns.pp, columns.vpp, columns.num_microbatches
    group = np.array([split.group or split.pp for split in columns.splits], dtype=np.int64)[columns.split]
    extra = 2 * (pp - rank - 1) + 1
    plain = np.minimum(pp - rank, m)
    on_last = np.where(vpp == 1, plain, np.minimum(np.minimum(extra, group), m))
    on_first = group + np.minimum(np.maximum(extra - group, 0), np.maximum(m - group, 0))
    ahead = np.minimum(columns.ep_overlap, np.maximum(m * vpp - 1, 0))
    layers, alive = [], []
    for kind in range(len(model.kinds)):
        total = _gather([one.layers for one in ranks], columns.split)[..., kind]
        middle = _gather([one.middle for one in ranks], columns.split)[..., kind]
        first = _gather([one.first for one in ranks], columns.split)[..., kind]
        last = _gather([one.last for one in ranks], columns.split)[..., kind]
        interleaved = middle * np.minimum(group, m) + first * np.minimum(on_first, m) + last * on_last
        layers.append(total)
        alive.append(np.where(vpp == 1, total * plain, interleaved))
    one_layer = ahead / np.maximum(np.sum(layers, axis=0), 1)
    alive = [kept + one_layer * total for kept, total in zip(alive, layers, strict=True)]
    flags = np.array([(one.embedding, one.loss, one.modules, one.final_norm) for one in ranks], dtype=np.int64)
    flags = flags[columns.split]
    return Stage(
        rank=rank,
        layers=tuple(layers),
        in_flight=tuple(alive),
        embedding=flags[..., 0],
        loss=flags[..., 1],
        modules=flags[..., 2],
        microbatches=on_last,
        final_norm=flags[..., 3],
        loads=() if router is None else _loads(ranks, model, columns, router),
    )


def _loads(ranks: Sequence[_Rank], model: Model, columns: Columns, router: Routed) -> tuple[Loads | None, ...]:
    return tuple(
        stage_loads(router, [rank.held[kind] for rank in ranks], columns.split, columns)
        if isinstance(layer.mlp, ExpertMlp)
        else None
        for kind, layer in enumerate(model.kinds)
    )
