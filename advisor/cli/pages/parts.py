"""Parts that several pages share: the request, candidates as a table, memory and step as bars, kinds of numbers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from advisor.cli.document import Bars, Block, Column, Facts, Line, Table
from advisor.cli.figures import NONE, count, figure, percent
from advisor.search.dials import knob_words, shown_word
from advisor.search.request import Request
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Knobs, Layout
from advisor.spec.plan import Candidate, Finding, MemoryEstimate, StepEstimate, Term
from advisor.spec.workload import Workload
from advisor.units import gib

SEARCH_SETTINGS = ("objective", "top", "fix", "allow", "target_tokens_per_s")
CANDIDATE_COLUMNS = (
    Column("", "name"),
    Column("layout\nexperts", "name"),
    Column("MBS"),
    Column("recompute", "text"),
    Column("dispatcher\nother knobs", "text"),
    Column("peak GiB\nfree %"),
    Column("step s\n(80 %)"),
    Column("tokens/s\nper GPU"),
    Column("TFLOP/s\nMFU %"),
    Column("exposed %\nbubble %"),
)
SHORT = {"optimizer_offload": "offload"}


def request_facts(request: Request, without: Iterable[str] = ()) -> Facts:
    """The request as resolved: every setting (but those `without` a meaning here), its value and its origin."""
    rows = []
    for name, setting in request.settings.items():
        if name in without:
            continue
        shown = _shown(setting.value)
        if shown:
            rows.append((name, shown, f"{setting.origin}: {setting.note}" if setting.note else setting.origin))
    cluster = request.cluster
    rows.append(("memory", f"{figure(cluster.usable_gib)} GiB", f"usable on each GPU, {cluster.usable_kind}"))
    return Facts("request", tuple(rows))


def inputs_facts(request: Request) -> Facts:
    """Everything else that the answer rests on: workload and placement."""
    fields = {**_fields(request.workload), **_fields(request.cluster)}
    origins = {**request.cluster.origin, **{name: setting.origin for name, setting in request.settings.items()}}
    rows = tuple(
        (name, _shown(value), origins.get(name, "default"))
        for name, value in fields.items()
        if isinstance(value, str | int | float) and _shown(value) and name not in {"gpus", "seq_len", "usable_kind"}
    )
    return Facts("all inputs", rows)


def _fields(value: Workload | Cluster) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return count(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return str(value)


def layout_label(layout: Layout) -> str:
    """TP2 PP4 VPP2 EP8 DP16: sizes of 1 are left out, except TP, PP and DP."""
    return " ".join((*_sizes(layout, ("tp", "pp", "vpp", "cp", "ep", "etp")), f"DP{layout.dp}"))


def _layout_lines(layout: Layout) -> str:
    """The grid of the dense part, and below it that of the experts."""
    experts = (*_sizes(layout, ("ep", "etp")), f"EDP{layout.edp}")
    lines = [" ".join((*_sizes(layout, ("tp", "pp", "vpp", "cp")), f"DP{layout.dp}"))]
    return "\n".join([*lines, " ".join(experts)] if layout.ep > 1 or layout.etp > 1 else lines)


def _sizes(layout: Layout, names: Iterable[str]) -> tuple[str, ...]:
    sizes = ((name, getattr(layout, name)) for name in names)
    return tuple(f"{name.upper()}{size}" for name, size in sizes if size > 1 or name in {"tp", "pp"})


def other_knobs(candidate: Candidate) -> str:
    """Knobs that are not at their default, without recompute and dispatcher."""
    usual = knob_words(Knobs())
    found = []
    for name, value in knob_words(candidate.knobs).items():
        if name in {"recompute", "dispatcher"} or value == usual[name]:
            continue
        plain = SHORT.get(name, name).replace("_", "-")
        found.append(plain if value is True else f"no {plain}" if value is False else f"{plain} {shown_word(value)}")
    if candidate.layout.tp > 1 and not candidate.layout.sp:
        found.append("no sp")
    return ", ".join(found)


def candidate_row(candidate: Candidate, mark: str) -> tuple[str, ...]:
    """Cells of one candidate under `CANDIDATE_COLUMNS`, two figures to a cell."""
    memory = candidate.memory
    words = knob_words(candidate.knobs)
    free = (memory.budget_bytes - memory.peak_device_bytes) / memory.budget_bytes
    dispatcher = NONE if words["dispatcher"] == "none" else words["dispatcher"]
    return (
        mark,
        _layout_lines(candidate.layout),
        count(candidate.layout.mbs),
        ", ".join(words["recompute"]) or NONE,
        "\n".join(word for word in (dispatcher, other_knobs(candidate)) if word),
        f"{figure(gib(memory.peak_device_bytes))}\n{percent(free)}",
        *_step_cells(candidate.step),
    )


def _step_cells(step: StepEstimate | None) -> tuple[str, ...]:
    if step is None:
        return (NONE,) * 4
    return (
        f"{figure(step.step_s)}\n{figure(step.low_s)}-{figure(step.high_s)}",
        figure(step.tokens_per_s_per_gpu),
        f"{figure(step.tflops_per_gpu)}\n{percent(step.mfu)}",
        f"{percent(sum(step.exposed_s.values()) / step.step_s)}\n{percent(step.bubble_s / step.step_s)}",
    )


def candidate_table(title: str, rows: Sequence[tuple[str, Candidate]], marked: int | None = None) -> Table:
    """Candidates under each other, each with a mark in front."""
    return Table(title, CANDIDATE_COLUMNS, tuple(candidate_row(candidate, mark) for mark, candidate in rows), marked)


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
    where = f"stage {memory.worst_stage}, the worst of {stages}," if stages > 1 else "the only stage"
    title = f"memory of {where} at its worst moment: {memory.worst_moment}"
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


def experience_line(request: Request) -> Line:
    """How wrong predictions have been on measured runs like this one."""
    from advisor.fit.experience import experience

    return Line(experience(request.model, request.cluster.gpu, request.workload.precision).sentence, "dim")
