"""Memory around the tensors of the model: communication buffers, contexts, graph pools and host RAM."""

from __future__ import annotations

import numpy as np

from advisor.cost.facts import memory_facts
from advisor.cost.states import States, shard_sizes
from advisor.cost.tensors import local
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns, Dispatcher
from advisor.spec.model import ExpertMlp, Model
from advisor.spec.workload import Workload

PRE_HOPPER_WORKSPACE = 0.25
"""torch allocates 8 MiB of cuBLAS workspace before compute capability 9.0 and 32 MiB from it on."""

OVERLAPPED_GEMMS = 8
"""qkv, proj, fc1 and fc2, forward and data gradient; the bulk weight gradients reuse their buffers."""


def workspace_bytes(model: Model, cluster: Cluster, workload: Workload) -> float:
    """Workspaces of cuBLAS that live in the caching allocator for the whole run; grouped GEMMs have their own."""
    facts = memory_facts()
    share = PRE_HOPPER_WORKSPACE if 0 < cluster.gpu.capability_major < 9 else 1.0
    count = facts["workspaces"].value + (
        facts["grouped_workspaces"].value if model.is_moe and workload.grouped_gemm else 0.0
    )
    return facts["workspace_bytes"].value * share * count


def p2p_bytes(model: Model, workload: Workload, columns: Columns) -> Array:
    """Receive buffers of the pipeline: one activation per direction, twice that when sends overlap compute.

    Source: ML:megatron/core/pipeline_parallel/schedules.py, lines 2136-2143.
    """
    at = local(workload, columns)
    one = at.element * model.hidden * model.hyper_connections * at.owned
    return np.where(columns.pp > 1, 2 * np.where(columns.vpp > 1, 1 + columns.overlap_p2p, 1) * one, 0.0)


def nccl_bytes(model: Model, workload: Workload, columns: Columns) -> Array:
    """Communication buffers: NCCL's per communicator of more than one rank, all-to-all channels, registered buffers.

    Tensor-parallel overlap registers one full-sequence activation per overlapped GEMM
    (TE:transformer_engine/pytorch/module/base.py, initialize_ub); the rest is from profiles/memory.yaml.
    """
    facts = memory_facts()
    groups = (columns.tp, columns.cp, columns.pp, columns.dp * columns.cp, columns.ep, columns.edp)
    communicators: Array = np.minimum(columns.tp * columns.cp * columns.pp * columns.dp - 1, 1)
    for size in groups:
        communicators = communicators + np.minimum(size - 1, 1)
    exchange = (
        (columns.ep > 1) & (columns.dispatcher <= Dispatcher.alltoall) & (columns.dispatcher != Dispatcher.allgather)
    )
    peers = np.minimum(columns.ep / facts["nccl_peers"].value, 1.0)
    all_to_all = np.where(exchange, facts["nccl_all_to_all_bytes"].value * peers, 0.0)
    at = local(workload, columns)
    one_gemm = at.element * model.hidden * at.tokens
    overlapped = np.where(columns.tp_overlap & (columns.tp > 1), OVERLAPPED_GEMMS * one_gemm, 0.0)
    return communicators * facts["nccl_communicator_bytes"].value + all_to_all + overlapped


def ep_buffer_bytes(model: Model, cluster: Cluster, workload: Workload, columns: Columns) -> Array:
    """Registered buffers of DeepEP (a fixed size hint) and HybridEP (every token of the NVLink domain, in and out)."""
    if not model.is_moe:
        return np.zeros(1)
    at = local(workload, columns)
    width = max(_routed_width(model, layer.mlp) for layer in model.kinds if isinstance(layer.mlp, ExpertMlp))
    domain = np.minimum(columns.ep * columns.etp, cluster.used_per_domain)
    hybrid = 2 * at.element * width * at.owned * domain
    deep = np.where(columns.ep * columns.etp > 1, memory_facts()["deepep_buffer_bytes"].value, 0.0)
    return np.where(
        columns.dispatcher == Dispatcher.hybridep, hybrid, np.where(columns.dispatcher == Dispatcher.deepep, deep, 0.0)
    )


def _routed_width(model: Model, mlp: ExpertMlp) -> int:
    return mlp.latent or model.hidden


def host_bytes(
    cluster: Cluster, workload: Workload, columns: Columns, state: States | None, activations: Array
) -> Array:
    """Host RAM per node: offloaded optimizer state and activations, a staged checkpoint shard and loader workers.

    A distributed checkpoint stages the optimizer shard of every rank, and its share of the weights
    (ML:megatron/core/dist_checkpointing/strategies/fully_parallel.py).
    """
    facts = memory_facts()
    ranks = min(cluster.system.gpus_per_node, cluster.gpus)
    if state is None:
        return np.zeros(columns.tp.shape)
    dense_shards, _ = shard_sizes(columns)
    staged = state.optimizer / np.maximum(1.0 - columns.optimizer_offload, 1e-9) * (columns.optimizer_offload < 1)
    staged = staged + state.weights / np.maximum(dense_shards, 1)
    workers = facts["loader_workers"].value * facts["loader_worker_bytes"].value
    return ranks * (state.offloaded + activations + staged + workers)
