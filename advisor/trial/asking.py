"""Which row a study tries next, and that no two workers try the same one.

Every proposal is legal: the sampler is asked knob by knob, and may only answer with values that lead to a row that is
left. A row belongs to the trial with the lowest number that claims it. A worker that has written its claim waits until
all earlier trials that run have written theirs, and gives way when one of them has the same job (Lamport's bakery); so
any storage will do, and no lock is needed between hosts.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from advisor.errors import InputError
from advisor.trial.space import KNOBS, NUMBERS, Row, Space, Value
from advisor.trial.trials import Trial

INDEX = "candidate"
KEY, OWNER, SEEN, OUTCOME, REPEATS = "key", "owner", "seen", "outcome", "repeats"
# A sign of life twice a minute; other hosts' clocks may be off by minutes.
BEAT_S, LOST_S = 30.0, 600.0
CLAIM_S = 60.0


def suggest(study: Any, trial: Any, space: Space, rows: Iterable[Row]) -> Row:
    """One of `rows` (of one candidate), knob by knob; TPE learns from every answer."""
    left = list(rows)
    for name in KNOBS:
        known = space.values(name)
        allowed = [value for value in known if any(row.values[name] == value for row in left)]
        value = pick(study, trial, name, known, allowed)
        left = [row for row in left if row.values[name] == value]
    return left[0]


def pick(study: Any, trial: Any, name: str, known: Sequence[Value], allowed: Sequence[Value]) -> Any:
    """A value of `allowed`; the range of the parameter is that of `known`, whatever is allowed."""
    study.sampler.allowed = allowed
    if name in NUMBERS or name == INDEX:
        return trial.suggest_int(name, min(known), max(known))
    return trial.suggest_categorical(name, known)


def claims(study: Any, below: int | None = None) -> dict[int, str]:
    """Jobs by the number of the trial that holds them: all with an outcome, and those that run (before `below`)."""
    found = {}
    for trial in study.get_trials(deepcopy=False):
        said = trial.user_attrs
        runs = trial.state.name == "RUNNING" and (below is None or trial.number < below)
        if KEY in said and REPEATS not in said and (runs or OUTCOME in said):
            found[trial.number] = said[KEY]
    return found


def claim(study: Any, trial: Any, key: str, most: int) -> str:
    """Claim a job for a trial: "mine", "taken", or "enough" where `most` trials hold one without it."""
    trial.set_user_attr(KEY, key)
    end = time.monotonic() + CLAIM_S
    while _undecided(study, trial.number) and time.monotonic() < end:
        time.sleep(0.05)
    held = claims(study, trial.number)
    if len(held) >= most:
        return "enough"
    return "taken" if key in held.values() else "mine"


def _undecided(study: Any, number: int) -> bool:
    return any(one.number < number and KEY not in one.user_attrs and not is_stale(one) for one in running(study))


def running(study: Any) -> list[Any]:
    """Trials that are said to run."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "RUNNING"]


def owner() -> dict[str, Any]:
    """This process, so that others can tell whether it lives."""
    import psutil

    return {"host": platform.node(), "pid": os.getpid(), "begun": psutil.Process().create_time()}


def is_stale(trial: Any) -> bool:
    """Whether the process that runs a trial is gone: of this host, or silent on another one."""
    of: Mapping[str, Any] | None = trial.user_attrs.get(OWNER)
    if of is None:
        begun = trial.datetime_start
        return begun is None or time.time() - begun.timestamp() > CLAIM_S
    if of["host"] == platform.node():
        return not _lives(of)
    return time.time() - float(trial.user_attrs.get(SEEN, 0.0)) > LOST_S


def _lives(of: Mapping[str, Any]) -> bool:
    """Whether the process that asked for a trial still runs; a later process with its number is another one."""
    import psutil

    try:
        process = psutil.Process(of["pid"])
        return bool(abs(process.create_time() - of["begun"]) < 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def seen(trial: Any) -> Iterator[None]:
    """Signs of life of a running trial for workers on other hosts."""
    over = Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            trial.set_user_attr(SEEN, time.time())

    beating = Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()


def begin(study: Any) -> Any:
    """A new trial that says whose it is."""
    trial = study.ask()
    trial.set_user_attr(OWNER, owner())
    trial.set_user_attr(SEEN, time.time())
    return trial


def withdraw(study: Any, trial: Any, why: Any) -> None:
    """Give a trial up that does not run; it counts for nothing."""
    from optuna.trial import TrialState

    trial.set_user_attr(REPEATS, why)
    study.tell(trial, state=TrialState.FAIL)


def made(space: Space, row: Row) -> Trial | None:
    """The trial of a row, None where the worker cannot run it here."""
    try:
        return space.trial(row)
    except InputError:
        space.barred.add(row.identity)
        return None
