"""Checkpoints of a plan: bytes, seconds to snapshot, write and load, and how often to save.

What Megatron keeps per parameter (torch_dist with the distributed optimizer): the weights in training precision, the
main parameters and two moments, each once over all ranks (fully_parallel_save). Gradients are not saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.configure.chosen import Chosen
from advisor.configure.facts import ReliabilityFacts
from advisor.cost.goodput import daly_interval
from advisor.cost.params import mtp_params, total_params
from advisor.spec.layout import DTYPE_BYTES
from advisor.spec.load.system import ranks_per_node
from advisor.units import GB, gbs_to_bps, gib

WEIGHT_BYTES = 2
MOMENTS = {"adam": 2, "muon": 1, "sgd": 0}
# Share of the PCIe bandwidth that a copy of many tensors to pinned memory reaches (assumed).
COPY_EFFICIENCY = 0.5
# A write must be over before the next snapshot, and storage has slow moments.
WRITE_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Storage:
    """Bandwidth of shared storage over all nodes and of one node's local drive, bytes per second."""

    write_Bps: float  # noqa: N815 (units in names)
    local_Bps_per_node: float  # noqa: N815 (units in names)
    origin: str


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Sizes in bytes, times in seconds.

    `snapshot_s` stops training in an asynchronous save (copy to host memory), `write_s` in a synchronous one;
    `local_write_s` is a write of every node to its own drive. `host_bytes_per_node` is what a snapshot needs of host
    memory while it is written.
    """

    total_bytes: float
    host_bytes_per_node: float
    snapshot_s: float
    write_s: float
    load_s: float
    local_write_s: float
    local_load_s: float


def nodes_of(chosen: Chosen) -> int:
    """Nodes that the plan occupies."""
    cluster = chosen.cluster
    return math.ceil(cluster.gpus / ranks_per_node(cluster.system, cluster.used_per_domain))


def checkpoint_bytes(chosen: Chosen) -> float:
    """Bytes of one full checkpoint with optimizer state."""
    knobs, workload = chosen.knobs, chosen.workload
    params = total_params(chosen.model) + (mtp_params(chosen.model) if workload.mtp_depth else 0)
    moments = MOMENTS[workload.optimizer] * DTYPE_BYTES[knobs.moment_dtype]
    return float(params * (WEIGHT_BYTES + DTYPE_BYTES[knobs.main_param_dtype] + moments))


def default_storage(facts: ReliabilityFacts, nodes: int, write_gbs: float | None) -> Storage:
    """Storage of a job on `nodes` nodes; `write_gbs` (GB/s of all nodes together) wins over the table."""
    per_node = facts.storage["write_gbs_per_node"]
    local = gbs_to_bps(facts.storage["local_write_gbs_per_node"].value)
    if write_gbs is not None:
        return Storage(gbs_to_bps(write_gbs), local, "given")
    return Storage(gbs_to_bps(per_node.value * nodes), local, f"{per_node.value:g} GB/s per node, {per_node.source}")


def checkpoint_cost(chosen: Chosen, storage: Storage) -> CheckpointCost:
    """What a checkpoint of the plan costs on `storage`; reads are taken to be as fast as writes."""
    nodes = nodes_of(chosen)
    total = checkpoint_bytes(chosen)
    per_rank = total / chosen.cluster.gpus
    copy_Bps = gbs_to_bps(chosen.cluster.gpu.pcie_uni_gbs) * COPY_EFFICIENCY
    write_s = total / storage.write_Bps
    local_s = total / nodes / storage.local_Bps_per_node
    return CheckpointCost(
        total_bytes=total,
        host_bytes_per_node=total / nodes,
        snapshot_s=1.0 + per_rank / copy_Bps,
        write_s=write_s,
        load_s=write_s,
        local_write_s=local_s,
        local_load_s=local_s,
    )


def host_memory_problem(chosen: Chosen, cost: CheckpointCost) -> str:
    """Why a snapshot does not fit host memory, or an empty string (also when the host memory is not known)."""
    host_gib = chosen.cluster.system.host_gib
    needed = gib(chosen.candidate.memory.host_bytes + cost.host_bytes_per_node)
    if host_gib is None or needed <= host_gib:
        return ""
    return (
        f"an asynchronous save keeps {gib(cost.host_bytes_per_node):.0f} GiB per node in host memory beside"
        f" {gib(chosen.candidate.memory.host_bytes):.0f} GiB of the job, and the node has {host_gib:.0f} GiB"
    )


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """Steps and seconds between saves, with the sentence that explains them."""

    steps: int
    seconds: float
    reason: str


def save_interval(mtbf_s: float, stall_s: float, step_s: float, write_s: float = 0.0) -> SaveInterval:
    """The interval that keeps the most work (Young/Daly) in whole steps, never shorter than a write takes.

    `stall_s` is how long a save stops training, `write_s` how long an asynchronous one goes on beside it.
    """
    best = daly_interval(mtbf_s, stall_s)
    floor = WRITE_MARGIN * write_s
    steps = max(1, round(best / step_s), math.ceil(floor / step_s))
    reason = (
        f"Young/Daly: {best:.0f} s = {best / step_s:.0f} steps of {step_s:.3g} s for a stall of {stall_s:.3g} s and"
        f" {mtbf_s / 3600:.3g} h between interruptions"
    )
    if floor > best:
        reason += f"; raised to {WRITE_MARGIN:g} x the {write_s:.0f} s that a write takes"
    return SaveInterval(steps, steps * step_s, reason)


def size_words(cost: CheckpointCost) -> str:
    """Size and speed of a checkpoint in one sentence."""
    return (
        f"{cost.total_bytes / GB:.0f} GB, written in {cost.write_s:.0f} s, snapshot to host memory in"
        f" {cost.snapshot_s:.1f} s"
    )
