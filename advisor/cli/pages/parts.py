"""Parts that several pages share: the request, candidates as a table, memory and step as bars, kinds of numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from advisor.cli.document import Bars, Block, Column, Facts, Line, Table
from advisor.cli.figures import NONE, count, figure, percent
from advisor.search.dials import knob_words
from advisor.search.request import Request
from advisor.spec.layout import Knobs, Layout
from advisor.spec.plan import Candidate, Finding, MemoryEstimate, StepEstimate, Term
from advisor.units import gib

DIALS = ("tp", "pp", "vpp", "cp", "ep", "etp")
CANDIDATE_COLUMNS = (
    Column("", "name"),
    Column("layout", "name"),
    Column("MBS"),
    Column("recompute", "text"),
    Column("dispatcher", "text"),
    Column("other knobs", "text"),
    Column("peak\nGiB"),
    Column("free\n%"),
    Column("step s\n(80 %)"),
    Column("tokens/s\n/GPU"),
    Column("TFLOP/s\n/GPU"),
    Column("MFU\n%"),
    Column("exposed\n%"),
    Column("bubble\n%"),
)


def request_facts(request: Request, extra: Mapping[str, tuple[str, str]] | None = None) -> Facts:
    """The request as resolved: every setting with its value and where it comes from."""
    rows = []
    for name, setting in request.settings.items():
        value = setting.value
        shown = count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
        if shown:
            rows.append((name, shown, f"{setting.origin}: {setting.note}" if setting.note else setting.origin))
    rows += [(name, value, remark) for name, (value, remark) in (extra or {}).items()]
    return Facts("request", tuple(rows))


def layout_label(layout: Layout) -> str:
    """TP2 PP4 VPP2 EP8 DP16: sizes of 1 are left out, except TP, PP and DP."""
    shown = [
        f"{name.upper()}{getattr(layout, name)}" for name in DIALS if name in {"tp", "pp"} or _above_one(layout, name)
    ]
    return " ".join([*shown, f"DP{layout.dp}"])


def _above_one(layout: Layout, name: str) -> bool:
    return bool(getattr(layout, name) > 1)


def other_knobs(candidate: Candidate) -> str:
    """Knobs that are not at their default, without recompute and dispatcher, which have columns of their own."""
    usual = knob_words(Knobs())
    found = []
    for name, value in knob_words(candidate.knobs).items():
        if name in {"recompute", "dispatcher"} or value == usual[name]:
            continue
        plain = name.replace("_", "-")
        found.append(plain if value is True else f"no {plain}" if value is False else f"{plain}={value}")
    return ", ".join(found) or NONE


def candidate_row(candidate: Candidate, mark: str) -> tuple[str, ...]:
    """Cells of one candidate under `CANDIDATE_COLUMNS`."""
    memory, step = candidate.memory, candidate.step
    words = knob_words(candidate.knobs)
    free = (memory.budget_bytes - memory.peak_device_bytes) / memory.budget_bytes
    cells = [
        mark,
        layout_label(candidate.layout),
        count(candidate.layout.mbs),
        "+".join(words["recompute"]) or NONE,
        NONE if words["dispatcher"] == "none" else words["dispatcher"],
        other_knobs(candidate),
        figure(gib(memory.peak_device_bytes)),
        percent(free),
    ]
    return (*cells, *(_step_cells(step) if step else (NONE,) * 6))


def _step_cells(step: StepEstimate) -> tuple[str, ...]:
    return (
        f"{figure(step.step_s)} ({figure(step.low_s)}-{figure(step.high_s)})",
        figure(step.tokens_per_s_per_gpu),
        figure(step.tflops_per_gpu),
        percent(step.mfu),
        percent(sum(step.exposed_s.values()) / step.step_s),
        percent(step.bubble_s / step.step_s),
    )


def candidate_table(
    title: str,
    rows: Sequence[tuple[str, Candidate]],
    marked: int | None = None,
    columns: Sequence[Column] = CANDIDATE_COLUMNS,
) -> Table:
    """Candidates under each other; the column of other knobs is left out when no row needs it."""
    cells = [candidate_row(candidate, mark) for mark, candidate in rows]
    empty = {i for i, column in enumerate(columns) if column.holds == "text" and all(row[i] == NONE for row in cells)}
    return Table(
        title,
        tuple(column for i, column in enumerate(columns) if i not in empty),
        tuple(tuple(cell for i, cell in enumerate(row) if i not in empty) for row in cells),
        marked,
    )


def memory_bars(memory: MemoryEstimate, reserve_bytes: float, stages: int) -> Bars:
    """Where the memory of the worst stage goes at its worst moment, with the headroom and what is left."""
    rows: list[tuple[str, float, str]] = [
        (name, gib(term.value), term.kind) for name, term in memory.terms.items() if term.value
    ]
    rows.append(
        (
            "= peak on the device",
            gib(memory.peak_device_bytes),
            f"{figure(gib(memory.peak_allocated_bytes))} allocated by torch",
        )
    )
    if reserve_bytes:
        rows.append(("headroom", gib(reserve_bytes), "asked for"))
    left = memory.budget_bytes - memory.peak_device_bytes
    rows.append(("free", gib(left), "left") if left >= 0 else ("missing", gib(-left), "over the budget"))
    title = f"memory: worst stage {memory.worst_stage} (of 0 to {stages - 1}), worst moment: {memory.worst_moment}"
    return Bars(title, "GiB", gib(memory.budget_bytes + reserve_bytes), tuple(rows))


def memory_line(memory: MemoryEstimate) -> Line:
    """Host memory and the padded vocabulary."""
    host, vocab = figure(gib(memory.host_bytes)), count(memory.padded_vocab)
    return Line(f"host memory {host} GiB per node · vocabulary padded to {vocab}")


def step_bars(step: StepEstimate) -> Bars:
    """Where the time of a step goes; the terms sum to it."""
    rows = [
        (name, term.value, f"{percent(term.value / step.step_s)} %  {term.kind}")
        for name, term in step.terms.items()
        if term.value
    ]
    rows.append(("= step", step.step_s, f"80 % interval {figure(step.low_s)} - {figure(step.high_s)} s"))
    return Bars("time of a step", "s", step.step_s, tuple(rows))


def kinds_line(candidate: Candidate) -> Line:
    """How much of the memory and of the step rests on which kind of number."""
    parts = [f"memory {_by_kind(candidate.memory.terms)}"]
    if candidate.step:
        parts.append(f"step {_by_kind(candidate.step.terms)}")
    return Line(f"kinds of numbers: {' · '.join(parts)}", "dim")


def _by_kind(terms: Mapping[str, Term]) -> str:
    sums: dict[str, float] = defaultdict(float)
    for term in terms.values():
        sums[term.kind] += term.value
    total = sum(sums.values()) or 1.0
    return ", ".join(f"{percent(value / total)} % {kind}" for kind, value in sorted(sums.items()) if value)


def findings_table(findings: Iterable[Finding]) -> tuple[Block, ...]:
    """Findings with severity, sentence and fix; nothing when there are none."""
    rows = tuple((one.severity, one.rule, one.message, one.fix) for one in findings)
    columns = (Column("severity", "name"), Column("rule", "name"), Column("finding", "text"), Column("fix", "text"))
    return (Table("findings", columns, rows),) if rows else ()
