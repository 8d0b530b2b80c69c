"""The page of an explanation: reasons with numbers, the nearest layout that fits, and which dial to turn."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, count, figure, gain
from advisor.cli.pages import command_lines
from advisor.cli.pages.estimate import verdict_line
from advisor.cli.pages.parts import (
    SEARCH_SETTINGS,
    candidate_table,
    findings_table,
    inputs_facts,
    request_facts,
)
from advisor.cli.pages.routing import routing_blocks
from advisor.report.answers import Explanation
from advisor.spec.plan import Candidate, Dial, Reason
from advisor.units import gib

MOST_DIALS = 12
NOTHING = 5e-4
"""Change of the step, or GiB, that a page would print as nothing."""


def why_document(found: Explanation, verbose: bool) -> Document:
    """An explanation for people, and its record for machines."""
    record = found.to_dict()
    return Document(tuple(_blocks(found, verbose)), record, record["reasons"], _hints(found))


def _blocks(found: Explanation, verbose: bool) -> Iterator[Block]:
    request = found.request
    yield Line(f"why: {request.model.name} on {count(request.cluster.gpus)} x {request.cluster.gpu.name}", "heading")
    yield verdict_line(found.estimate)
    if verbose:
        yield request_facts(request, without=SEARCH_SETTINGS)
        yield inputs_facts(request)
    if found.reasons:
        columns = (
            Column("of", "name"), Column("name", "name"), Column("reason", "text"), Column("here"), Column("compared"),
            Column("fix", "text"),
        )  # fmt: skip
        yield Table("reasons, weightiest first", columns, tuple(_reason(one) for one in found.reasons))
    rows: list[tuple[str, Candidate]] = []
    nearest = found.nearest if found.changes else None
    for mark, candidate in (("asked", found.estimate.candidate), ("nearest", nearest), ("best", found.best)):
        if candidate is not None:
            rows.append((mark, candidate))
    if rows:
        yield candidate_table("compared", rows)
    yield from routing_blocks(found.estimate.imbalance)
    yield from findings_table(one for one in found.estimate.findings if one.severity != "stop")
    if nearest is not None:
        yield Line(f"nearest that fits: {', '.join(found.changes)}")
    dials = [one for one in found.dials if verbose or _matters(one)][: None if verbose else MOST_DIALS]
    if dials:
        columns = (
            Column("turn", "name"), Column("from", "text"), Column("to", "text"), Column("then", "name"),
            Column("tokens/s/GPU"), Column("frees GiB"),
        )  # fmt: skip
        yield Table("one change at a time, best first", columns, tuple(_dial(one) for one in dials))


def _reason(one: Reason) -> tuple[str, ...]:
    scale, unit = (gib(1.0), " GiB") if one.unit == "bytes" else (1.0, f" {one.unit}" if one.unit else "")
    numbers = [NONE if value is None else f"{figure(value * scale)}{unit}" for value in (one.value, one.reference)]
    return (one.of, one.name, one.message, *numbers, one.fix)


def _matters(one: Dial) -> bool:
    """Whether a dial can be turned and changes the step or the memory by more than rounding."""
    moves = abs(one.gain or 0.0) > NOTHING or abs(gib(one.freed_bytes or 0.0)) > NOTHING
    return one.verdict != "illegal" and (moves or one.gain is None)


def _dial(one: Dial) -> tuple[str, ...]:
    freed = NONE if one.freed_bytes is None else figure(gib(one.freed_bytes))
    return (one.name, one.before, one.after, one.verdict, gain(one.gain), freed)


def _hints(found: Explanation) -> tuple[str, ...]:
    target = (found.nearest if found.changes else None) or found.best
    if target is None:
        return (f"next: {command_lines.plan_on(found.request, 'auto')}",)
    return (f"next: {command_lines.one_layout('estimate', found.request, target)}",)
