"""A CPU host as a system: ranks stand for GPUs, each with a share of the cores and of the memory, gloo for NVLink."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from advisor.cost.profile import COLLECTIVES
from advisor.trial.measure.rates import backward_ratio, gemm_rate, kernel_tables, latency, link_bandwidth, said

FORMATS = {"fp32": "tf32", "bf16": "bf16"}
WIDTHS = {"fp32": 4.0, "bf16": 2.0}
"""Bytes of an element."""
OPERATIONS_OF_A_LAYER = 60
FRAMEWORK = 2.0
"""What megatron-core's own Python makes of the operations of a layer: 2.1 dense, 2.3 with experts (0.16.1, CPU time of
layers of 32 x 32 over that of the same operations alone)."""
AROUND = f"x {FRAMEWORK:g} for the Python of megatron-core between operations"
FAR = 1e6
KINDS = ("dense", "moe")
# Nothing runs beside the cores that compute, so a transfer on gloo shows in full, whatever overlap is asked for.
EXPOSED = (
    "tp_exposed", "tp_exposed_overlap", "cp_exposed", "ep_exposed", "ep_exposed_overlap", "pp_exposed_overlap",
    "dp_exposed", "dp_no_overlap_factor", "alone_gemm_gain", "alone_memory_gain", "ep_volume_factor",
    "ep_side_messages", "accumulate_experts_fused", "attention_time_factor", "memory_share", "p2p_link_share",
)  # fmt: skip


def host_system(bench: Mapping[str, Any], name: str, memory_bytes: int) -> dict[str, Any]:
    """A whole system file for a host with `memory_bytes` of memory, its own profile included."""
    rates = {fmt: gemm_rate(_of(bench["gemm"], dtype)) for dtype, fmt in FORMATS.items()}
    link_Bps = link_bandwidth(bench)
    system = _system(bench, name, rates, link_Bps, memory_bytes / bench["ranks"] / 2**30)
    return system | {"profile": {"fitted": _fitted(bench, rates), "kernels": _kernels(bench, link_Bps)}}


def bubble_share(ranks: int, cores: float) -> float:
    """Share of the bubble of a pipeline over all ranks that shows on `cores` cores, 1 where every rank has its own.

    While a pipeline fills, 1, 2, ... `ranks` stages work. Waiting takes no core, so time is lost only while fewer than
    `cores` of them work: cores (cores - 1) of the ranks (ranks - 1) that are lost with a core per rank.
    """
    held = min(max(cores, 1.0), float(ranks))
    return held * (held - 1) / (ranks * (ranks - 1)) if ranks > 1 else 1.0


def layer_bytes(row: Mapping[str, Any]) -> float:
    """What cost/elementwise.py counts, forward and backward, for the work of the benchmark `passes`: fused kernels."""
    tokens = WIDTHS[row["dtype"]] * row["tokens"]
    norms = 2 * (2 + 3 + 2 + 4) * tokens * row["hidden"]
    rotary = (2 + 2.5) * tokens * 2 * row["heads"] * row["dim"]
    return float(norms + rotary + (3 + 5) * tokens * row["ffn"])


def _system(
    bench: Mapping[str, Any], name: str, rates: Mapping[str, Mapping[str, float]], link_Bps: float, share_gib: float
) -> dict[str, Any]:
    ranks, source = bench["ranks"], said(bench)
    return {
        "gpu": {
            "name": name,
            "arch": platform.machine(),
            "status": "own",
            "sm_count": bench["threads"],
            "peak_dense_tflops": {fmt: rate["flops"] / 1e12 for fmt, rate in rates.items()},
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
        "notes": ["ranks of a CPU host in place of GPUs", f"rates hold while {ranks} ranks work"],
    }


def _kernels(bench: Mapping[str, Any], link_Bps: float) -> dict[str, Any]:
    """What was measured; collectives of one rank, which none needs, take what the link would."""
    tables = kernel_tables(bench)
    alone = {"2": {"bytes": [1024, 1 << 20], "us": [1.0, 1.0 + (1 << 20) / link_Bps * 1e6]}}
    return tables | {"collectives_us": {op: tables["collectives_us"].get(op, alone) for op in COLLECTIVES}}


def _fitted(bench: Mapping[str, Any], rates: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Coefficients in the form of profiles/fitted, with room for a later fit; those of a format bear its name."""
    source = said(bench)
    operations_s = bench["operation_s"] * OPERATIONS_OF_A_LAYER
    message_s = latency(bench, 1e-5)
    bubble = bubble_share(bench["ranks"], bench["cores"] / bench["threads"])
    pool = "assumed: one pool of cores computes and communicates"
    formats: dict[str, Any] = {}
    for dtype, fmt in FORMATS.items():
        suffix = "" if dtype == "fp32" else f".{fmt}"
        found = _of_format(bench, dtype, rates[fmt])
        formats |= {f"{name}{suffix}": _entry(value, "measured", source) for name, value in found.items()}
        gaps = _gaps({row["experts"]: row["both_s"] for row in _of(bench["overhead"], dtype)})
        formats |= {f"{name}{suffix}": _entry(value, "assumed", f"{source}; {AROUND}") for name, value in gaps.items()}
    return {
        "gemm_tflops": {fmt: _entry(rate["flops"] / 1e12, "measured", source) for fmt, rate in rates.items()},
        "gemm_reference_dim": _entry(FAR, "assumed", "the rate is that of endless sizes"),
        **{f"grouped_{way}": _entry(1.0, "assumed", "experts one after another") for way in ("fwd", "dgrad", "wgrad")},
        **{name: _entry(1.0, "assumed", pool) for name in EXPOSED},
        **formats,
        "attention_ramp_blocks": _entry(0.0, "measured", source),
        "optimizer_bytes_per_param": _entry(bench["optimizer_s"] * bench["memory_Bps"], "measured", source),
        "bubble_factor": {**_entry(bubble, "assumed", "waiting stages leave their core to others"), "high": 1.0},
        **{f"host_{kind}_layer_s": _entry(0.0, "assumed", "nothing runs ahead of what computes") for kind in KINDS},
        **{name: _entry(0.0, "assumed", pool) for name in ("host_sync_s", "host_sync_quantised_s")},
        "chunk_overhead_s": _entry(operations_s / 4, "assumed", "a quarter of a layer's operations"),
        "step_constant_s": _entry(4 * operations_s, "assumed", "optimizer and bookkeeping, four layers' operations"),
        "p2p_latency_s": _entry(message_s, "measured", source),
        "network_latency_s": _entry(message_s, "measured", source),
        "host_memory_Bps": _entry(bench["memory_Bps"] / 8, "assumed", "a CPU has no other memory to offload to"),
    }


def _entry(value: float, kind: str, source: str) -> dict[str, Any]:
    return {"value": float(value), "low": float(value) / 4, "high": float(value) * 4, "kind": kind, "source": source}


def _of(rows: Sequence[Mapping[str, Any]], dtype: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["dtype"] == dtype]


def _of_format(bench: Mapping[str, Any], dtype: str, rate: Mapping[str, float]) -> dict[str, float]:
    """What was measured in one format; adding a gradient to the main one is counted as 8 bytes read and written."""
    (adding,) = (row["element_s"] for row in _of(bench["accumulation"], dtype))
    share = 8.0 / (adding * bench["memory_Bps"])
    attention = _of(bench["attention"], dtype)
    return {
        **{f"gemm_ramp_{axis}": rate[axis] for axis in "mnk"},
        **{f"grouped_{way}_ramp_m": rate["m"] for way in ("fwd", "dgrad", "wgrad")},
        **{f"grouped_ramp_{axis}": rate[axis] for axis in "nk"},
        "accumulate_share": share,
        "accumulate_share_fused": share,
        "attention_backward_ratio": backward_ratio(attention),
        **(
            {} if dtype == "fp32" else {"attention_time_factor": _over_fp32(attention, _of(bench["attention"], "fp32"))}
        ),
        "unfused_factor": _unfused(_of(bench["layer"], dtype), bench["memory_Bps"]),
    }


def _over_fp32(rows: Sequence[Mapping[str, Any]], of_fp32: Sequence[Mapping[str, Any]]) -> float:
    """Forward seconds of attention over those in fp32, which the table holds; the median over common shapes."""
    fp32 = {(row["seq"], row["dim"]): row["s"] for row in of_fp32}
    return statistics.median(float(row["s"] / fp32[row["seq"], row["dim"]]) for row in rows)


def _unfused(rows: Sequence[Mapping[str, Any]], memory_Bps: float) -> float:
    """Multiple of the counted bytes that memory-bound work moves, beyond the smallest row, which is what calls take.

    At least a tenth, where caches hold what layers move.
    """
    small, *others = sorted(rows, key=layer_bytes)
    moved = [(row["both_s"] - small["both_s"]) / (layer_bytes(row) - layer_bytes(small)) for row in others]
    return max(float(statistics.median(moved)) * memory_Bps, 0.1)


def _gaps(seconds: Mapping[int, float]) -> dict[str, float]:
    """Of small layers by experts: what a dense layer, each expert, and the rest of an expert layer take beside work."""
    dense, (few, many) = seconds[0], sorted(experts for experts in seconds if experts)
    each = max(seconds[many] - seconds[few], 0.0) / (many - few)
    rest = max(seconds[few] - dense - few * each, 0.0)
    return {"layer_gap_s": FRAMEWORK * dense, "per_expert_s": FRAMEWORK * each, "expert_layer_gap_s": FRAMEWORK * rest}
