"""The page of a study: every trial in the order of its rate, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, count, figure
from advisor.trial.study import Tried, best_of, finished
from advisor.trial.trials import Trial

MOST_ROWS = 20


def tune_document(
    study: Any, pool: Sequence[Trial], tried: Sequence[Tried], left: Sequence[int], folder: Path
) -> Document:
    """All finished trials of a study, best first; `left` are candidates that may still beat the best."""
    rows = sorted((_row(trial, pool) for trial in finished(study)), key=lambda row: -(row["tokens_per_s_per_gpu"] or 0))
    best = best_of(study)
    record = {
        "schema_version": 1,
        "study": study.study_name,
        "candidates": len(pool),
        "contenders_left": len(left),
        "fresh": [one.number for one in tried],
        "best": None if best is None else next(row for row in rows if row["number"] == best.number),
        "trials": rows,
        "folder": str(folder),
    }
    hints = () if best is None else (f"records and logs: {folder}",)
    return Document(tuple(_blocks(record, rows)), record, rows, hints)


def _row(trial: Any, pool: Sequence[Trial]) -> dict[str, Any]:
    index = trial.params["candidate"]
    step = pool[index].predicted
    value = trial.value if trial.state.name == "COMPLETE" else None
    return {
        "number": trial.number,
        "candidate": index + 1,
        "name": pool[index].name,
        "outcome": trial.user_attrs["outcome"],
        "predicted_tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "tokens_per_s_per_gpu": value,
        "over_budget": max((trial.constraints or {}).values(), default=None),
    }


def _blocks(record: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Iterator[Block]:
    tried = f"{count(len(rows))} of {count(record['candidates'])} layouts tried"
    yield Line(f"tune: {tried}, {count(len(record['fresh']))} of them now", "heading")
    best = record["best"]
    if best is None:
        yield Line("nothing could be measured within the memory budget", "bad")
    else:
        yield Line(f"best: {best['name']}, {figure(best['tokens_per_s_per_gpu'])} tokens/s/GPU", "good")
    if not record["contenders_left"]:
        yield Line("no layout is left that may be faster, by its interval corrected with what was measured")
    columns = (
        Column("trial", "name"), Column("predicted\nrank"), Column("outcome", "name"),
        Column("tokens/s/GPU\npredicted"), Column("tokens/s/GPU\nmeasured"), Column("ratio"),
    )  # fmt: skip
    if rows:
        yield Table("", columns, tuple(_cells(row) for row in rows[:MOST_ROWS]), 0 if best is not None else None)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    predicted, value = row["predicted_tokens_per_s_per_gpu"], row["tokens_per_s_per_gpu"]
    ratio = NONE if value is None else f"{value / predicted:.2f}"
    return (row["name"], count(row["candidate"]), row["outcome"], figure(predicted), figure(value), ratio)
