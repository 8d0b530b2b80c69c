"""The page of a measured host: its rates, and where they were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import count, figure
from advisor.trial.measure import Measured


def measure_document(measured: Measured, paths: Mapping[str, Path], by_name: bool) -> Document:
    """Rates for people, all that was measured for machines; `by_name` says that plans find the files by name."""
    record = {
        "schema_version": 1,
        "name": measured.name,
        "files": {what: str(path) for what, path in paths.items()},
        "bench": measured.bench,
    }
    system = measured.name if by_name else str(paths["system"])
    first = "" if by_name else f"ADVISOR_PROFILES={paths['kernels'].parents[1]} "
    ranks = measured.bench["ranks"]
    hint = f"next: {first}advisor plan --system {system} --gpus {ranks} --model ... --out plan.json"
    rows = [{"what": "gemm", **row} for row in measured.bench["gemm"]]
    return Document(tuple(_blocks(measured, paths)), record, rows, (hint,))


def _blocks(measured: Measured, paths: Mapping[str, Path]) -> Iterator[Block]:
    bench, gpu = measured.bench, measured.system["gpu"]
    yield Line(f"measure: {measured.name}, {bench['ranks']} ranks x {bench['threads']} threads", "heading")
    peaks = gpu["peak_dense_tflops"]
    yield Facts(
        "one rank, all at work",
        (
            ("fp32 GEMM", f"{figure(1e3 * peaks['tf32'])} GFLOP/s", "of endless sizes"),
            ("bf16 GEMM", f"{figure(1e3 * peaks['bf16'])} GFLOP/s", "of endless sizes"),
            ("memory", f"{figure(gpu['hbm']['bandwidth_gbs'])} GB/s", "adding two vectors"),
            ("message", f"{figure(gpu['nvlink']['uni_gbs'])} GB/s", "between two ranks"),
            ("operation", f"{figure(1e6 * bench['operation_s'])} us", "forward and backward of almost nothing"),
            ("memory size", f"{figure(gpu['hbm']['usable_gib_torch'])} GiB", "share of a rank"),
        ),
    )
    if bench["collectives"]:
        columns = (Column("collective", "name"), Column("ranks"), Column("bytes"), Column("us"))
        rows = tuple(
            (row["op"], count(row["ranks"]), count(row["bytes"]), figure(1e6 * row["s"]))
            for row in sorted(bench["collectives"], key=lambda row: (row["op"], row["ranks"], row["bytes"]))
        )
        yield Table("", columns, rows)
    yield Facts("written", tuple((what, str(path), "") for what, path in paths.items()))
