"""Rates and tables that benchmarks give, whatever the device: what `host` and `card` make profiles of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from advisor.cost.profile import COLLECTIVES


def said(bench: Mapping[str, Any]) -> str:
    """The source of everything that the benchmarks gave."""
    return f"advisor measure: {bench['ranks']} ranks x {bench['threads']} threads, torch {bench['torch']}"


def gemm_rate(rows: Sequence[Mapping[str, Any]], ramps: Mapping[str, float] | None = None) -> dict[str, float]:
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


def link_bandwidth(bench: Mapping[str, Any]) -> float:
    """Bytes per second of a long message between two ranks; that of memory where there is one rank."""
    rows = [row for row in bench["collectives"] if row["op"] == "there_and_back"]
    if not rows:
        return float(bench["memory_Bps"])
    longest = max(rows, key=lambda row: row["bytes"])
    return float(2 * longest["bytes"] / longest["s"])


def kernel_tables(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Tables in the form of profiles/kernels: attention by sequence and head size, collectives by ranks and bytes.

    Attention is that of the first format measured.
    """
    rows = [row for row in bench["attention"] if row["dtype"] == bench["attention"][0]["dtype"]]
    dims, seqs = sorted({row["dim"] for row in rows}), sorted({row["seq"] for row in rows})
    by = {(row["dim"], row["seq"]): _attention_flops(row) / row["s"] / 1e12 for row in rows}
    collectives: dict[str, Any] = {}
    for row in sorted(bench["collectives"], key=lambda row: (row["ranks"], row["bytes"])):
        if row["op"] in COLLECTIVES:
            curves = collectives.setdefault(row["op"], {})
            curve = curves.setdefault(str(row["ranks"]), {"bytes": [], "us": []})
            curve["bytes"].append(row["bytes"])
            curve["us"].append(row["s"] * 1e6)
    return {
        "kind": "measured",
        "sources": [said(bench)],
        "link_gbs": link_bandwidth(bench) / 1e9,
        "attention_fwd_tflops": {"head_dims": dims, "seq": seqs, "rate": [[by[d, s] for s in seqs] for d in dims]},
        "collectives_us": collectives,
    }


def _attention_flops(row: Mapping[str, Any]) -> float:
    """Causal work of one forward pass: two products over half of the score matrix."""
    return float(2 * row["heads"] * row["seq"] ** 2 * row["dim"])


def backward_ratio(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of attention's backward pass over those of its forward pass, the median over shapes."""
    return statistics.median(float(row["both_s"] / row["s"]) - 1 for row in rows)


def latency(bench: Mapping[str, Any], default: float) -> float:
    """Seconds of the shortest message between neighbours; `default` where there is one rank."""
    return min((float(row["s"]) / 2 for row in bench["collectives"] if row["op"] == "there_and_back"), default=default)
