"""The page of a plan: request, what was searched, the best layouts, where memory goes, what else could be turned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, count, figure, gain
from advisor.cli.pages import command_lines
from advisor.cli.pages.measured import measured_blocks
from advisor.cli.pages.parts import (
    candidate_table,
    experience_line,
    findings_table,
    inputs_facts,
    kinds_line,
    layout_label,
    memory_bars,
    memory_line,
    request_facts,
    step_bars,
)
from advisor.cli.pages.routing import routing_blocks
from advisor.report.answers import Plan
from advisor.search.dials import ALLOWANCES
from advisor.units import gib

MEMORY = "memory-"


def plan_document(plan: Plan, verbose: bool) -> Document:
    """A plan for people, and its record for machines."""
    record = plan.to_dict()
    return Document(tuple(_blocks(plan, verbose)), record, record["candidates"], _hints(plan))


def rejected_lines(rejected: Mapping[str, int]) -> Iterator[Line]:
    """Rejections, most frequent first: what memory does not allow, and what a rule refuses."""
    by_count = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
    memory = [(name.removeprefix(MEMORY), number) for name, number in by_count if name.startswith(MEMORY)]
    rules = [(name, number) for name, number in by_count if not name.startswith(MEMORY)]
    for title, part in (("over the budget, by the term that breaks it", memory), ("against a rule", rules)):
        if part:
            yield Line(f"{title}: {', '.join(f'{name} {count(number)}' for name, number in part)}")


def _blocks(plan: Plan, verbose: bool) -> Iterator[Block]:
    request, best = plan.request, plan.best
    yield Line(f"plan: {request.model.name} on {count(request.cluster.gpus)} x {request.cluster.gpu.name}", "heading")
    yield request_facts(request)
    if verbose:
        yield inputs_facts(request)
    total = sum(plan.rejected.values())
    yield Line(f"searched {count(plan.searched)} layouts x knobs: {count(plan.feasible)} fit, {count(total)} rejected")
    yield from rejected_lines(plan.rejected)
    if best is None:
        yield Line("nothing fits", "bad")
        yield from findings_table(plan.findings)
        yield from _baseline_alone(plan)
        yield from _offers(plan)
        return
    rows = [("✓" if i == 0 else count(one.rank), one) for i, one in enumerate(plan.candidates)]
    if plan.baseline is not None:
        rows.append(("vendor", plan.baseline))
    yield candidate_table(f"best layouts by {request.objective}", rows, marked=0)
    if plan.baseline is not None:
        over = plan.baseline.memory.peak_device_bytes > plan.baseline.memory.budget_bytes
        batch = f"global batch {count(plan.baseline.layout.gbs)}" + ", predicted to be over the budget" * over
        yield Line(f"vendor: {plan.baseline_name}, the vendor's own recipe as a baseline, {batch}", "dim")
    yield memory_bars(best.memory, request.reserve_bytes, best.layout.pp)
    yield memory_line(best.memory)
    if verbose and best.step is not None:
        yield step_bars(best.step)
        yield candidate_table("best of each family", [(count(one.rank), one) for one in plan.families])
    yield experience_line(request)
    yield from routing_blocks(plan.imbalance)
    yield from measured_blocks(plan.measured)
    yield from findings_table(best.findings)
    yield from _offers(plan)
    yield kinds_line(best)


def _baseline_alone(plan: Plan) -> Iterator[Block]:
    if plan.baseline is not None:
        yield candidate_table(f"the vendor's recipe {plan.baseline_name}", [("vendor", plan.baseline)])


def _offers(plan: Plan) -> Iterator[Block]:
    """Knobs that change the mathematics, with what they would bring; the others by name."""
    if plan.offers:
        yield _offered(plan)
    named = {one.allow for one in plan.offers} | plan.request.allow
    if (
        plan.best is not None
        and plan.best.step is not None
        and (rest := [one for one in ALLOWANCES if one not in named])
    ):
        yield Line(
            f"these change the mathematics too, and bring nothing here or are taken already: {', '.join(rest)}", "dim"
        )


def _offered(plan: Plan) -> Table:
    rows = tuple(
        (
            one.allow,
            one.title,
            gain(one.gain),
            NONE if one.freed_bytes is None else figure(gib(one.freed_bytes)),
            "nothing fits" if one.candidate is None else layout_label(one.candidate.layout),
        )
        for one in plan.offers
    )
    columns = (
        Column("--allow", "text"),
        Column("what changes", "text"),
        Column("tokens/s/GPU"),
        Column("frees GiB"),
        Column("best layout with it", "text"),
    )
    return Table("these change the mathematics and are not taken unless allowed", columns, rows)


def _hints(plan: Plan) -> tuple[str, ...]:
    if plan.findings:
        return (f"fix: {', '.join(one.fix for one in plan.findings)}",)
    if plan.best is None:
        offers = [one.allow for one in plan.offers if one.candidate is not None]
        allowed = (f"or let it change the mathematics: --allow {offers[0]}",) if offers else ()
        return (f"next: {command_lines.plan_on(plan.request, 'auto')}", *allowed)
    second = plan.candidates[1] if len(plan.candidates) > 1 else None
    verb, chosen = ("why", second) if second is not None else ("estimate", plan.best)
    return (f"next: {command_lines.one_layout(verb, plan.request, chosen)}",)
