"""Page of a check: the verdict, and every finding with where it stands, its fix and its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from advisor.check import Found, Report
from advisor.cli.document import Block, Column, Document, Line, Style, Table

VERDICTS: dict[str, tuple[str, Style]] = {
    "stop": ("the job does not run", "bad"),
    "silent": ("accepted, but not what was asked for", "bad"),
    "slow": ("runs and wastes time", "plain"),
    "info": ("nothing wrong, something worth knowing", "good"),
    "none": ("nothing found", "good"),
}
COLUMNS = (
    Column("severity", "name"), Column("rule", "text"), Column("finding", "text"), Column("fix", "text"),
    Column("where", "text"),
)  # fmt: skip


def document(report: Report) -> Document:
    """The report as a page; `record` is the JSON form {verdict, findings, ...}."""
    record: dict[str, Any] = {
        "verdict": report.verdict,
        "findings": [_record(one) for one in report.findings],
        "target": report.framework,
        "files": [{"file": file, "kind": kind} for file, kind in report.kinds],
    }
    hints = (f"next: advisor rules {report.findings[0].rule}",) if report.findings else ()
    return Document(tuple(_blocks(report)), record, record["findings"], hints)


def _record(one: Found) -> dict[str, Any]:
    found = dataclasses.asdict(one)
    found.pop("stage")
    return found


def _blocks(report: Report) -> Iterator[Block]:
    sentence, style = VERDICTS[report.verdict]
    yield Line(f"{report.verdict}: {sentence}", style)
    kinds = ", ".join(f"{file} ({kind})" for file, kind in report.kinds)
    yield Line(f"read as {report.framework}: {kinds}", "dim")
    if report.findings:
        yield Table("", COLUMNS, tuple(map(_row, report.findings)))


def _row(one: Found) -> tuple[str, ...]:
    where = f"{one.file.rpartition('/')[2]}:{one.line}" if one.line else one.file.rpartition("/")[2]
    return (one.severity, one.rule, one.message, one.fix, where)
