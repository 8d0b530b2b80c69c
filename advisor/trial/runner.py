"""Runs trials one after another under a budget; what goes wrong in one is its outcome, and the next one is run."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.trial.outcome import outcome_of
from advisor.trial.processes import WORKER, Limits, command, environment, run_group
from advisor.trial.progress import Progress
from advisor.trial.record import make_record
from advisor.trial.store import Store
from advisor.trial.trials import Trial


@dataclass(frozen=True, slots=True)
class Rules:
    """How trials are run: limits of one, seconds for all of them (None = no budget), whether finished ones are skipped.

    `program` is what every rank runs, as arguments of Python.
    """

    limits: Limits
    budget_s: float | None = None
    resume: bool = False
    program: Sequence[str] = WORKER


@dataclass(frozen=True, slots=True)
class Ran:
    """A trial with its record; `fresh` is False for a record of an earlier run. No record: the budget was spent."""

    trial: Trial
    record: dict[str, Any] | None
    fresh: bool


Tell = Callable[[Trial, Progress], object]


def run_trials(trials: Iterable[Trial], store: Store, rules: Rules, tell: Tell) -> Iterator[Ran]:
    """Run `trials` in order and yield each with its record, which is on the disk by then; `tell` True stops one early.

    A trial that the budget cuts off counts as measured where enough of its steps are known, else it has no record and
    is run again by a resumed call.
    """
    begin = time.monotonic()
    finished = store.finished() if rules.resume else {}
    for trial in trials:
        if trial.key in finished:
            yield Ran(trial, finished[trial.key], False)
            continue
        left = None if rules.budget_s is None else rules.budget_s - (time.monotonic() - begin)
        if left is not None and left <= 0:
            yield Ran(trial, None, False)
            continue
        record = run_one(trial, store, rules, left, tell)
        if record is not None:
            store.append(record)
        yield Ran(trial, record, True)


def run_one(trial: Trial, store: Store, rules: Rules, left_s: float | None, tell: Tell) -> dict[str, Any] | None:
    """One attempt in a folder of its own; None where the budget of `left_s` seconds ended it without a measurement."""
    folder = store.attempt(trial.name)
    limits, cut = rules.limits, False
    if left_s is not None and left_s < limits.total_s:
        limits, cut = replace(limits, total_s=left_s), True
    words = prepared(trial, folder, rules.program)
    variables = environment(trial.job["run"]["device"], trial.job["run"]["threads"])
    ended = run_group(words, folder, variables, limits, lambda progress: tell(trial, progress))
    outcome = outcome_of(ended, folder, trial.ranks)
    if cut and outcome.kind == "total timeout":
        return None
    return make_record(trial, outcome, folder, ended)


def prepared(trial: Trial, folder: Path, program: Sequence[str]) -> list[str]:
    """Write the job and the command of a trial to its folder; the command in words."""
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(trial.job, indent=2), encoding="utf-8")
    words = command(trial.ranks, job_file, folder, program)
    (folder / "command").write_text(shlex.join(words) + "\n", encoding="utf-8")
    return words
