"""The page of an estimate: the verdict, where memory and time of one layout go, and what rules say about it."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Line, Style, Table
from advisor.cli.figures import NONE, count, figure
from advisor.cli.pages import command_lines
from advisor.cli.pages.measured import measured_blocks
from advisor.cli.pages.parts import (
    SEARCH_SETTINGS,
    candidate_table,
    experience_line,
    findings_table,
    inputs_facts,
    kinds_line,
    memory_bars,
    memory_line,
    request_facts,
    step_bars,
)
from advisor.cli.pages.routing import routing_blocks
from advisor.report.answers import Estimate
from advisor.spec.plan import Candidate
from advisor.units import gib


def estimate_document(estimate: Estimate, verbose: bool) -> Document:
    """An estimate for people, and its record for machines."""
    record = estimate.to_dict()
    rows = [record["candidate"]] if record["candidate"] else record["findings"]
    return Document(tuple(_blocks(estimate, verbose)), record, rows, _hints(estimate))


def verdict_line(estimate: Estimate) -> Line:
    """Fits, out of memory or illegal, with the two numbers that decide."""
    found = estimate.candidate
    style: Style = "good" if estimate.verdict == "fits" else "bad"
    if found is None:
        broken = sum(one.severity == "stop" for one in estimate.findings)
        return Line(f"illegal: {count(broken)} rule{'s' if broken != 1 else ''} broken", style)
    peak, budget = gib(found.memory.peak_device_bytes), gib(found.memory.budget_bytes)
    word = "fits" if estimate.verdict == "fits" else "out of memory"
    return Line(
        f"{word}: {figure(peak)} GiB of a budget of {figure(budget)} GiB, worst on stage {found.memory.worst_stage}"
        f" ({found.memory.worst_moment})",
        style,
    )


def _blocks(estimate: Estimate, verbose: bool) -> Iterator[Block]:
    request, found = estimate.request, estimate.candidate
    yield Line(
        f"estimate: {request.model.name} on {count(request.cluster.gpus)} x {request.cluster.gpu.name}", "heading"
    )
    yield verdict_line(estimate)
    yield request_facts(request, without=SEARCH_SETTINGS)
    if verbose:
        yield inputs_facts(request)
    if found is not None:
        yield candidate_table("layout", [("", found)])
        yield memory_bars(found.memory, request.reserve_bytes, found.layout.pp)
        yield memory_line(found.memory)
        yield from _moments(found) if verbose else ()
        if found.step is not None:
            yield step_bars(found.step)
            yield experience_line(request)
    yield from routing_blocks(estimate.imbalance)
    yield from measured_blocks(estimate.measured)
    yield from findings_table(estimate.findings)
    if found is not None:
        yield kinds_line(found)


def _moments(found: Candidate) -> Iterator[Block]:
    """Peak of every representative stage at every moment."""
    moments = [
        name for name in dict.fromkeys(name for stage in found.memory.stages for name in stage) if name != "rank"
    ]
    columns = (Column("stage"), *(Column(moment.replace("_", "\n")) for moment in moments))
    rows = []
    for index, stage in enumerate(found.memory.stages):
        peaks = (figure(gib(stage[moment])) if moment in stage else NONE for moment in moments)
        rows.append((count(stage.get("rank", index)), *peaks))
    if rows:
        yield Table("peak GiB by stage and moment", columns, tuple(rows))


def _hints(estimate: Estimate) -> tuple[str, ...]:
    named = estimate.request.settings["model"].origin != "megatron arguments"
    trains = estimate.request.workload.mode == "train"
    if estimate.candidate is None or estimate.verdict == "fits" or not named or not trains:
        return ()
    return (f"next: {command_lines.one_layout('why', estimate.request, estimate.candidate)}",)
