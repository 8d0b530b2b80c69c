"""Condenses raw operator measurements into profiles/kernels/<gpu>.json.

    python profiles/scripts/condense.py FOLDER [--out profiles/kernels]

FOLDER holds measured_points.csv with the columns gpu, op, params (key=value;...), value, unit, source. Kept are the
NCCL tables inside one NVLink domain (microseconds by full-tensor bytes and ranks) and the best causal attention
forward rate by sequence and head dimension over all batch and head counts. GPUs that share silicon with a measured one
get its tables with the link scaled, marked assumed; datasheet.json is the shape of all others.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

MEASURED = {  # name in the raw data: (preset name, NVLink or PCIe GB/s per direction)
    "A100-SXM4-80GB": ("a100-sxm-80gb", 300),
    "H100-SXM-80GB": ("h100-sxm-80gb", 450),
    "H200-SXM-141GB": ("h200-sxm-141gb", 450),
    "B200-SXM": ("b200-sxm-180gb", 900),
    "B300-SXM": ("b300-sxm-270gb", 900),
    "GB200": ("gb200-186gb", 900),
    "GB300": ("gb300-279gb", 900),
    "L40S": ("l40s-48gb", 32),
    "RTX-PRO-6000-Server": ("rtx-pro-6000-96gb", 64),
}
SAME_SILICON = {  # preset name: (measured preset, own link GB/s)
    "a100-sxm-40gb": ("a100-sxm-80gb", 300),
    "a800-sxm-80gb": ("a100-sxm-80gb", 200),
    "h800-sxm-80gb": ("h100-sxm-80gb", 200),
}
OPS = {
    "nccl_all_gather": "all_gather",
    "nccl_reduce_scatter": "reduce_scatter",
    "nccl_all_reduce": "all_reduce",
    "nccl_alltoall": "all_to_all",
}
DATASHEET_LIKE, DATASHEET_PEAK_TFLOPS = "h100-sxm-80gb", 989.4


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of the raw file with `params` taken apart."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["params"] = dict(part.split("=", 1) for part in row["params"].split(";") if "=" in part)
    return rows


def collectives(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """{"all_gather": {"8": {"bytes": [...], "us": [...]}}} of the 16-bit tables inside one node."""
    found: dict[str, dict[int, dict[int, float]]] = {op: defaultdict(dict) for op in OPS.values()}
    for row in rows:
        params = row["params"]
        if row["op"] in OPS and params.get("dtype") == "half" and params["nodes"] == "1":
            found[OPS[row["op"]]][int(params["gpus"])][int(params["bytes"])] = float(row["value"])
    return {
        op: {
            str(ranks): {"bytes": sorted(by_size), "us": [by_size[size] for size in sorted(by_size)]}
            for ranks, by_size in sorted(by_ranks.items())
        }
        for op, by_ranks in found.items()
    }


def attention(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Best forward TFLOP/s (causal work) by head dimension and sequence; a hole takes the value of the shorter one."""
    best: dict[tuple[int, int], float] = {}
    for row in rows:
        params = row["params"]
        if row["op"] == "attention_fwd_causal" and params["dtype"] == "bf16":
            key = int(params["head_dim"]), int(params["seq"])
            best[key] = max(best.get(key, 0.0), float(row["value"]))
    dims = sorted({dim for dim, _ in best})
    lengths = sorted({length for _, length in best})
    rate = []
    for dim in dims:
        line: list[float] = []
        for length in lengths:
            line.append(best.get((dim, length), line[-1] if line else best[dim, min(s for d, s in best if d == dim)]))
        rate.append(line)
    return {"head_dims": dims, "seq": lengths, "rate": rate}


def scaled(tables: dict[str, Any], link: float) -> dict[str, Any]:
    """The tables for the same chip behind another link: latency stays, the rest grows with the ratio."""
    slower = tables["link_gbs"] / link
    out: dict[str, Any] = {}
    for op, by_ranks in tables["collectives_us"].items():
        out[op] = {}
        for ranks, curve in by_ranks.items():
            floor = curve["us"][0]
            us = [round(floor + (one - floor) * slower, 2) for one in curve["us"]]
            out[op][ranks] = {"bytes": curve["bytes"], "us": us}
    return {**tables, "collectives_us": out, "link_gbs": link, "kind": "assumed"}


def write(path: Path, tables: dict[str, Any]) -> None:
    """One curve per line, so that a difference is readable."""
    text = json.dumps(tables, indent=1)
    lines, depth = [], 0
    for line in text.splitlines():
        body = line.strip()
        if depth:
            lines[-1] += body + (" " if body.endswith(",") else "")
        else:
            lines.append(line)
        depth += body.count("[") - body.count("]") if '"rate"' not in line and '"sources"' not in line else 0
        depth = max(depth, 0)
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def main() -> None:
    """Writes one file per GPU and datasheet.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("profiles/kernels"))
    args = parser.parse_args()
    by_gpu: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of(args.folder / "measured_points.csv"):
        by_gpu[row["gpu"]].append(row)
    tables: dict[str, dict[str, Any]] = {}
    for raw, (name, link) in MEASURED.items():
        used = [row for row in by_gpu[raw] if row["op"] in OPS or row["op"] == "attention_fwd_causal"]
        tables[name] = {
            "kind": "measured",
            "sources": sorted({row["source"] for row in used if row["params"].get("nodes", "1") == "1"}),
            "link_gbs": link,
            "collectives_us": collectives(by_gpu[raw]),
        }
        if any(row["op"] == "attention_fwd_causal" for row in used):
            tables[name]["attention_fwd_tflops"] = attention(by_gpu[raw])
    for name, (like, link) in SAME_SILICON.items():
        tables[name] = scaled(tables[like], link)
        tables[name]["sources"] = [f"tables of {like}, the link scaled", *tables[like]["sources"]]
    like = tables[DATASHEET_LIKE]
    share = like["attention_fwd_tflops"]
    tables["datasheet"] = {
        "kind": "assumed",
        "sources": [f"shape of {DATASHEET_LIKE}, scaled to the link and the bf16 peak of the GPU"],
        "link_gbs": like["link_gbs"],
        "collectives_us": like["collectives_us"],
        "attention_fwd_peak_share": {
            **share,
            "rate": [[round(one / DATASHEET_PEAK_TFLOPS, 3) for one in line] for line in share["rate"]],
        },
    }
    for name, one in tables.items():
        write(args.out / f"{name}.json", one)


if __name__ == "__main__":
    main()
