"""Prints what isolated kernel measurements say about the ramp and dispatch coefficients of profiles/fitted.

    python profiles/scripts/ramps.py FOLDER

FOLDER holds measured_points.csv as for condense.py. A ramp costs a fixed number of rows, columns and inner steps:
rate = top / (1 + m0/m + n0/n + k0/k). DeepEP: bytes of distinct copies over the slope of time between the two largest
token counts, and the time left at none.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from condense import rows_of

Array = np.ndarray[Any, np.dtype[np.float64]]
LINK_GBS = {"H100-SXM-80GB": 450, "H200-SXM-141GB": 450, "B200-SXM": 900, "B300-SXM": 900, "GB200": 900, "GB300": 900}


def columns(rows: list[dict[str, Any]], names: str) -> list[Array]:
    """Parameters of the rows as arrays, and the measured value last."""
    out = [np.array([float(row["params"][name]) for row in rows]) for name in names.split()]
    return [*out, np.array([float(row["value"]) for row in rows])]


def ramp(m: Array, n: Array, k: Array, rate: Array, steps: tuple[range, range, range]) -> str:
    """Best (m0, n0, k0) of a grid by median error; the top rate follows from the median."""
    best = (np.inf, 0.0, (0, 0, 0))
    for point in itertools.product(*steps):
        share = 1 / (1 + point[0] / m + point[1] / n + point[2] / k)
        top = float(np.median(rate / share))
        best = min(best, (float(np.median(abs(top * share / rate - 1))), top, point))
    return f"top {best[1]:.0f} TFLOP/s, m0 n0 k0 = {best[2]}, median error {100 * best[0]:.1f} %"


def gemms(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Dense bf16 GEMM by GPU and grouped GEMM by direction."""
    coarse = range(0, 321, 40)
    for gpu in LINK_GBS:
        some = [r for r in rows if r["gpu"] == gpu and r["op"] == "gemm_fwd" and r["params"]["dtype"] == "bfloat16"]
        yield f"dense {gpu}: {ramp(*columns(some, 'm n k'), (coarse, coarse, coarse))}"
    for direction in ("fwd", "dgrad", "wgrad"):
        some = [r for r in rows if r["op"] == f"grouped_gemm_{direction}"]
        steps = (range(0, 601, 20), range(200, 201), range(200, 201))
        yield f"grouped {direction} (n0 = k0 = 200 given): {ramp(*columns(some, 'm_per_group n k'), steps)}"


def distinct(experts: int, topk: int, units: int) -> float:
    """Expected distinct units that topk of `experts` experts lie on."""
    miss = np.prod([(experts - experts / units - j) / (experts - j) for j in range(topk)])
    return float(units * (1 - miss))


def deepep(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Bandwidth and latency of the bf16 combine inside one domain (24 SMs, hidden 7168, 256 experts, top-8)."""
    for gpu, link in LINK_GBS.items():
        us = {
            int(row["params"]["tokens_per_rank"]): float(row["value"])
            for row in rows
            if row["gpu"] == gpu and row["op"] == "deepep_combine"
            and {"nodes": "1", "sms": "24", "hidden": "7168", "experts": "256"}.items() <= row["params"].items()
        }  # fmt: skip
        ranks = 4 if gpu.startswith("GB") else 8
        slope = (us[16384] - us[4096]) / 12288
        copies = distinct(256, 8, ranks) * (ranks - 1) / ranks * 2 * 7168
        yield f"DeepEP {gpu}: {copies / slope / 1e3 / link:.2f} of the link, {us[4096] - 4096 * slope:.0f} us"


def main() -> None:
    """Prints all fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    rows = rows_of(parser.parse_args().folder / "measured_points.csv")
    sys.stdout.writelines(f"{line}\n" for line in (*gemms(rows), *deepep(rows)))


if __name__ == "__main__":
    main()
