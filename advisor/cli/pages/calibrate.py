"""Page of a calibration: coefficients that changed, and the error before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import figure
from advisor.cost.profile import load_profile
from advisor.fit.own import Calibration

COLUMNS = (
    Column("coefficient", "name"), Column("was"), Column("is"), Column("kind", "name"), Column("source", "text"),
)  # fmt: skip


def calibrate_document(found: Calibration) -> Document:
    """Changed coefficients per GPU."""
    changed = {gpu: {name: dataclasses.asdict(one) for name, one in of.items()} for gpu, of in found.changed.items()}
    record = {
        "schema_version": 1,
        "runs": found.runs,
        "skipped": [dataclasses.asdict(one) for one in found.skipped],
        "median_abs_error_pct": {"before": found.before_pct, "after": found.after_pct},
        "coefficients": changed,
    }
    rows = [{"gpu": gpu, "name": name, **one} for gpu, of in changed.items() for name, one in of.items()]
    hint = "use them: put the file of --out at profiles/fitted/<gpu>.yaml of the folder ADVISOR_PROFILES names"
    return Document(tuple(_blocks(found)), record, rows, (hint,))


def _blocks(found: Calibration) -> Iterator[Block]:
    if found.before_pct is not None and found.after_pct is not None:
        yield Line(
            f"{found.runs} runs: median error {found.before_pct:.1f} % before, {found.after_pct:.1f} % after", "heading"
        )
    for gpu, changed in found.changed.items():
        was = load_profile(gpu)
        rows = []
        for name, one in changed.items():
            rate = name.startswith("gemm_tflops.")
            old = was.gemm[name[12:]] if rate else was.coefficients[name]
            unit = 1e12 if rate else 1.0
            rows.append((name, figure(old.value / unit), figure(one.value / unit), one.kind, one.source))
        yield Table(gpu, COLUMNS, tuple(rows))
    for row in found.skipped:
        yield Line(f"line {row.line} left out: {row.reason}", "dim")
