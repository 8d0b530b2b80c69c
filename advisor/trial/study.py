"""An Optuna study over the candidates of a solver: which one is tried next, and when enough is known.

The search space is one index into a list of candidates in the order of their predicted step time, so that every trial
is a layout that is legal and predicted to fit, and neighbours in the index are neighbours in prediction. The first
trials go down the list; then the sampler (TPE) proposes. The objective is tokens/s/GPU, to be maximised; the hard
constraint is memory (predicted or measured over budget is infeasible). A trial that failed is told as failed.

What Optuna calls RUNNING may be the remains of a worker that was killed: on opening a study, running trials whose
process lives no longer (same host) are told as failed; finished ones are never touched.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import EnvironmentMissingError, InputError
from advisor.search.request import Request
from advisor.search.solve import ranking, search
from advisor.spec.plan import Candidate
from advisor.trial.job import Drive
from advisor.trial.progress import Progress
from advisor.trial.trials import Trial, make_trial

INDEX = "candidate"
MEMORY = "memory"
STARTUP_SHARE = 0.4
LEAST_STARTUP = 3
LEAST_TRIED = 5
POOL = 200
MOST_REPEATS = 4
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
            found.setdefault(trial.key, trial)
    if not found:
        raise InputError("no layout fits and can be tried, so there is nothing to tune", "plan for more GPUs")
    return tuple(found.values())


def open_study(name: str, storage: str | None, candidates: int, seed: int) -> Any:
    """A study of this name in `storage`: sqlite:///FILE, journal:PATH, or None for one in memory.

    Raises InputError for a storage that cannot be opened, and for a study that was begun with other candidates.
    """
    optuna = _optuna()
    try:
        study = optuna.create_study(
            study_name=name,
            storage=_storage(optuna, storage),
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=LEAST_STARTUP),
            direction="maximize",
            load_if_exists=True,
        )
    except (ImportError, OSError, ValueError, RuntimeError, optuna.exceptions.OptunaError) as problem:
        raise InputError(f"--storage {storage}: {str(problem).splitlines()[0][:200]}", FORMS) from problem
    known = study.user_attrs.get("candidates")
    if known not in {None, candidates}:
        raise InputError(
            f"study {name} was begun over {known} candidates, now there are {candidates}", "give another --study"
        )
    study.set_user_attr("candidates", candidates)
    clear_stale(study)
    return study


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
    if not path.parent.is_dir():
        raise OSError(f"the folder {path.parent} does not exist")
    if storage.startswith("journal:"):
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        return JournalStorage(JournalFileBackend(str(path)))
    if storage.startswith("sqlite:///"):
        return optuna.storages.RDBStorage(storage)
    raise ValueError(f"no storage of this form is known; {FORMS}")


def clear_stale(study: Any) -> int:
    """Fail running trials whose process is gone, of this host; how many there were."""
    optuna = _optuna()
    stale = 0
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        owner = trial.user_attrs.get("owner")
        if owner is None or (owner["host"] == platform.node() and not _lives(owner)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            stale += 1
    return stale


def _owner() -> dict[str, Any]:
    import psutil

    return {"host": platform.node(), "pid": os.getpid(), "begun": psutil.Process().create_time()}


def _lives(owner: Mapping[str, Any]) -> bool:
    """Whether the process that asked for a trial still runs; a later process with its number is another one."""
    import psutil

    try:
        return bool(abs(psutil.Process(owner["pid"]).create_time() - owner["begun"]) < 1.0)
    except psutil.NoSuchProcess:
        return False


def tune(
    study: Any, pool: Sequence[Trial], trials: int, run: Callable[[Trial], Mapping[str, Any] | None]
) -> Iterator[Tried]:
    """Ask, run and tell until `trials` trials of the study are finished or no candidate can still win.

    `run` gives the record of a candidate, None when it must stop (budget). Every trial is told before the next one is
    asked, so that a kill at any moment loses at most the one that runs.
    """
    while len(finished(study)) < trials and contenders(study, pool):
        trial, index = _ask(study, pool, trials)
        record = run(pool[index])
        if record is None:
            study.tell(trial, state=_failed())
            return
        measured = record["measured"]
        trial.set_constraint(MEMORY, _over_budget(pool[index].candidate, record))
        for name in ("outcome", "folder", "key"):
            trial.set_user_attr(name, record[name])
        if measured is None:
            study.tell(trial, state=_failed())
        else:
            study.tell(trial, float(measured["tokens_per_s_per_gpu"]))
        yield Tried(trial.number, index, None if measured is None else measured["tokens_per_s_per_gpu"], record)


def _failed() -> Any:
    return _optuna().trial.TrialState.FAIL


def _over_budget(candidate: Candidate, record: Mapping[str, Any]) -> float:
    """Memory over the budget as a share of it: measured where the device tells, else predicted; up to 0 fits."""
    if record["outcome"] == "oom":
        return 1.0
    measured = (record["measured"] or {}).get("peak_reserved_bytes")
    used = candidate.memory.peak_device_bytes if measured is None else measured
    return float(used / candidate.memory.budget_bytes - 1.0)


def _ask(study: Any, pool: Sequence[Trial], trials: int) -> tuple[Any, int]:
    """The next trial and its candidate: the first of the list that is new at first, then what the sampler proposes.

    A proposal that is known gets its known answer at once, which costs nothing; after a few of those the list is next.
    """
    startup = max(LEAST_STARTUP, round(STARTUP_SHARE * trials))
    for attempt in range(MOST_REPEATS + 1):
        taken = _taken(study)
        from_list = len(taken) < startup or attempt == MOST_REPEATS
        if from_list:
            fresh = next(index for index in contenders(study, pool) if index not in taken)
            study.enqueue_trial({INDEX: fresh})
        trial = study.ask()
        index = trial.suggest_int(INDEX, 0, len(pool) - 1)
        trial.set_user_attr("owner", _owner())
        if index not in taken:
            return trial, index
        value = taken[index]
        trial.set_user_attr("repeats", index)
        if value is None:
            study.tell(trial, state=_failed())
        else:
            trial.set_constraint(MEMORY, -1.0)
            study.tell(trial, value)
    raise AssertionError("the list gives a new candidate")


def _taken(study: Any) -> dict[int, float | None]:
    """Candidates that were tried or are being tried, with their value (None: failed, or not known yet)."""
    found: dict[int, float | None] = {}
    for trial in study.get_trials(deepcopy=False):
        running = trial.state.name == "RUNNING"
        if INDEX in trial.params and (running or "outcome" in trial.user_attrs):
            found.setdefault(trial.params[INDEX], trial.value if trial.state.name == "COMPLETE" else None)
    return found


def finished(study: Any) -> list[Any]:
    """Trials that ran to an outcome, measured or failed; repeats and remains of killed workers do not count."""
    return [trial for trial in study.get_trials(deepcopy=False) if "outcome" in trial.user_attrs]


def contenders(study: Any, pool: Sequence[Trial]) -> list[int]:
    """Candidates not tried yet that may still beat the best one, in the order of the list.

    A candidate's predicted rate, corrected by the best measured / predicted of any trial and raised by the width of its
    interval (or by how far measured / predicted varies, where that is more), has to reach the best measured rate; else
    there is nothing to gain. With few trials all are contenders.
    """
    taken = _taken(study)
    untried = [index for index in range(len(pool)) if index not in taken]
    values = {index: value for index, value in taken.items() if value is not None}
    if len(values) < LEAST_TRIED:
        return untried
    ratios = [value / pool[index].predicted.tokens_per_s_per_gpu for index, value in values.items()]
    varies = max(ratios) / statistics.median(ratios)
    best = max(values.values())

    def hope(trial: Trial) -> float:
        step = trial.predicted
        return step.tokens_per_s_per_gpu * max(ratios) * max(step.step_s / step.low_s, varies)

    return [index for index in untried if hope(pool[index]) > best]


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
