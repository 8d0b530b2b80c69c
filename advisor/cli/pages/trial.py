"""The page of trials: predicted beside measured for each, why a trial failed, and what communication was hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import NONE, count, figure
from advisor.trial.runner import Ran, Rules
from advisor.trial.trials import Trial
from advisor.units import gib

LONGEST_LINE = 200
# Assumed: what steps of a job that is alone on its machine do not vary by.
NOISY = 0.1


def trial_document(ran: Sequence[Ran], left_out: Sequence[str], folder: Path) -> Document:
    """Records of trials for people and machines, and what to do next."""
    records = [one.record for one in ran if one.record is not None]
    left = [one.trial.name for one in ran if one.record is None]
    blocks = (*_blocks(ran, records, left), *_left_out(left_out))
    record = {
        "schema_version": 1,
        "folder": str(folder),
        "trials": records,
        "not_run": left,
        "left_out": list(left_out),
    }
    hints = ["advisor trace TRIAL_FOLDER/traces shows where the time of a step goes"] if records else []
    if left:
        hints.append("--resume runs what is left and keeps what is measured")
    return Document(blocks, record, [_row(one) for one in records], tuple(hints))


def _left_out(left_out: Sequence[str]) -> Iterator[Block]:
    yield from (Line(f"left out: {words}", "dim") for words in left_out)


def _blocks(ran: Sequence[Ran], records: Sequence[Mapping[str, Any]], left: Sequence[str]) -> Iterator[Block]:
    measured = sum(record["outcome"] == "measured" for record in records)
    inside = sum(record["inside"] is True for record in records)
    style = "good" if records and inside == len(ran) else "bad"
    yield Line(f"trial: {inside} of {measured} measured layouts within the predicted interval", "heading")
    yield _table(ran)
    if any(one.record is not None and not one.fresh for one in ran):
        yield Line("* recorded by an earlier run", "dim")
    for record in records:
        yield from _failure(record)
    hidden = [(record["name"], one) for record in records for one in record["hiding"]]
    if hidden:
        yield _hiding(hidden)
    for record in records:
        if record["full"] is not None:
            yield _full(record)
    for words in dict.fromkeys(words for record in records for words in record["stand_ins"]):
        yield Line(f"stands in: {words}", "dim")
    if left:
        yield Line(f"not run, the budget is spent: {', '.join(left)}", "bad")
    if style == "bad" and measured and inside < measured:
        noisy = [one["measured"]["spread"] or 0.0 for one in records if one["inside"] is False]
        if max(noisy) > NOISY:
            yield Line(f"outside its interval: steps vary by up to {max(noisy):.0%}, so other work runs beside", "bad")
        else:
            yield Line("outside its interval: the profile of this machine may not be that of the plan", "bad")


def _table(ran: Sequence[Ran]) -> Table:
    columns = (
        Column("trial", "name"), Column("outcome", "name"), Column("predicted s\n(80 %)"), Column("measured s\n± %"),
        Column("ratio"), Column("inside", "name"), Column("tokens/s\nper GPU"), Column("peak GiB"),
    )  # fmt: skip
    return Table("predicted and measured step", columns, tuple(_cells(one) for one in ran))


def _cells(one: Ran) -> tuple[str, ...]:
    record = one.record
    if record is None:
        return (one.trial.name, "not run", *[NONE] * 6)
    predicted, measured = record["predicted"], record["measured"]
    name = record["name"] if one.fresh else f"{record['name']} *"
    said = f"{figure(predicted['step_s'])}\n{figure(predicted['low_s'])}-{figure(predicted['high_s'])}"
    if measured is None:
        return (name, record["outcome"], said, *[NONE] * 5)
    spread = measured["spread"]
    return (
        name, record["outcome"], said,
        f"{figure(measured['step_s'])}\n{NONE if spread is None else f'{spread:.0%}'}", f"{record['ratio']:.2f}",
        "yes" if record["inside"] else "no", figure(measured["tokens_per_s_per_gpu"]), _peak(measured),
    )  # fmt: skip


def _peak(measured: Mapping[str, Any]) -> str:
    peak = measured["peak_allocated_bytes"] or measured["peak_resident_bytes"]
    return NONE if peak is None else figure(gib(peak))


def _failure(record: Mapping[str, Any]) -> Iterator[Block]:
    failure = record["failure"]
    if failure is None:
        return
    rank = "" if failure["rank"] is None else f", rank {failure['rank']}"
    yield Line(f"{record['name']}: {record['outcome']}{rank}: {failure['message']}", "bad")
    yield from (Line(f"  {line[:LONGEST_LINE]}", "dim") for line in failure["excerpt"])
    if failure["fix"]:
        yield Line(f"  fix: {failure['fix']}")
    yield Line(f"  logs: {record['folder']}", "dim")


def _hiding(found: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    columns = (
        Column("trial", "name"), Column("kind", "name"), Column("predicted\nhidden %"), Column("measured\nhidden %"),
        Column("verdict", "name"), Column("first thing to change", "text"),
    )  # fmt: skip
    rows = tuple(
        (name, one["kind"], _share(one["predicted_share"]), _share(one["measured_share"]), one["verdict"] or NONE,
         one["reason"])
        for name, one in found
    )  # fmt: skip
    return Table("hidden communication", columns, rows)


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}"


def _full(record: Mapping[str, Any]) -> Facts:
    full, proxy = record["full"], record["proxy"]
    what = "" if proxy is None else f"proxy of {proxy['layers']} layers, {proxy['num_microbatches']} microbatches"
    return Facts(
        f"{record['name']}: expected of the layout as planned",
        (
            ("step", f"{figure(full['step_s'])} s", f"{figure(full['low_s'])}-{figure(full['high_s'])}"),
            ("tokens/s per GPU", figure(full["tokens_per_s_per_gpu"]), what),
            ("rule", full["rule"], f"factor {full['factor']:.2f}"),
        ),
    )


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "key", "outcome", "inside", "ratio", "seconds", "folder", "device")
    layout = record["candidate"]["layout"]
    measured = {} if record["measured"] is None else record["measured"]
    kept = {name: value for name, value in measured.items() if not isinstance(value, list)}
    return {
        **{name: record[name] for name in names},
        "layout": layout,
        "predicted": record["predicted"],
        "measured": kept,
    }


def dry_document(trials: Sequence[Trial], left_out: Sequence[str], rules: Rules, folder: Path) -> Document:
    """What would be run: the command of every trial and how long its steps are predicted to take."""
    rows = [_plan_row(trial, rules, folder) for trial in trials]
    columns = (Column("trial", "name"), Column("ranks"), Column("steps"), Column("predicted s"))
    table = Table(
        "would run",
        columns,
        tuple(
            (row["name"], count(row["ranks"]), count(row["steps"]), figure(row["predicted_seconds"])) for row in rows
        ),
    )
    lines = tuple(Line(text) for row in rows for text in (row["command"], *(row["script"] or "").splitlines()))
    stands = tuple(
        Line(f"stands in: {words}", "dim")
        for words in dict.fromkeys(words for trial in trials for words in trial.stand_ins)
    )
    record = {"schema_version": 1, "dry_run": True, "trials": rows, "left_out": list(left_out)}
    return Document((table, *lines, *stands, *_left_out(left_out)), record, [{**row, "job": None} for row in rows])


def _plan_row(trial: Trial, rules: Rules, folder: Path) -> dict[str, Any]:
    run = trial.job["run"]
    steps = run["warmup"] + run["steps"] + (run["profile_steps"] + 1 if run["profile_steps"] else 0)
    where = folder / trial.name / "1"
    return {
        "name": trial.name,
        "key": trial.key,
        "ranks": trial.ranks,
        "steps": steps,
        "predicted_seconds": steps * trial.predicted.step_s,
        "command": rules.backend.command(trial, where),
        "script": rules.backend.script(trial, where),
        "job": trial.job,
    }
