"""Page of a read-back: what took effect of a plan, measured beside predicted, and the lines of the log that say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from advisor.check.readback.compare import Measure, ReadBack, Row, by_status
from advisor.check.readback.observed import Observed, Place, Seen
from advisor.check.readback.values import plain
from advisor.check.readback.wording import wordings
from advisor.cli.document import Block, Column, Document, Facts, Line, Style, Table
from advisor.cli.figures import NONE, count, figure
from advisor.export.subject import versions
from advisor.logs.text import shown
from advisor.units import gib

SCHEMA_VERSION = 1
LONGEST_CELL = 160
SAYS: dict[str, tuple[str, Style]] = {
    "silently off": ("something that is planned is off", "bad"),
    "differs": ("the job runs with other settings than planned", "bad"),
    "outside": ("settings are as planned, a measured figure is outside its interval", "bad"),
    "as planned": ("what the log tells is as planned", "good"),
    "not seen": ("the log tells nothing about the plan", "plain"),
}
EFFECTIVE = (Column("effective as planned", "name"), Column("value", "text"), Column("line of the log", "name"))
READ = (Column("setting", "name"), Column("effective", "text"), Column("said by", "name"), Column("line", "text"))
MEASURES = (
    Column("measured beside predicted", "name"), Column("measured"), Column("predicted"), Column("interval"),
    Column("ratio"), Column("inside", "name"), Column("line of the log", "text"),
)  # fmt: skip


def readback_document(observed: Observed, found: ReadBack | None) -> Document:
    """A log beside a plan, or, without one, what the log says."""
    rows = found.rows if found is not None else tuple(_alone(observed))
    version, source = version_of(observed)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "outcome": found.outcome if found is not None else None,
        "plan": found.plan if found is not None else None,
        "framework": observed.framework,
        "version": version,
        "version_source": source,
        "version_line": observed.version_place.words if source == "log" and observed.version_place else None,
        "logs": list(observed.files),
        "lines": observed.lines,
        "settings": [_setting(row, found is not None) for row in rows],
        "measured": _measured(observed),
        "compared": [_compared(one) for one in found.measures] if found is not None else [],
        "remarks": [{"kind": one.kind, **_place(one)} for one in observed.remarks],
        "problems": list(observed.problems),
    }
    blocks = tuple(_blocks(observed, found, rows))
    return Document(blocks, record, record["settings"], tuple(_hints(observed, found)))


def version_of(observed: Observed) -> tuple[str | None, str | None]:
    """The release whose names are compared, and who says so: the log, an option, or nobody (the newest is assumed)."""
    if observed.version is not None:
        return observed.version, "option" if observed.version_place is None else "log"
    if observed.framework is None:
        return None, None
    return versions(observed.framework)[-1], "assumed"


def _alone(observed: Observed) -> Iterator[Row]:
    """Settings that the log states; defaults that a summary leaves out are not among them."""
    if observed.gpus is not None:
        yield Row("gpus", None, observed.gpus, "effective")
    order = {key: at for at, key in enumerate(wordings().shown)}
    for key, seen in sorted(observed.settings.items(), key=lambda one: (not one[1].off, order.get(one[0], len(order)))):
        if seen.how != "default":
            yield Row(key, None, seen, "silently off" if seen.off else "effective")


def _place(one: Place) -> dict[str, Any]:
    return {"file": one.file, "line": one.line, "text": shown(one.text.strip())}


def _setting(row: Row, planned: bool) -> dict[str, Any]:
    seen = row.seen
    return {
        "name": row.key,
        "planned": row.planned if planned else None,
        "effective": None if seen is None else seen.value,
        "status": row.status if planned else None,
        "how": None if seen is None else seen.how,
        "switched_off": seen is not None and seen.off,
        "reason": seen.why if seen is not None and seen.why else None,
        **(_place(seen) if seen is not None else {"file": None, "line": None, "text": None}),
    }


def _measured(observed: Observed) -> dict[str, Any]:
    steps, peak = observed.steps, observed.peak
    return {
        "step": None if steps is None else {
            "median_s": steps.median_s, "low_s": steps.low_s, "high_s": steps.high_s, "reports": steps.reports,
            "left_out": steps.left_out, "rule": steps.rule, "first_iteration": steps.first_iteration,
            "last_iteration": steps.last_iteration, "tflops_per_gpu": steps.tflops_per_gpu,
            "loss": _finite(steps.loss), "nan_iterations": steps.nan_iterations,
            "skipped_iterations": steps.skipped_iterations, **_place(steps.place),
        },
        "peak": None if peak is None else {
            "allocated_bytes": peak.allocated_bytes, "reserved_bytes": peak.reserved_bytes, "rank": peak.rank,
            "ranks": peak.ranks, **_place(peak),
        },
    }  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


def _compared(one: Measure) -> dict[str, Any]:
    return {
        "name": one.name, "measured": one.measured, "predicted": one.predicted, "low": one.low, "high": one.high,
        "ratio": one.ratio, "inside": one.inside, "interval_source": one.source, **_place(one.place),
    }  # fmt: skip


def _blocks(observed: Observed, found: ReadBack | None, rows: Sequence[Row]) -> Iterator[Block]:
    if found is not None:
        words, style = SAYS[found.outcome]
        yield Line(f"{found.outcome}: {words}", style)
    framework = observed.framework or "no framework named"
    version, source = version_of(observed)
    yield Line(
        f"read as {framework}{f' {version}' if version else ''}: {_names(observed.files)}, "
        f"{count(observed.lines)} lines", "dim",
    )  # fmt: skip
    if source == "assumed":
        yield Line(f"version {version} is assumed: no line of the log tells it; --target-version X states it", "plain")
    yield from (Line(f"broke off: {problem}", "bad") for problem in observed.problems)
    if found is None:
        yield Facts("measured", tuple(_facts(observed)))
        first = [row for row in rows if row.status == "silently off" or row.key in wordings().shown]
        yield Table("settings", READ, tuple(_read_row(row.key, row.seen) for row in first if row.seen is not None))
        yield Line(f"{count(len(rows) - len(first))} more settings: --format json", "dim")
    else:
        yield from _against_plan(observed, found)
    if observed.remarks:
        columns = (Column("beside", "name"), Column("line of the log", "text"))
        yield Table("", columns, tuple((one.kind, _line(one)) for one in observed.remarks))


def _against_plan(observed: Observed, found: ReadBack) -> Iterator[Block]:
    if found.measures:
        yield Table("", MEASURES, tuple(map(_measure_row, found.measures)))
        if observed.steps is not None:
            yield Line(f"step: {_step_words(observed)}", "dim")
    for row in found.rows:
        if row.seen is not None and row.status != "effective":
            yield from _lost(row, row.seen)
    kept = [row for row in found.rows if row.status == "effective"]
    if kept:
        yield Table("", EFFECTIVE, tuple((row.key, _cell(row.planned), _where(row.seen)) for row in kept if row.seen))
    counts = by_status(found.rows)
    yield Line(", ".join(f"{number} {status}" for status, number in counts.items()), "dim")
    missing = [row.key for row in found.rows if row.seen is None]
    if missing:
        yield Line(f"not seen: {', '.join(missing)}", "dim")


def _facts(observed: Observed) -> Iterator[tuple[str, str, str]]:
    steps, peak = observed.steps, observed.peak
    if steps is not None:
        yield ("step s", figure(steps.median_s), _step_words(observed))
        yield ("TFLOP/s per GPU", figure(steps.tflops_per_gpu), "median of the same steps")
        bad = f"{steps.nan_iterations} nan, {steps.skipped_iterations} skipped iterations"
        yield ("loss", figure(steps.loss), f"last, iteration {count(steps.last_iteration)}; {bad}")
    if peak is not None:
        who = "" if peak.rank is None else f"rank {peak.rank}, "
        yield ("peak GiB", figure(gib(peak.allocated_bytes)), f"allocated, {who}worst of {peak.ranks}; {_where(peak)}")
    if steps is None and peak is None:
        yield ("steps", NONE, "no line of the log reports a steady step or memory")


def _step_words(observed: Observed) -> str:
    steps = observed.steps
    if steps is None:
        return ""
    return (
        f"median of {count(steps.reports)} steady reports, 10th to 90th percentile {figure(steps.low_s)} to "
        f"{figure(steps.high_s)} s; {count(steps.left_out)} left out ({steps.rule})"
    )


def _lost(row: Row, seen: Seen) -> Iterator[Line]:
    reason = f": {seen.why}" if seen.why else ""
    yield Line(
        f"{row.status}: {row.key} is planned {_cell(row.planned)}, the job has {_cell(seen.value)}{reason}", "bad"
    )
    unlisted = "not listed, so Megatron-Core's default: " if seen.how == "default" else ""
    yield Line(f"  {_line(seen, unlisted)}", "dim")


def _read_row(key: str, seen: Seen) -> tuple[str, ...]:
    reason = f" ({seen.why})" if seen.why else ""
    return (key, f"{_cell(seen.value)}{reason}", f"{seen.how}, off" if seen.off else seen.how, _where(seen))


def _measure_row(one: Measure) -> tuple[str, ...]:
    memory = one.name == "peak_allocated_bytes"
    figures = [gib(value) if memory else value for value in (one.measured, one.predicted, one.low, one.high)]
    measured, predicted, low, high = map(figure, figures)
    name = "peak allocated GiB" if memory else "step s"
    inside = "yes" if one.inside else "no"
    return (name, measured, predicted, f"{low} to {high}", figure(one.ratio), inside, _where(one.place))


def _cell(value: Any) -> str:
    if plain(value) is None:
        return "off" if value in (False, "none") else NONE
    if value is True:
        return "on"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "..."


def _where(one: Place) -> str:
    return f"{one.file.rpartition('/')[2]}:{one.line}"


def _line(one: Place, before: str = "") -> str:
    text = before + " ".join(one.text.split())
    return f"{_where(one)}: {text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + '...'}"


def _names(files: Sequence[str]) -> str:
    return ", ".join(files) if len(files) <= 4 else f"{files[0]} and {len(files) - 1} more"


def _hints(observed: Observed, found: ReadBack | None) -> Iterator[str]:
    if found is None:
        yield "next: advisor check --log ... --plan plan.json compares it with a plan"
    elif any(one.name == "step_s" and not one.inside for one in found.measures):
        yield "next: advisor trace shows where the time of a step goes; advisor validate how far off others were"
    elif any(remark.kind == "timeout" for remark in observed.remarks):
        yield f"next: advisor diagnose {observed.files[0]}"
