"""Pages of a calibration: what changed, and what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import count, figure
from advisor.cost.profile import Coefficient, load_profile
from advisor.fit.changed import before
from advisor.fit.network import NetworkCalibration
from advisor.fit.own import Calibration

COLUMNS = (
    Column("coefficient", "name"), Column("was"), Column("is"), Column("kind", "name"), Column("source", "text"),
)  # fmt: skip
COLLECTIVES = (
    Column("collective", "name"), Column("lie", "name"), Column("ranks"), Column("nodes"), Column("sizes"),
    Column("from"), Column("to bytes"), Column("least us"), Column("best GB/s"), Column("log", "text"),
)  # fmt: skip
OUTSIDE = (
    "outside the measured sizes: below the smallest its time holds, above the largest the last slope goes on; other"
    " numbers of ranks or domains take the next smaller curve at equal traffic"
)
"""What a prediction does where nothing was measured (see cost.tables and cost.network)."""


def runs_document(found: Calibration, out: str | None) -> Document:
    """Changed coefficients per GPU, and the error before and after."""
    changed = {gpu: {name: dataclasses.asdict(one) for name, one in of.items()} for gpu, of in found.changed.items()}
    record = {
        "schema_version": 1,
        "runs": found.runs,
        "skipped": [dataclasses.asdict(one) for one in found.skipped],
        "median_abs_error_pct": {"before": found.before_pct, "after": found.after_pct},
        "coefficients": changed,
    }
    rows = [{"gpu": gpu, "name": name, **one} for gpu, of in changed.items() for name, one in of.items()]
    return Document(tuple(_runs(found)), record, rows, (_hint(out),))


def network_document(found: NetworkCalibration, out: str | None) -> Document:
    """Coefficients and curves of a network, with the lines of logs that are not used."""
    tables = [
        {
            "operation": one.operation,
            "lie": lie,
            "ranks": one.ranks,
            "nodes": one.nodes,
            "seconds": {str(size): time for size, time in one.seconds.items()},
            "best_bus_gbs": one.best_Bps / 1e9,
            "source": one.source,
        }
        for lie, of in (("inside", found.inside), ("across", found.across))
        for one in of
    ]
    record = {
        "schema_version": 1,
        "system": found.system,
        "tables": tables,
        "left_out": [dataclasses.asdict(one) for one in found.left_out],
        "notes": list(found.notes),
        "coefficients": {found.gpu: {name: dataclasses.asdict(one) for name, one in found.fitted.items()}},
    }
    rows = [{name: value for name, value in table.items() if name != "seconds"} for table in tables]
    return Document(tuple(_network(found)), record, rows, (_hint(out),))


def _hint(out: str | None) -> str:
    return "keep it: --out mine.yaml" if out is None else f"next: advisor plan --model NAME --gpus N --system {out}"


def _runs(found: Calibration) -> Iterator[Block]:
    yield Line(
        f"{found.runs} runs: median error {found.before_pct:.1f} % before, {found.after_pct:.1f} % after", "heading"
    )
    for gpu, changed in found.changed.items():
        yield _changed(gpu, changed)
    for row in found.skipped:
        yield Line(f"line {row.line} left out: {row.reason}", "dim")


def _network(found: NetworkCalibration) -> Iterator[Block]:
    yield Line(f"network of {found.system}, measured by nccl-tests", "heading")
    rows = []
    for lie, of in (("inside", found.inside), ("across", found.across)):
        for one in of:
            sizes = list(one.seconds)
            shown = (count(len(sizes)), count(sizes[0]), count(sizes[-1]), figure(1e6 * min(one.seconds.values())))
            ranks = (count(one.ranks), count(one.nodes))
            rows.append((one.operation, lie, *ranks, *shown, figure(one.best_Bps / 1e9), one.source))
    yield Table("NVLink domains: inside one, across several", COLLECTIVES, tuple(rows))
    if found.fitted:
        yield _changed(found.gpu, found.fitted)
    for note in found.notes:
        yield Line(note, "dim")
    for line in found.left_out:
        yield Line(f"{line.source} line {line.line} left out: {line.reason}", "dim")
    yield Line(OUTSIDE, "dim")


def _changed(gpu: str, changed: Mapping[str, Coefficient]) -> Table:
    was, rows = load_profile(gpu), []
    for name, one in changed.items():
        old, unit = before(was, name)
        rows.append((name, figure(old.value / unit), figure(one.value / unit), one.kind, one.source))
    return Table(gpu, COLUMNS, tuple(rows))
