"""The page of a measured host: its rates, and where they were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import count, figure


def measure_document(bench: Mapping[str, Any], name: str, path: Path, by_name: bool) -> Document:
    """Rates for people, all that was measured for machines; `by_name` says that plans find the file by name."""
    record = {"schema_version": 1, "name": name, "file": str(path), "bench": bench}
    system, ranks = name if by_name else str(path), bench["ranks"]
    hint = f"next: advisor plan --system {system} --gpus {ranks} --model ... --out plan.json"
    rows = [{"what": "gemm", **row} for row in bench["gemm"]]
    return Document(tuple(_blocks(bench, name, path)), record, rows, (hint,))


def _blocks(bench: Mapping[str, Any], name: str, path: Path) -> Iterator[Block]:
    yield Line(f"measure: {name}, {bench['ranks']} ranks x {bench['threads']} threads on {bench['device']}", "heading")
    messages = [row for row in bench["collectives"] if row["op"] == "there_and_back"]
    longest = max(messages, key=lambda row: row["bytes"], default=None)
    yield Facts(
        "one rank, all at work",
        (
            *((f"{dtype} GEMM", *_fastest(bench, dtype)) for dtype in ("fp32", "bf16")),
            ("memory", f"{figure(bench['memory_Bps'] / 1e9)} GB/s", "adding two vectors"),
            *(
                ()
                if longest is None
                else (("message", f"{figure(2e-9 * longest['bytes'] / longest['s'])} GB/s", "between two ranks"),)
            ),
            ("operation", f"{figure(1e6 * bench['operation_s'])} us", "forward and backward of almost nothing"),
        ),
    )
    if bench["collectives"]:
        columns = (Column("collective", "name"), Column("ranks"), Column("bytes"), Column("us"))
        rows = tuple(
            (row["op"], count(row["ranks"]), count(row["bytes"]), figure(1e6 * row["s"]))
            for row in sorted(bench["collectives"], key=lambda row: (row["op"], row["ranks"], row["bytes"]))
        )
        yield Table("", columns, rows)
    yield Facts("written", (("system", str(path), "with its own profile"),))


def _fastest(bench: Mapping[str, Any], dtype: str) -> tuple[str, str]:
    """The highest rate of a product, and its shape."""
    rows = [row for row in bench["gemm"] if row["dtype"] == dtype]
    best = max(rows, key=_rate)
    return f"{figure(_rate(best) / 1e9)} GFLOP/s", f"{best['m']} x {best['n']} x {best['k']}"


def _rate(row: Mapping[str, Any]) -> float:
    return float(2 * row["m"] * row["n"] * row["k"] / row["s"])
