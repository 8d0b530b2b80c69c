"""The page of a comparison: an overlap on and off, what it saves beside what was predicted, and every pair of runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Style, Table
from advisor.cli.figures import NONE, figure, gain
from advisor.trial.ab import Sides


def ab_document(record: Mapping[str, Any], folder: str) -> Document:
    """One comparison for people and machines."""
    hints = (f"the records of all runs are in {folder}",)
    return Document(tuple(_blocks(record)), record, _rows(record), hints)


def _rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"pair": number, "on_s": statistics.median(pair["on_s"]), "off_s": statistics.median(pair["off_s"])}
        for number, pair in enumerate(record["pairs"], 1)
    ]


def _blocks(record: Mapping[str, Any]) -> Iterator[Block]:
    style: Style = "good" if record["verdict"] == "confirmed" else "bad"
    also = f" (with it {', '.join(record['also_off'])})" if record["also_off"] else ""
    yield Line(f"{record['flag']} on and off{also}, {len(record['pairs'])} pairs of runs in turn", "heading")
    on = record["on"]["predicted_step_s"]
    saved = NONE if record["saved_s"] is None else f"{_ms(record['saved_s'])} ms"
    between = "" if record["saved_s"] is None else f"{_ms(record['low_s'])} to {_ms(record['high_s'])} ms, 95 %"
    promised = record["predicted_saved_s"]
    facts = [
        ("predicted to save", f"{_ms(promised)} ms", f"{gain(promised / on)} of a step"),
        ("saves", saved, between),
    ]
    hiding = record["hiding"]
    if hiding is not None and hiding["measured_share"] is not None:
        said = NONE if hiding["predicted_share"] is None else f"{100 * hiding['predicted_share']:.0f} % predicted"
        facts.append((f"hidden of {record['kind']}", f"{100 * hiding['measured_share']:.0f} %", said))
    yield Facts("a step", tuple(facts))
    yield Line(f"{record['verdict']}: {record['why']}", style)
    if style == "bad" and hiding is not None and hiding["reason"]:
        yield Line(f"first thing to change: {hiding['reason']}")
    columns = (Column("pair"), Column("on\nmedian s"), Column("off\nmedian s"), Column("difference\nms"))
    rows = tuple(
        (str(row["pair"]), figure(row["on_s"]), figure(row["off_s"]), _ms(row["off_s"] - row["on_s"]))
        for row in _rows(record)
    )
    yield Table("", columns, rows)
    yield from (Line(f"stands in: {words}", "dim") for words in record["stand_ins"])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:+.3g}"


def ab_dry_document(sides: Sides, pairs: int) -> Document:
    """What would be run."""
    names = [sides.on.name, sides.off.name] * pairs
    record = {
        "schema_version": 1,
        "dry_run": True,
        "flag": sides.flag,
        "also_off": list(sides.also),
        "predicted_saved_s": sides.predicted_s,
        "runs": names,
        "jobs": {sides.on.name: sides.on.job, sides.off.name: sides.off.job},
    }
    blocks: list[Block] = [
        Line(f"would run in turn, {pairs} times: {sides.on.name} and, without {sides.flag}, {sides.off.name}"),
        Line(f"{sides.flag} is predicted to save {_ms(sides.predicted_s)} ms of a step"),
        *(Line(f"stands in: {words}", "dim") for words in sides.on.stand_ins),
    ]
    return Document(tuple(blocks), record, [{"run": name} for name in names])
