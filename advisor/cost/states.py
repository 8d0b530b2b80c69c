"""Bytes of weights, gradients and optimizer state on one rank, and what the optimizer step and gathers add.

Bytes per local parameter follow Megatron's distributed optimizer: weights and gradient buffers are whole on the rank,
main parameters and moments are sharded over dp * cp / instances (dense) and edp (experts)
(ML:megatron/core/optimizer/distrib_optimizer.py and distributed_data_parallel.py, lines 284-291).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from advisor.cost.params import StageParams, layer_params
from advisor.cost.stages import Stage
from advisor.spec.hardware import BLACKWELL, Cluster
from advisor.spec.layout import Array, Columns, Fold, Fsdp
from advisor.spec.model import Model
from advisor.spec.workload import Workload

MOMENTS = {"adam": 2, "sgd": 1, "muon": 1}
LOW_PRECISION_STATE_BYTES = 8.0
"""Two fp32 moments that TE's FusedAdam makes when they are stored in fp16 or fp8 (optimizers/fused_adam.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Bytes on one rank.

    `step` is transient in the optimizer step, `gather` are unsharded FSDP units, `offloaded` is optimizer state in host
    memory.
    """

    weights: Array
    gradients: Array
    optimizer: Array
    step: Array
    gather: Array
    offloaded: Array

    def fold(self, fold: Fold) -> States:
        """The same bytes of a table with some cells laid out as rows."""
        return States(*(fold(getattr(self, field.name)) for field in fields(self)))


def stored_weight_bytes(workload: Workload, cluster: Cluster) -> tuple[float, float]:
    """Bytes per vocabulary (and norm) parameter, and per linear weight with its cached quantised copies.

    Tensor-scaled fp8 needs a transposed copy on Hopper, whose tensor cores read one orientation only; block-scaled
    formats keep both orientations on every GPU. A forward pass alone needs one.
    """
    precision = workload.precision
    plain = float(precision.param_bytes)
    if not precision.quantised:
        return plain, plain
    copies = float(precision.weight_cache_bytes)
    one_way = precision.name in ("fp8-delayed", "fp8-current") and cluster.gpu.capability_major >= BLACKWELL
    if one_way or workload.mode != "train":
        copies /= 2
    if workload.fp8_params:
        return plain, copies
    return plain, plain if workload.mode == "weights" else plain + copies


def main_param_bytes(workload: Workload, columns: Columns) -> Array:
    """Bytes of the optimizer's own copy of a parameter.

    With reduced moments (precision-aware optimizer) bf16 weights keep only the 16 bits that they lack; fp8 recipes
    other than delayed scaling keep fp32 (optimizer_config.py, lines 407-414). fp32 weights are their own main copy.
    """
    if workload.precision.name == "fp32":
        return np.zeros_like(columns.main_param_bytes)
    remainder = workload.precision.name in ("bf16", "fp8-delayed") and not workload.fp8_params
    if not remainder:
        return columns.main_param_bytes
    return np.where(columns.moment_bytes < 4, np.minimum(columns.main_param_bytes, 2), columns.main_param_bytes)


def shard_sizes(columns: Columns) -> tuple[Array, Array]:
    """Ranks that optimizer state is sharded over: dense, expert (1 without distributed optimizer)."""
    sharded = columns.distributed_optimizer | (columns.fsdp > 0)
    dense = np.where(sharded, np.maximum(columns.dp * columns.cp // columns.optimizer_instances, 1), 1)
    expert = np.where(sharded, np.maximum(columns.edp // columns.optimizer_instances, 1), 1)
    return dense, expert


def states(
    model: Model, cluster: Cluster, workload: Workload, columns: Columns, stage: Stage, *, params: StageParams
) -> States:
    """States of one pipeline rank in training; `params` are its parameter counts."""
    plain, linear = stored_weight_bytes(workload, cluster)
    vocabulary = params.embedding + params.head
    dense_weights = plain * vocabulary + linear * (params.dense - vocabulary)
    expert_weights = linear * params.expert
    dense_shards, expert_shards = shard_sizes(columns)
    split_weights = columns.fsdp >= Fsdp.optim_grads_params
    split_grads = columns.fsdp >= Fsdp.optim_grads
    per_shard = params.dense / dense_shards + params.expert / expert_shards
    state = main_param_bytes(workload, columns) + MOMENTS[workload.optimizer] * columns.moment_bytes
    optimizer = state * per_shard
    if workload.optimizer == "muon":
        # Matrices are dealt out whole: the fullest rank holds the vocabulary, whose optimizer is Adam.
        whole = np.where(dense_shards > 1, vocabulary * (1.0 - 1.0 / dense_shards), 0.0)
        optimizer = optimizer + state * whole + vocabulary * columns.moment_bytes

    def over(split: Array, dense: Array, expert: Array) -> Array:
        return np.where(split, dense / dense_shards + expert / expert_shards, dense + expert)

    precise = columns.moment_bytes < 4
    # Without the precision-aware optimizer reduced gradients are cast to fp32 for their shard.
    cast = np.where((columns.grad_bytes < 4) & ~precise, 4.0, 0.0)
    fp8_or_fp16 = np.where(columns.moment_bytes < 2, LOW_PRECISION_STATE_BYTES, 0.0)
    return States(
        weights=over(split_weights, dense_weights, expert_weights),
        gradients=columns.grad_bytes * over(split_grads, params.dense, params.expert),
        optimizer=(1.0 - columns.optimizer_offload) * optimizer,
        step=(cast + fp8_or_fp16) * per_shard,
        gather=_unsharded_units(model, linear, columns, stage),
        offloaded=columns.optimizer_offload * (optimizer + 4.0 * per_shard),
    )


def _unsharded_units(model: Model, linear: float, columns: Columns, stage: Stage) -> Array:
    """Two whole layers of weights and of gradients beside the shards: Megatron-FSDP keeps one ahead."""
    largest: Array = np.zeros(1)
    for kind, count in zip(model.kinds, stage.layers, strict=True):
        one = layer_params(kind, model, columns)
        largest = np.maximum(largest, np.minimum(count, 1) * (one.dense + one.expert))
    weights = np.where(columns.fsdp >= Fsdp.optim_grads_params, linear, 0.0)
    grads = np.where(columns.fsdp >= Fsdp.optim_grads, columns.grad_bytes, 0)
    unsharded: Array = (weights + grads) * 2 * largest
    return unsharded
