"""Buckets of data-parallel traffic: what another size than the framework's own moves in a step.

Megatron cuts gradients and parameters into buckets only where their traffic ends the step: on the first chunk of the
first pipeline rank, while the gradient reduction overlaps (ML:megatron/core/distributed/distributed_data_parallel.py,
`disable_bucketing or pp_rank > 0`). A bucket closes with the parameter that fills it, so that it holds one matrix at
least; experts have buckets of their own (param_and_grad_buffer.py). Many buckets pay the latency of a collective each;
of few, the last one reduced and the first one gathered have nothing left to hide behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.cost import comm
from advisor.cost.elementwise import ZERO
from advisor.cost.flops import local_gemms
from advisor.cost.hiding import Exchange
from advisor.cost.params import ceil_div, stage_params
from advisor.cost.placement import Span
from advisor.cost.setting import Setting
from advisor.cost.stages import first_chunk
from advisor.spec.layout import Array, Fsdp
from advisor.spec.model import ExpertMlp

BRIDGE_BUCKET = 128 * 1024 * 1024
"""Parameters per bucket that Megatron-Bridge's CommOverlapConfig sets."""
TRIED_BUCKETS = (10_000_000, 40_000_000, 400_000_000)
"""Parameters per bucket that are priced beside the framework's own."""
CORE_BUCKET, CORE_BUCKET_PER_RANK = 40_000_000, 1_000_000
"""Parameters per bucket that megatron-core takes, at least, and for every data-parallel rank."""


@dataclass(frozen=True, slots=True, eq=False)
class _Buffer:
    """Parameters that share buckets, and the ranks that reduce them.

    `held` are all of a rank, `layers` those of its layers in so many `matrices`; `overshoot` is by how much the matrix
    that fills a bucket goes beyond its size, on average; `ends` counts vocabulary matrices of `end` parameters each.
    """

    held: Array
    layers: Array
    matrices: Array
    overshoot: Array
    ends: Array
    end: Array
    span: Span

    def buckets(self, size: Array) -> Array:
        """Buckets of `size` parameters, 1 at least; a vocabulary matrix fills one, or as much of one as it is."""
        of_layers = np.minimum(self.layers / (size + self.overshoot), self.matrices)
        found: Array = np.maximum(np.ceil(of_layers + self.ends * np.minimum(self.end / size, 1.0)), 1.0)
        return found

    def last(self, number: Array) -> Array:
        """Parameters of the bucket that is reduced last and gathered first, of `number`: that of the embedding."""
        return np.maximum(self.held / number, np.where(self.ends > 0, self.end, 0.0))


def framework_bucket(setting: Setting) -> Array:
    """Parameters per bucket when nobody says: megatron-core's rule under Megatron-LM, else Bridge's constant."""
    columns = setting.columns
    core = np.maximum(CORE_BUCKET, CORE_BUCKET_PER_RANK * columns.dp * columns.cp)
    return core if setting.workload.software == "megatron-lm" else np.full_like(core, BRIDGE_BUCKET)


def bucket_counts(setting: Setting, size: Array) -> tuple[Array, Array]:
    """Buckets of the first chunk at `size` parameters each: of what is no routed expert, and of experts."""
    dense, expert = _buffers(setting)
    return dense.buckets(size), np.where(expert.held > 0, expert.buckets(size), 0.0)


def _buffers(setting: Setting) -> tuple[_Buffer, _Buffer]:
    """What the first chunk holds outside routed experts, and in them; norms and biases fill no bucket."""
    model, workload, columns, spans = setting.model, setting.workload, setting.columns, setting.spans
    chunk = first_chunk(model, columns, workload.mtp_depth)
    held = stage_params(model, workload, columns, chunk)
    sums = {False: [ZERO, ZERO, ZERO], True: [ZERO, ZERO, ZERO]}
    for layer, count in zip(model.kinds, chunk.layers, strict=True):
        for local in local_gemms(layer, model, workload, columns):
            routed = local.gemm.part == "experts"
            number = count
            if routed and isinstance(layer.mlp, ExpertMlp):
                number = count * ceil_div(layer.mlp.experts, columns.ep)
            size = local.inputs * local.outputs
            sums[routed] = [old + number * size**power for power, old in enumerate(sums[routed])]
    ends = np.minimum(held.embedding, 1) + np.minimum(held.head, 1)
    vocabulary = held.embedding + held.head
    return (
        _buffer(held.dense, sums[False], ends, vocabulary / np.maximum(ends, 1), spans.dp_cp),
        _buffer(held.expert, sums[True], ZERO, ZERO, spans.edp),
    )


def _buffer(held: Array, sums: Sequence[Array], ends: Array, end: Array, span: Span) -> _Buffer:
    """A buffer from the number, the sum and the sum of squares of its matrices.

    What fills a bucket is a matrix met in proportion to its size, half of it beyond the bucket's: sum x^2 / (2 sum x).
    """
    number, total, squares = sums
    return _Buffer(held, held - ends * end, number, squares / np.maximum(2 * total, 1.0), ends, end, span)


def bucket_shift(setting: Setting) -> Exchange:
    """Seconds, serial and exposed, by which the bucket size of the workload moves the traffic that ends a step.

    Differences against the framework's own size; 0 where nothing is cut. Of serial time the share `dp_exposed` shows,
    as at the framework's size; of the last bucket reduced and the first one gathered all of it.
    """
    columns = setting.columns
    asked = np.asarray(setting.workload.bucket_size, dtype=np.int64)
    gather, reduce = ZERO, ZERO
    gather_end, reduce_end = ZERO, ZERO
    for buffer in _buffers(setting):
        new, old = buffer.buckets(asked), buffer.buckets(framework_bucket(setting))
        for number, sign in ((new, 1.0), (old, -1.0)):
            gathered, reduced = _traffic_s(buffer, buffer.held / number, setting)
            gather, reduce = gather + sign * number * gathered, reduce + sign * number * reduced
            gathered, reduced = _traffic_s(buffer, buffer.last(number), setting)
            gather_end, reduce_end = gather_end + sign * gathered, reduce_end + sign * reduced
    share = np.minimum(setting.profile.value("dp_exposed"), 1.0)
    cut = columns.overlap_grad_reduce & (columns.fsdp == Fsdp.none)
    gathers = cut & columns.distributed_optimizer & columns.overlap_param_gather
    shown = np.where(gathers, share * gather + (1 - share) * gather_end, 0.0)
    shown = shown + np.where(cut, share * reduce + (1 - share) * reduce_end, 0.0)
    return Exchange(np.where(gathers, gather, 0.0), np.where(cut, reduce, 0.0), shown)


def _traffic_s(buffer: _Buffer, held: Array, setting: Setting) -> tuple[Array, Array]:
    """Seconds to gather and to reduce a bucket of `held` parameters."""
    columns, profile, cluster, span = setting.columns, setting.profile, setting.cluster, buffer.span
    gathered = comm.all_gather(profile, cluster, setting.workload.precision.gather_bytes * held, span)
    scattered = comm.reduce_scatter(profile, cluster, columns.grad_bytes * held, span)
    summed = comm.all_reduce(profile, cluster, columns.grad_bytes * held, span)
    return gathered, np.where(columns.distributed_optimizer, scattered, summed)


def moved(tail: Exchange, shift: Exchange) -> Exchange:
    """The traffic that ends a step with another bucket size: not less than none of it shows, not more than all.

    The first rank ends the backward pass of a pipeline last, so that what its buckets add delays every rank.
    """
    forward, backward = np.maximum(tail.forward + shift.forward, 0.0), np.maximum(tail.backward + shift.backward, 0.0)
    most = np.maximum(forward + backward, tail.exposed)
    return Exchange(forward, backward, np.minimum(np.maximum(tail.exposed + shift.exposed, 0.0), most))
