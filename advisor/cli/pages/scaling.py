"""The page of a scaling curve: the best layout per GPU count, and where efficiency goes."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, count, figure, percent
from advisor.cli.pages import command_lines
from advisor.cli.pages.parts import layout_label, request_facts
from advisor.report.answers import Scaling
from advisor.spec.plan import ScalingPoint
from advisor.units import gib

COLUMNS = (
    Column("GPUs"),
    Column("GBS"),
    Column("layout", "text"),
    Column("MBS"),
    Column("peak\nGiB"),
    Column("step s"),
    Column("tokens/s\nper GPU"),
    Column("tokens/s"),
    Column("MFU\n%"),
    Column("efficiency\n%"),
    Column("changed", "text"),
    Column("term that grew\n(points of the step)", "text"),
)


def scaling_document(scaling: Scaling) -> Document:
    """A scaling curve for people, and its record for machines."""
    record = scaling.to_dict()
    fitting = [point for point in scaling.points if point.candidate]
    hints = (f"next: {command_lines.plan_on(scaling.request, fitting[-1].gpus, fitting[-1].gbs)}",) if fitting else ()
    return Document(tuple(_blocks(scaling)), record, record["points"], hints)


def _blocks(scaling: Scaling) -> Iterator[Block]:
    counts = ", ".join(count(point.gpus) for point in scaling.points)
    yield Line(f"scaling: {scaling.request.model.name} on {counts} GPUs, global batch {scaling.batch_rule}", "heading")
    yield request_facts(scaling.request)
    yield Table("best layout per count", COLUMNS, tuple(_row(point) for point in scaling.points))


def _row(point: ScalingPoint) -> tuple[str, ...]:
    start = (count(point.gpus), count(point.gbs))
    found = point.candidate
    if found is None or found.step is None:
        return (*start, "nothing fits", *(NONE,) * 9)
    grown = NONE if point.grown_share is None else f"{point.grown_term} +{percent(point.grown_share)}"
    return (
        *start,
        layout_label(found.layout),
        count(found.layout.mbs),
        figure(gib(found.memory.peak_device_bytes)),
        figure(found.step.step_s),
        figure(found.step.tokens_per_s_per_gpu),
        figure(found.step.tokens_per_s_per_gpu * point.gpus),
        percent(found.step.mfu),
        percent(point.efficiency),
        ", ".join(point.changed) or NONE,
        grown,
    )
