"""A CPU host as a system: ranks stand for GPUs, each with a share of the cores and of the memory, gloo for NVLink."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping
from typing import Any

from advisor.cost.profile import COLLECTIVES
from advisor.trial.measure.rates import backward_ratio, gemm_rate, kernel_tables, latency, link_bandwidth, said

FORMATS = {"fp32": "tf32", "bf16": "bf16"}
OPERATIONS_OF_A_LAYER = 60
OPERATIONS_AROUND = 200
"""Of megatron-core beside the kernels of a dense layer that are timed: 600 calls in a trace, three an operation."""
FAR = 1e6
# Nothing runs beside the cores that compute, so a transfer on gloo shows in full, whatever overlap is asked for.
EXPOSED = (
    "tp_exposed", "tp_exposed_overlap", "cp_exposed", "ep_exposed", "ep_exposed_overlap", "pp_exposed_overlap",
    "dp_exposed", "dp_no_overlap_factor", "alone_gemm_gain", "alone_memory_gain", "ep_volume_factor",
    "attention_time_factor", "accumulate_share", "memory_share", "p2p_link_share",
)  # fmt: skip


def host_system(bench: Mapping[str, Any], name: str, memory_bytes: int) -> dict[str, Any]:
    """A whole system file for a host with `memory_bytes` of memory, its own profile included."""
    ramps = gemm_rate([row for row in bench["gemm"] if row["dtype"] == "fp32"])
    rates = {
        fmt: gemm_rate([row for row in bench["gemm"] if row["dtype"] == dtype], ramps)["flops"]
        for dtype, fmt in FORMATS.items()
    }
    link_Bps = link_bandwidth(bench)
    system = _system(bench, name, rates, link_Bps, memory_bytes / bench["ranks"] / 2**30)
    return system | {"profile": {"fitted": _fitted(bench, rates, ramps), "kernels": _kernels(bench, link_Bps)}}


def bubble_share(ranks: int, cores: float) -> float:
    """Share of the bubble of a pipeline over all ranks that shows on `cores` cores, 1 where every rank has its own.

    While a pipeline fills, 1, 2, ... `ranks` stages work. Waiting takes no core, so time is lost only while fewer than
    `cores` of them work: cores (cores - 1) of the ranks (ranks - 1) that are lost with a core per rank.
    """
    held = min(max(cores, 1.0), float(ranks))
    return held * (held - 1) / (ranks * (ranks - 1)) if ranks > 1 else 1.0


def layer_bytes(row: Mapping[str, Any]) -> float:
    """What cost/elementwise.py counts, forward and backward, for the work of the benchmark `layers`: fused kernels."""
    tokens = 2.0 * row["tokens"]
    norms = 2 * (2 + 3 + 2 + 4) * tokens * row["hidden"]
    rotary = (2 + 2.5) * tokens * 2 * row["heads"] * row["dim"]
    return float(norms + rotary + (3 + 5) * tokens * row["ffn"])


def _system(
    bench: Mapping[str, Any], name: str, rates: Mapping[str, float], link_Bps: float, share_gib: float
) -> dict[str, Any]:
    ranks, source = bench["ranks"], said(bench)
    return {
        "gpu": {
            "name": name,
            "arch": platform.machine(),
            "status": "own",
            "sm_count": bench["threads"],
            "peak_dense_tflops": {fmt: rate / 1e12 for fmt, rate in rates.items()},
            "hbm": {
                "capacity_gb": share_gib,
                "usable_gib_torch": share_gib,
                "bandwidth_gbs": bench["memory_Bps"] / 1e9,
                "usable_kind": "measured",
            },
            "nvlink": {"uni_gbs": link_Bps / 1e9},
            "pcie": {"uni_gbs": link_Bps / 1e9},
            "sources": [source],
        },
        "gpus_per_node": ranks,
        "nvlink_domain": ranks,
        "nvlink_uni_gbs": link_Bps / 1e9,
        "nic_gbps_per_gpu": link_Bps / 1e9 * 8,
        "fabric": "gloo over the loopback",
        "host": f"{bench['cores']} cores, {bench['cores'] / ranks:g} per rank",
        "sources": [source],
        "notes": ["ranks of a CPU host in place of GPUs", f"rates hold while {ranks} ranks work, attention in fp32"],
    }


def _kernels(bench: Mapping[str, Any], link_Bps: float) -> dict[str, Any]:
    """What was measured; collectives of one rank, which none needs, take what the link would."""
    tables = kernel_tables(bench)
    alone = {"2": {"bytes": [1024, 1 << 20], "us": [1.0, 1.0 + (1 << 20) / link_Bps * 1e6]}}
    return tables | {"collectives_us": {op: tables["collectives_us"].get(op, alone) for op in COLLECTIVES}}


def _fitted(bench: Mapping[str, Any], rates: Mapping[str, float], ramps: Mapping[str, float]) -> dict[str, Any]:
    """Coefficients in the form of profiles/fitted, with room for a later fit."""
    source = said(bench)
    layer_s = bench["operation_s"] * OPERATIONS_OF_A_LAYER
    message_s = latency(bench, 1e-5)
    unfused = statistics.median(row["both_s"] * bench["memory_Bps"] / layer_bytes(row) for row in bench["layer"])
    bubble = bubble_share(bench["ranks"], bench["cores"] / bench["threads"])
    assumed = "assumed: one pool of cores computes and communicates"

    def entry(value: float, kind: str, said: str = source) -> dict[str, Any]:
        return {"value": float(value), "low": float(value) / 4, "high": float(value) * 4, "kind": kind, "source": said}

    return {
        "gemm_tflops": {fmt: entry(rate / 1e12, "measured") for fmt, rate in rates.items()},
        "gemm_reference_dim": entry(FAR, "assumed", "the rate is that of endless sizes"),
        **{f"gemm_ramp_{axis}": entry(ramps[axis], "measured") for axis in "mnk"},
        **{f"grouped_{way}": entry(1.0, "assumed", "experts one after another") for way in ("fwd", "dgrad", "wgrad")},
        **{f"grouped_{way}_ramp_m": entry(ramps["m"], "measured") for way in ("fwd", "dgrad", "wgrad")},
        **{f"grouped_ramp_{axis}": entry(ramps[axis], "measured") for axis in "nk"},
        "attention_ramp_blocks": entry(0.0, "measured"),
        "attention_backward_ratio": entry(backward_ratio(bench), "measured"),
        **{name: entry(1.0, "assumed", assumed) for name in EXPOSED},
        "unfused_factor": entry(unfused, "measured"),
        "optimizer_bytes_per_param": entry(bench["optimizer_s"] * bench["memory_Bps"], "measured"),
        "bubble_factor": {**entry(bubble, "assumed", "waiting stages leave their core to others"), "high": 1.0},
        "layer_gap_s": entry(bench["operation_s"] * OPERATIONS_AROUND, "assumed", "views, hooks and graph of a layer"),
        "host_dense_layer_s": entry(layer_s, "measured"),
        "host_moe_layer_s": entry(3 * layer_s, "assumed", "three times a dense layer"),
        "host_sync_s": entry(0.0, "assumed", assumed),
        "per_expert_s": entry(layer_s / 4, "assumed", "a quarter of a layer's operations"),
        "chunk_overhead_s": entry(layer_s / 4, "assumed", "a quarter of a layer's operations"),
        "step_constant_s": entry(4 * layer_s, "assumed", "optimizer and bookkeeping, four layers' operations"),
        "p2p_latency_s": entry(message_s, "measured"),
        "network_latency_s": entry(message_s, "measured"),
        "host_memory_Bps": entry(bench["memory_Bps"] / 8, "assumed", "a CPU has no other memory to offload to"),
    }
