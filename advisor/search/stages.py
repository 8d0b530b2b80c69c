"""Deals decoder layers over the pp * vpp chunks of a pipeline so that the heaviest pipeline rank is as light as can be.

Chunk c lives on rank c % pp and holds a contiguous piece of the model; embedding weighs nothing, logits with loss and
the prediction modules weigh what `weights.stage_weights` says. Two cases cover every model:

* After a short lead (the dense layers in front of MoE ones) all layers weigh the same. Every way to deal the lead is
  tried; the rest are identical units with free choice of rank, and giving each unit to the rank that stays lightest
  minimises the maximum (exchange argument: another rank could only end at least as heavy). Exact.
* Kinds alternate. With vpp = 1 the smallest feasible bound among all interval sums is found by bisection. Exact.
  With vpp > 1 ranks own separate pieces and the problem is a coupled partition; boundaries are moved, alone and in
  runs, from the equal-weight solution until no move helps.

Weights are FLOPs, no better than a few per cent as a measure of time, so splits within `CLOSE` of the optimum count as
equal: among them the one that Megatron needs fewest words for wins (even, account_for_* flags, first and last stage
counts, layout string). Remaining ties go to later ranks, which keep fewer microbatches in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

import numpy as np

from advisor.search.layout_string import hybrid_pattern, layout_string, megatron_flags, parse_layout_string
from advisor.search.weights import StageWeights, stage_weights
from advisor.spec.layout import Array
from advisor.spec.model import Model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

__all__ = [
    "balanced_split",
    "even_split",
    "hybrid_pattern",
    "layout_string",
    "megatron_flags",
    "parse_layout_string",
    "rank_loads",
]

LONGEST_LEAD = 6
CLOSE = 1.005
MOST_PAIRS = 2**12
MOST_RUNS = 512
SAME = 1 + 1e-9


def rank_loads(split: PipelineSplit, weights: StageWeights) -> tuple[float, ...]:
    """Multiply-adds per token of each pipeline rank."""
    loads = [0.0] * split.pp
    chunks = split.pp * split.vpp
    for chunk, (start, count) in enumerate(zip(split.starts(), split.layers, strict=True)):
        loads[chunk % split.pp] += sum(weights.layers[start : start + count])
    loads[(chunks - 1) % split.pp] += weights.loss
    loads[(chunks - 1 if split.mtp_chunk is None else split.mtp_chunk) % split.pp] += weights.modules
    return tuple(loads)


def balanced_split(
    model: Model, workload: Workload, pp: int, vpp: int, depth: int, *, close: float = CLOSE
) -> PipelineSplit | None:
    """The split of `model` over pp x vpp chunks with the lightest heaviest rank, None if there are too few layers.

    `depth` is the number of multi-token prediction modules trained. Every chunk holds at least one layer, but for the
    last one, which may hold the loss alone, and the first one where layers are two fewer than chunks.
    A plainer split whose heaviest rank is within the factor `close` of the optimum is preferred (1 = the optimum).
    """
    return _balanced(
        stage_weights(model, workload, depth), pp, vpp, depth, hybrid=model.is_hybrid, close=max(close, SAME)
    )


def even_split(num_layers: int, pp: int, vpp: int, depth: int) -> PipelineSplit | None:
    """The same number of layers in every chunk, None if they do not divide."""
    chunks = pp * vpp
    if num_layers % chunks:
        return None
    return PipelineSplit(pp, vpp, (num_layers // chunks,) * chunks, mtp_chunk=chunks - 1 if depth else None)


@lru_cache(maxsize=4096)
def _balanced(
    weights: StageWeights, pp: int, vpp: int, depth: int, *, hybrid: bool, close: float
) -> PipelineSplit | None:
    chunks, last = pp * vpp, pp * vpp - 1
    if pp < 1 or vpp < 1 or len(weights.layers) < max(last - 1, 1):
        return None
    if chunks == 1:
        return even_split(len(weights.layers), 1, 1, depth)
    if len(weights.layers) == last - 1:
        ends = (0, *[1] * (last - 1), 0)
        form = "pattern" if hybrid else "account"
        return PipelineSplit(pp, vpp, ends, form, last if depth else None, not hybrid, not hybrid)
    # Prediction modules sit with the loss, or on the chunk before it, which then leaves the loss alone on the last one.
    homes = [last] + ([last - 1] if depth and pp > 2 and len(weights.layers) >= last else [])
    found = []
    for home in homes:
        layers = _deal(weights, pp, vpp, home, close)
        if layers is not None:
            found.append(PipelineSplit(pp, vpp, layers, "layout", home if depth else None))
    if not found:
        return None
    bound = min(max(rank_loads(split, weights)) for split in found) * close
    best = next(split for split in found if max(rank_loads(split, weights)) <= bound)
    if hybrid:
        return PipelineSplit(pp, vpp, best.layers, "pattern", best.mtp_chunk)
    for _, group in groupby(_plain_forms(weights, pp, vpp, depth), key=lambda split: split.form):
        plain = min(group, key=lambda split: max(rank_loads(split, weights)))
        if max(rank_loads(plain, weights)) <= bound:
            return plain
    return best


def _plain_forms(weights: StageWeights, pp: int, vpp: int, depth: int) -> Iterator[PipelineSplit]:
    """Splits that need no layout string, simplest first."""
    num_layers, chunks = len(weights.layers), pp * vpp
    mtp_chunk = chunks - 1 if depth else None
    for embedding, loss in ((False, False), (False, True), (True, False), (True, True)):
        each, rest = divmod(num_layers + embedding + loss, chunks)
        if rest or each <= embedding:
            continue
        layers = [each] * chunks
        layers[0] -= embedding
        layers[-1] -= loss
        form = "account" if embedding or loss else "even"
        yield PipelineSplit(pp, vpp, tuple(layers), form, mtp_chunk, embedding, loss)
    if pp < 2 or num_layers % vpp:
        return
    # Counts below are layers of a chunk. The last rank carries loss and modules too, so it gets fewer than the first.
    heavy = (weights.loss + weights.modules) * num_layers / sum(weights.layers) / vpp
    per_slot = num_layers // vpp
    for middle in range(1, per_slot // (pp - 2) + 1) if pp > 2 else [0]:
        ends = per_slot - middle * (pp - 2)
        about = round((ends + heavy) / 2)
        for first in range(max(1, min(about, ends) - 1), min(about + 1, ends - 1) + 1):
            yield PipelineSplit(pp, vpp, (first, *[middle] * (pp - 2), ends - first) * vpp, "uneven", mtp_chunk)


def _deal(weights: StageWeights, pp: int, vpp: int, home: int, close: float) -> tuple[int, ...] | None:
    """Layers per chunk with the modules on chunk `home`; the last chunk is left to the loss if `home` precedes it."""
    lead = _lead(weights.layers)
    if lead <= LONGEST_LEAD:
        return _deal_units(weights, pp, vpp, home, close)
    return _deal_runs(weights, pp, vpp, home)


def _lead(layers: Sequence[float]) -> int:
    """Number of layers before the run of equal ones that ends the model."""
    lead = len(layers)
    while lead > 0 and layers[lead - 1] == layers[-1]:
        lead -= 1
    return lead


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as at most `parts` positive summands, in a fixed order."""
    if total == 0:
        yield ()
        return
    for first in range(total, 0, -1):
        if first == total:
            yield (first,)
        elif parts > 1:
            for rest in _compositions(total - first, parts - 1):
                yield (first, *rest)


def _deal_units(weights: StageWeights, pp: int, vpp: int, home: int, close: float) -> tuple[int, ...] | None:
    parts = home + 1
    found = [_fill(weights, pp, vpp, home, dealt) for dealt in _compositions(_lead(weights.layers), parts)]
    filled = [one for one in found if one is not None]
    if not filled:
        return None
    bound = min(load for load, _ in filled) * close
    return next(layers for load, layers in filled if load <= bound)


def _fill(
    weights: StageWeights, pp: int, vpp: int, home: int, dealt: tuple[int, ...]
) -> tuple[float, tuple[int, ...]] | None:
    """Deals the equal layers after the lead, whose layers per chunk are `dealt`; (heaviest rank, layers per chunk)."""
    chunks, unit, at = pp * vpp, weights.layers[-1], 0
    own, layers = [0.0] * chunks, [0] * chunks
    for chunk, count in enumerate(dealt):
        own[chunk] += sum(weights.layers[at : at + count])
        layers[chunk], at = count, at + count
    own[-1] += weights.loss
    own[home] += weights.modules
    open_ = [max(len(dealt) - 1, 0) <= chunk and not (home < chunks - 1 == chunk) for chunk in range(chunks)]
    left = len(weights.layers) - at
    for chunk in range(len(dealt), chunks - 1):
        layers[chunk], own[chunk], left = 1, own[chunk] + unit, left - 1
    if left < 0:
        return None
    ranks = [[chunk for chunk in range(rank, chunks, pp) if open_[chunk]] for rank in range(pp)]
    loads = [sum(own[rank::pp]) for rank in range(pp)]
    for _ in range(left):
        rank = min((r for r in range(pp) if ranks[r]), key=lambda r: (loads[r], -r))
        chunk = min(ranks[rank], key=lambda c: (own[c], -c))
        loads[rank] += unit
        own[chunk] += unit
        layers[chunk] += 1
    return max(loads), tuple(layers)


def _deal_runs(weights: StageWeights, pp: int, vpp: int, home: int) -> tuple[int, ...] | None:
    """Boundaries for kinds that alternate: start from the exact cut (vpp = 1) or the equal-weight one, then descend."""
    chunks = pp * vpp
    prefix = np.concatenate([[0.0], np.cumsum(weights.layers)])
    extra = np.zeros(chunks)
    extra[-1] += weights.loss
    extra[home] += weights.modules
    closed = home < chunks - 1
    start = _cut(prefix, extra, closed) if vpp == 1 else _proportional(weights, pp, vpp, home)
    if start is None:
        return None
    bounds = _descend(start, prefix, extra, pp, closed)
    return tuple(int(count) for count in np.diff(bounds))


def _cut(prefix: Array, extra: Array, closed: bool) -> Array | None:
    """Contiguous partition that minimises the heaviest part, filled from the end (prefix sums, weight per part)."""
    num_layers, parts = len(prefix) - 1, len(extra)
    sums = np.unique(np.concatenate([(prefix[None, :] - prefix[:, None]).ravel() + add for add in np.unique(extra)]))
    sums = sums[sums >= extra.max()]

    def fit(bound: float) -> list[int] | None:
        ends = [num_layers]
        for part in range(parts - 1, -1, -1):
            end = ends[-1]
            start = int(np.searchsorted(prefix, (prefix[end] + extra[part] - bound) / SAME - 1e-3))
            start = max(start, part)
            start = end if closed and part == parts - 1 else min(start, end if part == parts - 1 else end - 1)
            if prefix[end] - prefix[max(start, 0)] + extra[part] > bound * SAME or start < part:
                return None
            ends.append(start)
        return ends[::-1] if ends[-1] == 0 else None

    low, high = 0, len(sums) - 1
    if fit(float(sums[high])) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fit(float(sums[middle])) is not None else (middle + 1, high)
    found = fit(float(sums[low]))
    return None if found is None else np.array(found)


def _proportional(weights: StageWeights, pp: int, vpp: int, home: int) -> Array | None:
    """The split that would be right if every layer weighed the mean."""
    mean = sum(weights.layers) / len(weights.layers)
    alike = StageWeights((mean,) * len(weights.layers), weights.loss, weights.modules)
    found = _fill(alike, pp, vpp, home, ())
    return None if found is None else np.concatenate([[0], np.cumsum(found[1])])


def _descend(bounds: Array, prefix: Array, extra: Array, pp: int, closed: bool) -> Array:
    """Shifts runs of neighbouring boundaries by one layer while (heaviest rank, sum of squares) falls.

    Few chunks couple their ranks tightly, so there two runs may move at once.
    """
    chunks = len(bounds) - 1
    inner = chunks - 1 - closed
    moves = [
        (first, first + length, step)
        for first in range(1, inner + 1)
        for length in range(1, min(pp, max(2, MOST_RUNS // chunks), inner - first + 1) + 1)
        for step in (-1, 1)
    ]
    shift = np.zeros((len(moves) + 1, chunks + 1), dtype=np.int64)
    for row, (first, end, step) in enumerate(moves):
        shift[row, first:end] = step
    least = np.ones(chunks, dtype=np.int64)
    least[-1] = 0
    if len(shift) ** 2 <= MOST_PAIRS:
        shift = np.concatenate([(shift[:, None] + shift).reshape(-1, chunks + 1), shift[-1:]])
    while True:
        tried = bounds + shift
        legal = (np.diff(tried, axis=1) >= least).all(axis=1)
        work = np.diff(prefix[np.clip(tried, 0, len(prefix) - 1)], axis=1) + extra
        loads = work.reshape(len(tried), -1, pp).sum(axis=1)
        heaviest = np.where(legal, loads.max(axis=1), np.inf)
        squares = np.where(legal, (loads**2).sum(axis=1), np.inf)
        near = heaviest <= heaviest.min() * SAME
        pick = int(np.argmin(np.where(near, squares, np.inf)))
        better = heaviest[pick] < heaviest[-1] / SAME or squares[pick] < squares[-1] / SAME
        if not better:
            return bounds
        bounds = tried[pick]
