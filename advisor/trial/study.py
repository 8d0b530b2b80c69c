"""An Optuna study over the candidates of a solver: which one is tried next, and when enough is known.

The search space is an index into a list of candidates in the order of their predicted step time, so that neighbours in
the index are neighbours in prediction, and the knobs of `space`; whatever is asked is legal and predicted to fit. The
first trials go down the list; then the sampler (TPE) proposes (`asking`): candidates as they are, and other knobs of
those that were measured. The objective is tokens/s/GPU, to be maximised; the hard constraint is memory (predicted or
measured over budget is infeasible). A trial that failed is told as failed.

Several workers, of several hosts, may work on one study. What Optuna calls RUNNING may be the remains of one that was
killed: running trials whose process lives no longer are told as failed; finished ones are never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import EnvironmentMissingError, InputError
from advisor.search.request import Request
from advisor.search.solve import ranking, search
from advisor.spec.plan import Candidate
from advisor.trial.asking import (
    INDEX,
    KEY,
    OUTCOME,
    begin,
    claim,
    claims,
    is_stale,
    made,
    pick,
    running,
    seen,
    suggest,
    withdraw,
)
from advisor.trial.job import Drive
from advisor.trial.progress import Progress
from advisor.trial.space import KNOB_GAIN, Identity, Row, Space
from advisor.trial.trials import Trial, make_trial

MEMORY = "memory"
STARTUP_SHARE = 0.4
LEAST_STARTUP = 3
LEAST_TRIED = 5
POOL = 200
LEAST_STEPS, SURE = 5, 3.0
FORMS = "sqlite:///FILE or journal:PATH"


@dataclass(frozen=True, slots=True)
class Tried:
    """One finished trial of a study: its number, the candidate's index, the value (None: failed) and the record."""

    number: int
    index: int
    value: float | None
    record: Mapping[str, Any] | None


def pool_of(request: Request, source: str, drive: Drive, most: int = POOL) -> tuple[Trial, ...]:
    """Trials of the best `most` feasible candidates of a request, in the order of prediction.

    Candidates that the worker cannot run on this device are left out, and those that come to the same job there.
    Raises InputError when nothing is left.
    """
    found: dict[str, Trial] = {}
    for candidate in ranking(search(request.replaced(top=most))).candidates:
        with contextlib.suppress(InputError):
            trial = make_trial(source, request, candidate, drive, None)
            work = {name: value for name, value in trial.job.items() if name != "environment" or drive.device == "cuda"}
            found.setdefault(json.dumps(work, sort_keys=True), trial)
    if not found:
        raise InputError("no layout fits and can be tried, so there is nothing to tune", "plan for more GPUs")
    return tuple(found.values())


def open_study(name: str, storage: str | None, pool: Sequence[Trial], seed: int) -> Any:
    """A study of this name over the list `pool` in `storage`: sqlite:///FILE, journal:PATH, or None for one in memory.

    Raises InputError for a storage that cannot be opened, and for a study that was begun over another list.
    """
    optuna = _optuna()
    from advisor.trial.sampler import LegalSampler

    with kept_at(storage, ImportError, ValueError, RuntimeError):
        study = optuna.create_study(
            study_name=name,
            storage=_storage(optuna, storage),
            sampler=LegalSampler(seed=seed, n_startup_trials=LEAST_STARTUP),
            direction="maximize",
            load_if_exists=True,
        )
        listed = {"candidates": len(pool), "list": _digest(pool)}
        if any(study.user_attrs.get(what, found) != found for what, found in listed.items()):
            raise InputError(
                f"study {name} was begun over another list of candidates ({study.user_attrs['candidates']}, now "
                f"{len(pool)}), whose places its trials name",
                "give another --study",
            )
        for what, found in listed.items():
            study.set_user_attr(what, found)
        clear_stale(study)
    return study


def _digest(pool: Sequence[Trial]) -> str:
    """Equal for lists of the same jobs in the same order, however many steps of them are run."""
    work = [{name: value for name, value in trial.job.items() if name != "run"} for trial in pool]
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def kept_at(storage: str | None, *more: type[Exception]) -> Iterator[None]:
    """What a storage cannot do is an InputError that names it; so are errors of `more` kinds."""
    from sqlalchemy.exc import SQLAlchemyError

    kinds = (OSError, SQLAlchemyError, _optuna().exceptions.OptunaError, *more)
    try:
        yield
    except kinds as problem:
        raise InputError(f"--storage {storage}: {str(problem).splitlines()[0][:200]}", FORMS) from problem


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as problem:
        raise EnvironmentMissingError("optuna is not installed", "pip install 'megatron-advisor[trial]'") from problem
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(optuna: Any, storage: str | None) -> Any:
    if storage is None:
        return None
    path = Path(storage.removeprefix("journal:").removeprefix("sqlite:///"))
    if path.name in {"", ":memory:"}:
        raise ValueError("it names no file")
    if not path.parent.is_dir():
        raise OSError(f"the folder {path.parent} does not exist")
    if storage.startswith("journal:"):
        from advisor.trial.journal import WholeJournal

        return optuna.storages.JournalStorage(WholeJournal(path))
    if storage.startswith("sqlite:///"):
        return optuna.storages.RDBStorage(storage)
    raise ValueError(f"no storage of this form is known; {FORMS}")


def clear_stale(study: Any) -> int:
    """Fail running trials whose process is gone; how many there were. Finished ones are never touched."""
    stale = [trial for trial in running(study) if is_stale(trial)]
    for trial in stale:
        study.tell(trial.number, state=_failed(), skip_if_finished=True)
    return len(stale)


def tune(study: Any, space: Space, trials: int, run: Callable[[Trial], Mapping[str, Any] | None]) -> Iterator[Tried]:
    """Ask, run and tell until `trials` trials of the study are finished, or run elsewhere, or nothing can still win.

    `run` gives the record of a trial, None when it must stop (budget). Every trial is told before the next one is
    asked, so that a kill at any moment loses at most the one that runs.
    """
    while (asked := ask(study, space, trials)) is not None:
        told, row, trial = asked
        with seen(told):
            record = run(trial)
        if record is None:
            withdraw(study, told, "budget")
            return
        measured = record["measured"]
        value = None if measured is None else float(measured["tokens_per_s_per_gpu"])
        told.set_constraint(MEMORY, _over_budget(trial.candidate, record))
        for name in ("folder", "name", OUTCOME):
            told.set_user_attr(name, record[name])
        if value is None:
            study.tell(told, state=_failed())
        else:
            study.tell(told, value)
        yield Tried(told.number, row.index, value, record)


def ask(study: Any, space: Space, trials: int) -> tuple[Any, Row, Trial] | None:
    """The next trial with its row, which no other worker has; None where there is none, or enough.

    The list is gone down first, then the sampler proposes among what may still win.
    """
    startup = max(LEAST_STARTUP, round(STARTUP_SHARE * trials))
    barred: set[Identity] = set()
    while True:
        clear_stale(study)
        held = claims(study)
        left = promising(study, space, barred)
        if len(held) >= trials or not left:
            return None
        told = begin(study)
        new = [index for index, rows in left.items() if rows[0].identity == space.first(index).identity]
        if len(held) < startup and new:
            left = {new[0]: left[new[0]][:1]}
        index = pick(study, told, INDEX, range(len(space.pool)), list(left))
        row = suggest(study, told, space, left[index])
        barred.add(row.identity)
        trial = made(space, row)
        answer = "cannot run" if trial is None else claim(study, told, trial.key, trials)
        if trial is not None and answer == "mine":
            return told, row, trial
        withdraw(study, told, answer)
        if answer == "enough":
            return None


def _failed() -> Any:
    return _optuna().trial.TrialState.FAIL


def _over_budget(candidate: Candidate, record: Mapping[str, Any]) -> float:
    """Memory over the budget as a share of it: measured where the device tells, else predicted; up to 0 fits."""
    if record["outcome"] == "oom":
        return 1.0
    measured = (record["measured"] or {}).get("peak_reserved_bytes")
    used = candidate.memory.peak_device_bytes if measured is None else measured
    return float(used / candidate.memory.budget_bytes - 1.0)


def finished(study: Any) -> list[Any]:
    """Trials that ran to an outcome, measured or failed; what was withdrawn, or left by killed workers, is none."""
    return [trial for trial in study.get_trials(deepcopy=False) if OUTCOME in trial.user_attrs]


def taken(study: Any, space: Space) -> dict[Identity, tuple[Row, float | None]]:
    """Rows whose job was tried or is being tried, with their value (None: failed, or not known yet)."""
    found: dict[Identity, tuple[Row, float | None]] = {}
    held = set(claims(study).values())
    for trial in study.get_trials(deepcopy=False):
        if trial.user_attrs.get(KEY) in held and INDEX in trial.params:
            row = space.row(trial.params[INDEX], trial.params)
            value = trial.value if trial.state.name == "COMPLETE" else None
            if row is not None and (value is not None or row.identity not in found):
                found[row.identity] = row, value
    return found


def promising(study: Any, space: Space, barred: Set[Identity] = frozenset()) -> dict[int, list[Row]]:
    """Rows not tried yet that may still beat the best one, by candidate, in the order of the list.

    The predicted rate of a candidate, corrected by the best measured / predicted of any trial and raised by the width
    of its interval (or by how far measured / predicted varies, where that is more), has to reach the best measured
    rate. Other knobs are for candidates that were measured: such a rate, changed as predicted and raised by
    `KNOB_GAIN`, has to reach it. With few trials every candidate is left, as it is.
    """
    known = taken(study, space)
    gone = barred | space.barred | known.keys()
    firsts = [space.first(index) for index in range(len(space.pool))]
    left = {row.index: [row] for row in firsts if row.identity not in gone}
    rates = {row.index: value for row, value in known.values() if value is not None and row == firsts[row.index]}
    if not rates or (left and len(rates) < LEAST_TRIED):
        return left
    best = max(value for _, value in known.values() if value is not None)
    predicted = [trial.predicted for trial in space.pool]
    ratios = [value / predicted[index].tokens_per_s_per_gpu for index, value in rates.items()]
    varies = max(ratios) / statistics.median(ratios)
    for index in list(left):
        step = predicted[index]
        if step.tokens_per_s_per_gpu * max(ratios) * max(step.step_s / step.low_s, varies) <= best:
            del left[index]
    for index, value in rates.items():
        hope = value * KNOB_GAIN * firsts[index].step_s
        rows = [row for row in space.rows(index) if hope / row.step_s > best and row.identity not in gone]
        left |= {index: rows} if rows else {}
    return dict(sorted(left.items()))


def contenders(study: Any, space: Space) -> list[int]:
    """Candidates of the list, not tried yet, that may still beat the best one."""
    left = promising(study, space)
    return [index for index, rows in left.items() if rows[0].identity == space.first(index).identity]


def hopeless(trial: Trial, progress: Progress, best: float | None) -> bool:
    """Whether the steady steps so far rule out that a trial reaches `best` tokens/s/GPU.

    They do when the mean step, less `SURE` of its standard errors, is longer than that of the best; at least
    `LEAST_STEPS` steps are needed.
    """
    steps = progress.steady_s
    if best is None or len(steps) < LEAST_STEPS:
        return False
    layout = trial.run_candidate.layout
    allowed_s = layout.gbs * trial.run_request.workload.seq_len / layout.gpus / best
    error = statistics.stdev(steps) / len(steps) ** 0.5
    return bool(statistics.mean(steps) - SURE * error > allowed_s)


def best_of(study: Any) -> Any | None:
    """The best finished trial whose memory is within the budget, None where there is none."""
    found = [trial for trial in finished(study) if trial.state.name == "COMPLETE" and _fits(trial)]
    return max(found, key=lambda trial: trial.value, default=None)


def _fits(trial: Any) -> bool:
    return all(value <= 0 for value in (trial.constraints or {}).values())
