"""The page of an improvement: what runs, what of it is lost, and single changes with gain, memory, risk and edit."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from advisor.check.subject.edits import written
from advisor.check.subject.read import FLAG
from advisor.cli.document import Block, Column, Document, Facts, Line, Style, Table
from advisor.cli.figures import NONE, count, figure, gain, percent
from advisor.cli.improved import Change, Improved
from advisor.cli.pages.improve_record import record
from advisor.cli.pages.parts import layout_label, request_facts
from advisor.cli.pages.prices import reasons, worth
from advisor.configure.resolved import Value
from advisor.search.dials import knob_words, shown_word
from advisor.search.single import SIZES
from advisor.spec.layout import Knobs
from advisor.spec.plan import Candidate
from advisor.units import gib

KINDS = {
    "bridge-python": "Megatron-Bridge in Python", "bridge-overrides": "overrides of Megatron-Bridge",
    "bridge-config": "configuration of Megatron-Bridge", "megatron-args": "flags of Megatron-LM",
    "megatron-yaml": "arguments of Megatron-LM", "sbatch": "Slurm script", "shell": "launch script",
    "environment": "environment", "layout": "layout flags", "plan": "plan of advisor",
}  # fmt: skip
VERDICTS: dict[str, tuple[str, Style]] = {
    "fits": ("fits", "good"),
    "tight": ("fits, but leaves less than the headroom asked for", "plain"),
    "oom": ("out of memory, as predicted", "bad"),
    "illegal": ("illegal", "bad"),
}
HIDDEN = ("objective", "top", "fix", "allow", "target_tokens_per_s", "pipeline_layout", "rank_order", *SIZES, "sp",
          *knob_words(Knobs()))  # fmt: skip
MOST_SHOWN, MOST_OFFERS, MOST_FINDINGS = 10, 6, 8
WORTH = 0.005
"""Gain below which a change is only listed with --verbose."""
ASSUMED = ("assumed", "left to", "common part")
"""How origins begin that nobody stated."""
ALWAYS = "CUDA_DEVICE_MAX_CONNECTIONS"


def improve_document(answer: Improved, verbose: bool) -> Document:
    """An improvement for people, and its record for machines."""
    found = record(answer)
    return Document(tuple(_blocks(answer, verbose)), found, found["kept"], _hints(answer))


def _blocks(answer: Improved, verbose: bool) -> Iterator[Block]:
    subject, request = answer.subject, answer.subject.request
    yield Line(
        f"improve: {request.model.name} on {count(request.cluster.gpus)} x {request.cluster.gpu.name}, from"
        f" {subject.reading.file} ({KINDS[subject.reading.kind]})",
        "heading",
    )
    yield _verdict(answer)
    yield from _measured(answer)
    yield request_facts(request, without=HIDDEN)
    yield _settings(answer)
    yield from _requested(answer, verbose)
    yield from _findings(answer, verbose)
    yield from _remarks(answer)
    yield from _environment(answer, verbose)
    yield from _changes(answer, verbose)
    yield from _ends(answer)


def _verdict(answer: Improved) -> Line:
    now, (word, style) = answer.found.now, VERDICTS[answer.found.verdict]
    if now is None or now.step is None:
        broken = "; ".join(f"{one.rule}: {one.message}" for one in answer.found.findings if one.severity == "stop")
        return Line(f"{word}: {broken}", style)
    lost, step, memory = len(answer.subject.lost), now.step, now.memory
    off = f"; {count(lost)} setting{'s' if lost != 1 else ''} silently off" if lost else ""
    seconds = f"step {figure(step.step_s)} s ({figure(step.low_s)} - {figure(step.high_s)})"
    return Line(
        f"{word}: {_label(answer, now)} MBS{now.layout.mbs}, {seconds}, {figure(step.tokens_per_s_per_gpu)}"
        f" tokens/s/GPU, {figure(gib(memory.peak_device_bytes))} of {figure(gib(memory.budget_bytes))} GiB{off}",
        "bad" if lost else style,
    )


def _label(answer: Improved, one: Candidate) -> str:
    """Sizes of a layout; a dense model has no expert grid."""
    moe = answer.subject.request.model.is_moe
    return layout_label(one.layout if moe else replace(one.layout, ep=1, etp=1))


def _measured(answer: Improved) -> Iterator[Line]:
    seen = answer.observed
    if seen is None:
        return
    steps, peak = seen.steps, seen.peak
    if steps is not None:
        reports = f"{figure(steps.low_s)} - {figure(steps.high_s)} in {count(steps.reports)} reports"
        place = f"{steps.place.file}:{steps.place.line}"
        yield Line(f"measured: step {figure(steps.median_s)} s ({reports}, {place}): predictions are scaled by it")
    if peak is not None:
        size, place = figure(gib(peak.allocated_bytes)), f"{peak.file}:{peak.line}"
        yield Line(f"measured: peak {size} GiB allocated ({place}): predictions are moved by it")
    if seen.steps is None:
        yield Line("the log holds no step times: seconds are predicted, not anchored", "dim")


def _settings(answer: Improved) -> Facts:
    """Sizes and knobs of the job: stated ones by where they stand, the rest by whose default they are."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, setting in answer.subject.sources.items():
        note = f" ({setting.note})" if setting.note else ""
        groups[_short(setting.origin)].append(f"{name} {shown_word(setting.value)}{note}")
    rows = sorted(groups.items(), key=lambda item: item[0].startswith(ASSUMED) or "default" in item[0])
    return Facts(
        "layout and knobs, by where they are said", tuple((where, ", ".join(said), "") for where, said in rows)
    )


def _short(origin: str) -> str:
    """An origin without the name of the recipe, which the request states."""
    return origin.partition(" ")[0] if origin.startswith("recipe ") else origin.partition(": ")[0]


def _shown(value: Value) -> str:
    if value is None:
        return NONE
    return ", ".join(map(str, value)) if isinstance(value, tuple) else shown_word(value)


def _requested(answer: Improved, verbose: bool) -> Iterator[Block]:
    fields = answer.subject.fields if verbose else answer.subject.lost
    if not fields:
        return
    columns = (Column("setting", "name"), Column("requested", "text"), Column("effective", "text"),
               Column("", "name"), Column("why", "text"), Column("source", "text"))  # fmt: skip
    rows = tuple(
        (one.path, "auto" if one.requested is None else _shown(one.requested), _shown(one.effective),
         one.outcome.upper() if one.outcome in ("silent", "stop") else one.outcome, one.reason, one.source)
        for one in fields
    )  # fmt: skip
    yield Table("requested and effective", columns, rows)


def _findings(answer: Improved, verbose: bool) -> Iterator[Block]:
    report = answer.subject.report
    shown = [one for one in report.findings if verbose or one.severity in ("stop", "silent")]
    if not shown:
        return
    columns = (Column("severity", "name"), Column("rule", "text"), Column("finding", "text"), Column("fix", "text"),
               Column("line"))  # fmt: skip
    rows = tuple(
        (one.severity, one.rule, one.message, one.fix, count(one.line) if one.line else NONE)
        for one in (shown if verbose else shown[:MOST_FINDINGS])
    )
    yield Table("what advisor check says", columns, rows)


def _remarks(answer: Improved) -> Iterator[Block]:
    """What the reader of Megatron's arguments had to assume, and what no formula counts."""
    rows = tuple((one.message, one.fix) for one in answer.found.findings if one.rule.startswith("megatron-args."))
    if rows:
        yield Table("assumed while reading", (Column("what", "text"), Column("option", "text")), rows)


def _environment(answer: Improved, verbose: bool) -> Iterator[Block]:
    """Variables that the files set otherwise than the job wants; with `verbose` also those they do not set."""
    subject = answer.subject
    wanted = [one for one in subject.environment if verbose or subject.setup.variable(one.name) or one.name == ALWAYS]
    if not wanted:
        return
    columns = (Column("variable", "name"), Column("now", "text"), Column("wanted", "text"), Column("saves s"),
               Column("80 % interval"), Column("why", "text"))  # fmt: skip
    rows = tuple(
        (one.name, subject.setup.variable(one.name) or "not set", one.value,
         *worth(answer.prices.get(one.name)), reasons(one.reason, answer.prices.get(one.name)))
        for one in wanted
    )  # fmt: skip
    yield Table("environment that the job wants (in brackets: not priced, it acts on so many seconds)", columns, rows)


def _changes(answer: Improved, verbose: bool) -> Iterator[Block]:
    kept, changed = list(answer.kept), list(answer.changed)
    if not verbose:
        kept, changed = _few(answer, kept)[:MOST_SHOWN], _few(answer, changed)[:MOST_OFFERS]
    if kept:
        yield _table("one change at a time that keeps the mathematics, best first", kept, offer=False)
    else:
        yield Line("no single change that keeps the mathematics is predicted to help")
    if changed:
        yield _table("offers: they change the mathematics", changed, offer=True)
    if answer.pair is not None:
        yield _table("the best two dials together", [answer.pair], offer=False)
    yield from _writing(answer, [*kept, *changed, *(() if answer.pair is None else (answer.pair,))])


def _few(answer: Improved, changes: Sequence[Change]) -> list[Change]:
    """The best value of every dial that helps: is faster, or makes a job fit that does not."""
    best: dict[tuple[str, ...], Change] = {}
    for one in changes:
        priced = one.priced
        helps = (priced.gain or 0.0) > WORTH or (
            answer.found.verdict in ("oom", "illegal") and priced.verdict == "fits"
        )
        if helps and priced.verdict in ("fits", "tight"):
            best.setdefault(priced.names, one)
    return list(best.values())


def _table(title: str, changes: Sequence[Change], *, offer: bool) -> Table:
    columns = (Column("#"), Column("turn", "name"), Column("tokens/s"), Column("80 % interval"), Column("step s"),
               Column("peak GiB"), Column("free %"), Column("what changes" if offer else "risk", "text"))  # fmt: skip
    return Table(title, columns, tuple(_row(one, offer=offer) for one in changes))


def _row(one: Change, *, offer: bool) -> tuple[str, ...]:
    priced = one.priced
    said = [f"{name} {old} -> {new}" for name, old, new in zip(priced.names, priced.before, priced.after, strict=True)]
    ends = NONE if priced.low is None or priced.high is None else f"{gain(priced.low)} to {gain(priced.high)}"
    risks = [priced.mathematics] if offer else []
    risks += [f"restores {', '.join(priced.restores)}"] if priced.restores else []
    risks += priced.risks
    if priced.low is not None and priced.low <= 0 < (priced.gain or 0.0):
        risks.append("may be no gain")
    return (
        count(one.number),
        "\n".join(said),
        gain(priced.gain),
        ends,
        figure(None if priced.candidate.step is None else priced.candidate.step.step_s),
        figure(gib(priced.candidate.memory.peak_device_bytes)),
        percent(_free(priced.candidate)),
        "; ".join(risks),
    )


def _free(one: Candidate) -> float:
    return (one.memory.budget_bytes - one.memory.peak_device_bytes) / one.memory.budget_bytes


def _writing(answer: Improved, changes: Sequence[Change]) -> Iterator[Block]:
    """What to write for each change, in the words of the file, and where the setting stands now."""
    rows = []
    for one in changes:
        names = " + ".join(one.priced.names)
        for edit in one.edits:
            rows.append((f"{one.number} {names}", written(answer.subject, edit), edit.where or "new"))
    if rows:
        columns = (Column("change", "name"), Column("write", "text"), Column("now at", "name"))
        yield Table("what to write", columns, tuple(rows))


def _ends(answer: Improved) -> Iterator[Block]:
    found = answer.found
    if found.best is not None and found.best.step is not None:
        share = "" if found.best_gain is None else f", {gain(found.best_gain)} tokens/s against today"
        yield Line(
            f"best layout of the same job: {_label(answer, found.best)} MBS{found.best.layout.mbs}, step"
            f" {figure(found.best.step.step_s)} s, {figure(gib(found.best.memory.peak_device_bytes))} GiB{share}"
        )
    yield Line(
        f"{count(found.illegal)} other values are illegal; 80 % interval of a gain: how wrong predicted ratios were on"
        " pairs of measured runs that differ in one dial",
        "dim",
    )


def _hints(answer: Improved) -> tuple[str, ...]:
    better = [one for one in answer.kept if one.priced.verdict == "fits" and (one.priced.gain or 0.0) > 0]
    best = next((one for one in better if not one.stopped), None)
    reading = answer.subject.reading
    if best is None or reading.kind == "plan" or answer.given is None:
        return ()
    words = ["advisor", "improve", reading.file, *answer.given]
    for name, setting in answer.subject.request.settings.items():
        if setting.origin == FLAG:
            flag = f"--{name.replace('_', '-')}"
            on = {"True": [flag], "False": [flag.replace("--", "--no-", 1)]}
            words += on.get(str(setting.value), [flag, str(setting.value)])
    edited = f"{Path(reading.file).stem}.new{Path(reading.file).suffix}"
    return (f"next: {shlex.join([*words, '--take', str(best.number), '--edited', edited])}",)
