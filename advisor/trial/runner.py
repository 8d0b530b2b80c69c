"""Runs trials one after another under a budget; what goes wrong in one is its outcome, and the next one is run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from advisor.trial.local import Local
from advisor.trial.outcome import CUT_FROM_OUTSIDE, outcome_of
from advisor.trial.processes import Ended, Limits
from advisor.trial.progress import Progress
from advisor.trial.record import make_record, problem_of
from advisor.trial.store import Store, kept_in
from advisor.trial.trials import Trial


class Backend(Protocol):
    """What starts the ranks of a trial."""

    def command(self, trial: Trial, folder: Path) -> str:
        """The command that starts a trial whose job lies in `folder`."""

    def script(self, trial: Trial, folder: Path) -> str | None:
        """The script that the command names, None where it names none."""

    def run(self, trial: Trial, folder: Path, limits: Limits, tell: Callable[[Progress], object]) -> Ended:
        """Run a trial to its end, which nothing of it survives."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How trials are run: limits of one, seconds for all of them (None = no budget), whether finished ones are skipped.

    A trial that failed by itself, or at one of `limits`, is finished too; one that was cut off from outside is not.
    `backend` starts the ranks.
    """

    limits: Limits
    budget_s: float | None = None
    resume: bool = False
    backend: Backend = field(default_factory=Local)


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
    finished = _finished(store) if rules.resume else {}
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


def _finished(store: Store) -> dict[str, dict[str, Any]]:
    """Records by key of trials that ended by themselves or at a limit of theirs, in the form of this version."""
    return {
        key: record
        for key, record in store.newest().items()
        if not problem_of(record) and record["outcome"] not in CUT_FROM_OUTSIDE
    }


def run_one(trial: Trial, store: Store, rules: Rules, left_s: float | None, tell: Tell) -> dict[str, Any] | None:
    """One attempt in a folder of its own; None where the budget of `left_s` seconds ended it without a measurement."""
    folder = store.attempt(trial.name)
    limits = rules.limits if left_s is None else replace(rules.limits, end_s=left_s)
    with kept_in(folder):
        (folder / "job.json").write_text(json.dumps(trial.job, indent=2), encoding="utf-8")
        ended = rules.backend.run(trial, folder, limits, lambda progress: tell(trial, progress))
    outcome = outcome_of(ended, folder, trial.ranks)
    if outcome.kind == "total timeout" and ended.seconds > limits.end_s:
        return None
    return make_record(trial, outcome, folder, ended)
