"""The page of a study: every trial in the order of its rate, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, count, figure
from advisor.trial.space import KNOBS, Space
from advisor.trial.study import best_of, finished

MOST_ROWS = 20


def tune_document(study: Any, space: Space, fresh: Sequence[int], left: Sequence[int], folder: Path) -> Document:
    """All finished trials of a study, best first; `fresh` were run now, candidates `left` may still beat the best."""
    rows = sorted(
        (_row(trial, space) for trial in finished(study)), key=lambda row: -(row["tokens_per_s_per_gpu"] or 0)
    )
    best = best_of(study)
    record = {
        "schema_version": 1,
        "study": study.study_name,
        "candidates": len(space.pool),
        "contenders_left": len(left),
        "fresh": list(fresh),
        "best": None if best is None else next(row for row in rows if row["number"] == best.number),
        "trials": rows,
        "folder": str(folder),
    }
    hints = () if best is None else (f"records and logs: {folder}",)
    return Document(tuple(_blocks(record, rows)), record, rows, hints)


def _row(trial: Any, space: Space) -> dict[str, Any]:
    index = trial.params["candidate"]
    first, predicted = space.first(index), space.pool[index].predicted.tokens_per_s_per_gpu
    row = space.row(index, trial.params) or first
    value = trial.value if trial.state.name == "COMPLETE" else None
    return {
        "number": trial.number,
        "candidate": index + 1,
        "name": trial.user_attrs["name"],
        "knobs": {name: trial.params[name] for name in KNOBS if trial.params[name] != first.values[name]},
        "outcome": trial.user_attrs["outcome"],
        "predicted_tokens_per_s_per_gpu": predicted * first.step_s / row.step_s,
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
        Column("trial", "name"), Column("knobs", "text"), Column("predicted\nrank"), Column("outcome", "name"),
        Column("tokens/s/GPU\npredicted"), Column("tokens/s/GPU\nmeasured"), Column("ratio"),
    )  # fmt: skip
    if rows:
        yield Table("", columns, tuple(_cells(row) for row in rows[:MOST_ROWS]), 0 if best is not None else None)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    predicted, value = row["predicted_tokens_per_s_per_gpu"], row["tokens_per_s_per_gpu"]
    ratio = NONE if value is None else f"{value / predicted:.2f}"
    knobs = " ".join(f"{name}={value}" for name, value in row["knobs"].items()) or NONE
    return (row["name"], knobs, count(row["candidate"]), row["outcome"], figure(predicted), figure(value), ratio)
