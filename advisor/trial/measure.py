"""From micro-benchmarks of this host to a system and a profile that a plan can be made with.

Ranks of a CPU host stand for GPUs: one rank has a share of the cores and of the memory, gloo over the loopback is the
fast domain. Sizes are in the files that a preset and a profile consist of, so that every verb reads them as it reads
its own: `presets/systems/<name>.yaml`, `profiles/kernels/<name>.json`, `profiles/fitted/<name>.yaml`.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from advisor import files
from advisor.cost.profile import COLLECTIVES
from advisor.errors import EnvironmentMissingError
from advisor.trial.outcome import outcome_of
from advisor.trial.processes import Limits, command, environment, run_group

PROGRAM = ("-m", "advisor.trial.worker.bench")
GEMMS = (
    (128, 128, 128), (128, 512, 256), (512, 256, 256), (256, 1024, 256), (256, 256, 1024), (1024, 512, 512),
    (512, 1024, 1024),
)  # fmt: skip
LAYERS = ((128, 256, 8, 32, 768), (256, 256, 8, 32, 768), (512, 256, 8, 32, 768), (256, 512, 8, 64, 1536))
"""Tokens, hidden size, heads, head size, feed-forward size."""
JOB: Mapping[str, Any] = {
    "dtypes": ["fp32", "bf16"],
    "gemm": GEMMS,
    "attention_seq": [128, 256, 512, 1024],
    "attention_dim": [32, 64, 128],
    "attention_heads": 4,
    "pool_elements": 1 << 24,
    "layer": LAYERS,
    "optimizer_parameters": 1 << 21,
    "memory_bytes": 1 << 26,
    "collective_bytes": [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23],
}
FORMATS = {"fp32": "tf32", "bf16": "bf16"}
OPERATIONS_OF_A_LAYER = 60
FAR = 1e6
# Nothing runs beside the cores that compute, so a transfer on gloo shows in full, whatever overlap is asked for.
EXPOSED = (
    "tp_exposed", "tp_exposed_overlap", "cp_exposed", "ep_exposed", "ep_exposed_overlap", "pp_exposed_overlap",
    "dp_exposed", "dp_no_overlap_factor", "alone_gemm_gain", "alone_memory_gain", "ep_volume_factor",
    "attention_time_factor", "accumulate_share", "memory_share", "p2p_link_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """What the benchmarks of `ranks` ranks gave (the file bench.json) and what it becomes, by file."""

    name: str
    bench: Mapping[str, Any]
    system: Mapping[str, Any]
    kernels: Mapping[str, Any]
    fitted: Mapping[str, Any]


def benchmark(ranks: int, threads: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Run the benchmarks with `ranks` ranks; `seconds` is what one kernel is repeated for. Logs stay in `folder`.

    Raises EnvironmentMissingError where they do not come to an end, with the last lines of the log.
    """
    job = {**JOB, "seconds": seconds, "run": {"threads": threads}}
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    words = command(ranks, job_file, folder, PROGRAM)
    ended = run_group(words, folder, environment("cpu", threads), Limits(start_s=3600.0), lambda _: None)
    found = folder / "bench.json"
    if ended.exit_code != 0 or not found.exists():
        failure = outcome_of(ended, folder, ranks).failure
        lines = "" if failure is None else "\n".join((failure.message, *failure.excerpt[-4:]))
        raise EnvironmentMissingError(f"the benchmarks ended early: {lines}", f"logs: {folder}")
    bench: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return bench


def make_profile(bench: Mapping[str, Any], name: str, memory_bytes: int) -> Measured:
    """System and profile of a host with `memory_bytes` of memory from its benchmarks."""
    ramps = _gemm([row for row in bench["gemm"] if row["dtype"] == "fp32"])
    rates = {
        fmt: _gemm([row for row in bench["gemm"] if row["dtype"] == dtype], ramps)["flops"]
        for dtype, fmt in FORMATS.items()
    }
    link_Bps = _link_Bps(bench)
    return Measured(
        name,
        bench,
        _system(bench, name, rates, link_Bps, memory_bytes / bench["ranks"] / 2**30),
        _kernels(bench, link_Bps),
        _fitted(bench, rates, ramps),
    )


def _source(bench: Mapping[str, Any]) -> str:
    return f"advisor measure: {bench['ranks']} ranks x {bench['threads']} threads, torch {bench['torch']}"


def _gemm(rows: Sequence[Mapping[str, Any]], ramps: Mapping[str, float] | None = None) -> dict[str, float]:
    """Rate of endless sizes and the ramps of s = flop / rate x (1 + m0/m + n0/n + k0/k), by least squares.

    The form is that of `Profile.gemm_efficiency`; a ramp below 0 is held at 0 and the rest fitted again. A profile has
    one set of ramps: with `ramps` given, only the rate is found.
    """
    size = np.array([[row["m"], row["n"], row["k"]] for row in rows], dtype=np.float64)
    per_flop = np.array([row["s"] for row in rows]) / (2 * size.prod(axis=1))
    columns = np.hstack([np.ones((len(rows), 1)), 1 / size])
    if ramps is not None:
        shape = columns @ np.array([1.0, *(ramps[axis] for axis in "mnk")])
        return {"flops": float(np.median(shape / per_flop)), **{axis: ramps[axis] for axis in "mnk"}}
    columns = columns / per_flop[:, None]
    kept = [0, 1, 2, 3]
    found = np.zeros(4)
    while True:
        found[:] = 0.0
        found[kept] = np.linalg.lstsq(columns[:, kept], np.ones(len(rows)), rcond=None)[0]
        below = [at for at in kept if at and found[at] < 0]
        if not below:
            break
        kept = [at for at in kept if at not in below]
    base = float(found[0]) if found[0] > 0 else float(per_flop.min())
    return {"flops": float(1 / base), **{axis: float(found[at] / base) for at, axis in enumerate("mnk", start=1)}}


def _link_Bps(bench: Mapping[str, Any]) -> float:
    """Bytes per second of a long message between two ranks; that of memory where there is one rank."""
    rows = [row for row in bench["collectives"] if row["op"] == "there_and_back"]
    if not rows:
        return float(bench["memory_Bps"])
    longest = max(rows, key=lambda row: row["bytes"])
    return float(2 * longest["bytes"] / longest["s"])


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
    ranks, source = bench["ranks"], _source(bench)
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
    """Tables in the form of profiles/kernels; collectives are left to the datasheet where there is one rank."""
    rows = bench["attention"]
    dims, seqs = sorted({row["dim"] for row in rows}), sorted({row["seq"] for row in rows})
    by = {(row["dim"], row["seq"]): _attention_flops(row) / row["s"] / 1e12 for row in rows}
    tables: dict[str, Any] = {
        "kind": "measured",
        "sources": [_source(bench)],
        "link_gbs": link_Bps / 1e9,
        "attention_fwd_tflops": {"head_dims": dims, "seq": seqs, "rate": [[by[d, s] for s in seqs] for d in dims]},
    }
    collectives: dict[str, Any] = {}
    for op in COLLECTIVES:
        curves: dict[str, Any] = {}
        for row in sorted((row for row in bench["collectives"] if row["op"] == op), key=lambda row: row["bytes"]):
            curve = curves.setdefault(str(row["ranks"]), {"bytes": [], "us": []})
            curve["bytes"].append(row["bytes"])
            curve["us"].append(row["s"] * 1e6)
        collectives[op] = curves or {"2": {"bytes": [1024, 1 << 20], "us": [1.0, 1.0 + (1 << 20) / link_Bps * 1e6]}}
    return {**tables, "collectives_us": collectives}


def _attention_flops(row: Mapping[str, Any]) -> float:
    """Causal work of one forward pass: two products over half of the score matrix."""
    return float(2 * row["heads"] * row["seq"] ** 2 * row["dim"])


def _fitted(bench: Mapping[str, Any], rates: Mapping[str, float], ramps: Mapping[str, float]) -> dict[str, Any]:
    """Coefficients in the form of profiles/fitted, with room for a later fit."""
    source = _source(bench)
    ratio = statistics.median((row["both_s"] - row["s"]) / row["s"] for row in bench["attention"])
    layer_s = bench["operation_s"] * OPERATIONS_OF_A_LAYER
    messages = [row for row in bench["collectives"] if row["op"] == "there_and_back"]
    latency = min((row["s"] / 2 for row in messages), default=1e-5)
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
        "attention_backward_ratio": entry(ratio, "measured"),
        **{name: entry(1.0, "assumed", assumed) for name in EXPOSED},
        "unfused_factor": entry(unfused, "measured"),
        "optimizer_bytes_per_param": entry(bench["optimizer_s"] * bench["memory_Bps"], "measured"),
        "bubble_factor": entry(bubble, "assumed", "waiting stages leave their core to others: cores per rank"),
        "host_dense_layer_s": entry(layer_s, "measured"),
        "host_moe_layer_s": entry(3 * layer_s, "assumed", "three times a dense layer"),
        "host_sync_s": entry(0.0, "assumed", assumed),
        "per_expert_s": entry(layer_s / 4, "assumed", "a quarter of a layer's operations"),
        "chunk_overhead_s": entry(layer_s / 4, "assumed", "a quarter of a layer's operations"),
        "step_constant_s": entry(4 * layer_s, "assumed", "optimizer and bookkeeping, four layers' operations"),
        "p2p_latency_s": entry(latency, "measured"),
        "network_latency_s": entry(latency, "measured"),
        "host_memory_Bps": entry(bench["memory_Bps"] / 8, "assumed", "a CPU has no other memory to offload to"),
    }


def write_profile(measured: Measured, folder: Path) -> dict[str, Path]:
    """Write the three files below `folder` (a data folder: presets/, profiles/); their paths by what they hold."""
    head = f"# Written by advisor measure on this host. {measured.system['sources'][0]}\n"
    texts = {
        "system": (f"presets/systems/{measured.name}.yaml", head + yaml.safe_dump(measured.system, sort_keys=False)),
        "kernels": (f"profiles/kernels/{measured.name}.json", json.dumps(measured.kernels, indent=1) + "\n"),
        "fitted": (f"profiles/fitted/{measured.name}.yaml", head + yaml.safe_dump(measured.fitted, sort_keys=False)),
    }
    paths = {}
    for what, (relative, text) in texts.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, text)
        paths[what] = path
    return paths
