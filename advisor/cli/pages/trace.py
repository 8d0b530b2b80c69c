"""The page of traces: mean step, kinds of communication, ranks, kernels, and what a plan or other traces say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.cli.document import Bars, Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, count, figure, percent
from advisor.trace.analysis import Analysis, Figures, Rank, unmarked
from advisor.trace.classes import ClassUse
from advisor.trace.compare import Change, changes
from advisor.trace.record import (
    analysis_record,
    changes_record,
    figures_record,
    hidden_share,
    verdicts_record,
)
from advisor.trace.verdict import KindVerdict, Promise

Judged = tuple[Promise, list[KindVerdict]]

MOST_RANKS = 16
MOST_UNKNOWN = 5
MOST_NAME = 80
KIND_COLUMNS = (
    Column("kind", "name"), Column("ms per step"), Column("hidden ms"), Column("exposed ms"), Column("hidden %"),
    Column("exposed %\nof step"), Column("calls\nper step"),
)  # fmt: skip
STEP_COLUMNS = (
    Column("rank", "name"), Column("step", "name"), Column("step ms"), Column("compute\nms"), Column("exposed\nms"),
    Column("copies\nms"), Column("idle ms"), Column("host bound\nms"), Column("hidden\n%"),
)  # fmt: skip


def trace_document(
    analysis: Analysis, other: Analysis | None, judged: Judged | None, out: Path | None, verbose: bool
) -> Document:
    """An analysis for people, and its record for machines."""
    record: dict[str, Any] = analysis_record(analysis)
    changed = None if other is None else changes(analysis, other)
    if changed is not None and other is not None:
        record["compared"] = {"other": analysis_record(other), "changes": changes_record(changed)}
    if judged is not None:
        record["prediction"] = verdicts_record(*judged, analysis.mean.step_s)
    rows = [{"rank": rank.rank, **figures_record(step)} for rank in analysis.ranks for step in rank.steps]
    return Document(tuple(_blocks(analysis, changed, judged, verbose)), record, rows, tuple(_hints(analysis, out)))


def _blocks(analysis: Analysis, changed: list[Change] | None, judged: Judged | None, verbose: bool) -> Iterator[Block]:
    yield Line(_heading(analysis), "heading")
    yield Line(_verdict(analysis))
    yield _bars(analysis.mean, unmarked(analysis))
    if analysis.mean.kinds:
        yield Table("communication, mean of ranks and steps", KIND_COLUMNS, tuple(_kinds(analysis.mean)))
    if judged is not None:
        yield from _prediction(*judged, analysis.mean.step_s)
    if changed is not None:
        columns = (Column("per step", "name"), Column("here ms"), Column("other ms"), Column("change ms"), Column("x"))
        yield Table("compared", columns, tuple(map(_change, changed)))
    yield from _ranks(analysis, verbose)
    yield from _kernels(analysis, verbose)
    yield from (Line(f"note: {text}") for text in _findings(analysis))


def _heading(analysis: Analysis) -> str:
    ranks, steps = len(analysis.ranks), sum(len(rank.steps) for rank in analysis.ranks)
    world = max((rank.world_size or 0 for rank in analysis.ranks), default=0)
    of = f" (of {count(world)})" if world > ranks else ""
    window = "window" if unmarked(analysis) or analysis.selection != "steps" else "step"
    front = sorted({"GPU" if rank.front_end == "device" else "CPU (gloo)" for rank in analysis.ranks})
    return (
        f"trace: {count(ranks)} rank{'s' * (ranks > 1)}{of}, {count(steps)} {window}{'s' * (steps > 1)}, "
        f"{' and '.join(front)}, selection {analysis.selection}"
    )


def _verdict(analysis: Analysis) -> str:
    mean = analysis.mean
    share = hidden_share(mean)
    if share is None:
        return "no communication in these traces"
    return (
        f"{percent(share)} % of communication is hidden; {figure(1e3 * mean.exposed_s)} ms per step are exposed "
        f"({percent(mean.exposed_s / mean.step_s if mean.step_s else None)} % of the step)"
    )


def _bars(mean: Figures, whole: bool) -> Bars:
    terms = (
        ("compute", mean.compute_s, ""),
        ("exposed communication", mean.exposed_s, f"{figure(1e3 * mean.hidden_s)} ms more are hidden"),
        ("copies", mean.copies_s, ""),
        ("idle", mean.idle_s, f"{figure(1e3 * mean.host_bound_s)} ms of it wait for the host"),
        ("= window" if whole else "= step", mean.step_s, ""),
    )
    rows = tuple((name, 1e3 * seconds, remark) for name, seconds, remark in terms)
    return Bars("mean of ranks and steps", "ms", 1e3 * mean.step_s, rows)


def _kinds(mean: Figures) -> Iterator[tuple[str, ...]]:
    for name, kind in mean.kinds.items():
        yield (
            name, figure(1e3 * kind.communication_s), figure(1e3 * kind.hidden_s), figure(1e3 * kind.exposed_s),
            percent(hidden_share(kind)), percent(kind.exposed_s / mean.step_s if mean.step_s else None),
            count(kind.calls),
        )  # fmt: skip


def _prediction(promise: Promise, found: list[KindVerdict], measured_s: float) -> Iterator[Block]:
    columns = (
        Column("kind", "name"), Column("predicted\nhidden %"), Column("measured\nhidden %"),
        Column("predicted\nexposed ms"), Column("measured\nexposed ms"), Column("verdict", "name"),
        Column("first thing to change", "text"),
    )  # fmt: skip
    rows = tuple(
        (
            one.kind, percent(one.predicted_share), percent(one.measured_share), figure(1e3 * one.predicted_exposed_s),
            figure(1e3 * one.measured_exposed_s), one.verdict or NONE, one.reason,
        )
        for one in found
    )  # fmt: skip
    yield Table(f"prediction of {promise.path.name}, candidate {promise.rank}, beside the measurement", columns, rows)
    ratio = measured_s / promise.step_s if promise.step_s else None
    yield Line(
        f"step: predicted {figure(1e3 * promise.step_s)} ms, measured {figure(1e3 * measured_s)} ms ({figure(ratio)} x)"
    )


def _change(change: Change) -> tuple[str, ...]:
    difference = change.other_s - change.here_s
    sign = "+" if difference > 0 else ""
    return (
        change.name.replace("_", " "), figure(1e3 * change.here_s), figure(1e3 * change.other_s),
        f"{sign}{figure(1e3 * difference)}", figure(change.ratio),
    )  # fmt: skip


def _ranks(analysis: Analysis, verbose: bool) -> Iterator[Block]:
    if verbose:
        rows = [_step(rank, step.name, step) for rank in analysis.ranks for step in rank.steps]
        yield Table("steps", STEP_COLUMNS, tuple(rows))
    if len(analysis.ranks) < 2:
        return
    shown = analysis.ranks if verbose else analysis.ranks[:MOST_RANKS]
    yield Table("ranks, mean step", STEP_COLUMNS, tuple(_step(rank, "mean", rank.mean) for rank in shown))
    if len(shown) < len(analysis.ranks):
        yield Line(f"{count(len(analysis.ranks) - len(shown))} more ranks with --verbose", "dim")
    lengths = {rank.rank: rank.mean.step_s for rank in analysis.ranks}
    longest, shortest = max(lengths, key=lambda rank: lengths[rank]), min(lengths, key=lambda rank: lengths[rank])
    if lengths[longest] > lengths[shortest]:
        yield Line(
            f"steps: longest on rank {longest} ({figure(1e3 * lengths[longest])} ms), "
            f"shortest on rank {shortest} ({figure(1e3 * lengths[shortest])} ms)"
        )
    yield from _skew(analysis)


def _skew(analysis: Analysis) -> Iterator[Block]:
    skew = analysis.skew
    columns = (
        Column("rank", "name"), Column("clock\noffset ms"), Column("spread\nms"), Column("collectives\nmatched"),
        Column("waited\nms"), Column("was last"),
    )  # fmt: skip
    rows = tuple(
        (
            str(number), *(_ms(value) for value in (one.offset_s, one.spread_s)), count(one.matched),
            _ms(one.waited_s), count(one.last),
        )
        for number, one in list(skew.ranks.items())[:MOST_RANKS]
    )  # fmt: skip
    if any(one.matched for one in skew.ranks.values()):
        yield Table("clocks and waiting, from collectives that all ranks end at once", columns, rows)
    if skew.slowest is not None:
        yield Line(f"slowest: rank {skew.slowest}, which the others waited for most often")
        return
    busiest = max(analysis.ranks, key=lambda rank: rank.mean.compute_s)
    yield Line(f"slowest: not known, clocks cannot be tied; rank {busiest.rank} computes longest")


def _ms(seconds: float | None) -> str:
    return NONE if seconds is None else figure(1e3 * seconds)


def _step(rank: Rank, name: str, step: Figures) -> tuple[str, ...]:
    seconds = (step.step_s, step.compute_s, step.exposed_s, step.copies_s, step.idle_s, step.host_bound_s)
    return (str(rank.rank), name, *(figure(1e3 * one) for one in seconds), percent(hidden_share(step)))


def _kernels(analysis: Analysis, verbose: bool) -> Iterator[Block]:
    steps = max(sum(len(rank.steps) for rank in analysis.ranks), 1)
    classes = _added(rank.classes for rank in analysis.ranks)
    if classes:
        columns = (
            Column("class", "name"), Column("role", "name"), Column("calls"), Column("kernel ms\nper rank and step"),
        )  # fmt: skip
        rows = tuple(
            (name, use.role, count(use.calls), figure(use.kernel_ns / 1e6 / steps)) for name, use in classes.items()
        )
        yield Table("kernels by class (sums of durations, not unions)", columns, rows)
    unknown = _added(rank.unknown for rank in analysis.ranks)
    if unknown:
        shown = list(unknown.items())[: None if verbose else MOST_UNKNOWN]
        heads = (Column("unknown kernel, counted as compute", "text"), Column("calls"), Column("ms"))
        cells = tuple((name[:MOST_NAME], count(use.calls), figure(use.kernel_ns / 1e6)) for name, use in shown)
        yield Table(f"kernel names that no rule knows: {count(len(unknown))}", heads, cells)


def _added(of: Iterator[dict[str, ClassUse]]) -> Mapping[str, ClassUse]:
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    roles: dict[str, str] = {}
    for uses in of:
        for name, use in uses.items():
            calls[name] += use.calls
            spent[name] += use.kernel_ns
            roles[name] = use.role
    return {name: ClassUse(roles[name], calls[name], ns) for name, ns in spent.most_common()}


def _findings(analysis: Analysis) -> Iterator[str]:
    """What concerns the files as a whole, then what concerns ranks, each sentence once."""
    yield from analysis.findings
    ranks: dict[str, list[int]] = {}
    for rank in analysis.ranks:
        for text in rank.findings:
            ranks.setdefault(text, []).append(rank.rank)
    for text, numbers in ranks.items():
        several = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
        yield f"rank {', '.join(map(str, numbers[:4]))}{several}: {text}"


def _hints(analysis: Analysis, out: Path | None) -> Iterator[str]:
    if out is not None:
        yield f"open {out} in https://ui.perfetto.dev or chrome://tracing"
    if unmarked(analysis) and analysis.selection == "steps":
        yield "call profiler.step() after every training step, so that steps can be told apart"
