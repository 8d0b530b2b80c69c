"""Joins what somebody runs today with what would be better, and with a log of the run where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advisor.check.readback import Observed, read_log
from advisor.check.subject import Subject, read_subject
from advisor.check.subject.edits import Edit, edits
from advisor.check.subject.refused import refused
from advisor.check.subject.rewrite import rewritten
from advisor.configure.job import Job
from advisor.configure.prices import Price, variable_prices
from advisor.errors import InputError
from advisor.files import write_text
from advisor.search.improve import Improvement, Improvements, improvements
from advisor.search.improve_measured import Measured


@dataclass(frozen=True, slots=True)
class Change:
    """A change with the edits that make it, numbered as the page numbers it.

    `stopped` says by what `advisor check` stops the job once they are made; it is among the risks too.
    """

    number: int
    priced: Improvement
    edits: tuple[Edit, ...]
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Improved:
    """Everything that the page shows; `kept` and `changed` are numbered on, `pair` comes last.

    `given` is what the command said beside settings of the job, as words: numbers of changes depend on it. None where a
    log came through stdin, which nobody can give again. `prices` says by name what the variables that the job wants are
    worth, and is empty where today is illegal.
    """

    subject: Subject
    found: Improvements
    observed: Observed | None
    kept: tuple[Change, ...]
    changed: tuple[Change, ...]
    pair: Change | None
    given: tuple[str, ...] | None = ()
    prices: Mapping[str, Price] = field(default_factory=dict)

    @property
    def negative(self) -> bool:
        """Whether something is off today, or one change is sure to be better."""
        off = self.subject.negative or self.found.verdict in ("oom", "illegal")
        return off or any(one.priced.sure for one in self.kept)

    @property
    def numbered(self) -> tuple[Change, ...]:
        """Every change in the order of its number."""
        return (*self.kept, *self.changed, *(() if self.pair is None else (self.pair,)))


def improved(
    path: str, options: Mapping[str, Any], logs: Sequence[str], target: str | None, version: str | None = None
) -> Improved:
    """Read a configuration, price it as it takes effect, and every single change of it."""
    observed = read_log(logs) if logs else None
    subject = read_subject(path, options, observed=observed, target=target, version=version)
    if subject.request.workload.mode != "train":
        raise InputError(f"{path} is about {subject.request.workload.mode}, not training", "plan without --mode")
    found = improvements(subject.request, subject.asked, subject.settle, _measured(observed))
    kept = _numbered(subject, found.kept, 1)
    changed = _numbered(subject, found.changed, 1 + len(kept))
    pair = None if found.pair is None else _numbered(subject, (found.pair,), 1 + len(kept) + len(changed))
    said = (*(("--log", log) for log in logs), ("--target", target), ("--target-version", version))
    given = tuple(word for name, value in said if value is not None for word in (name, value))
    return Improved(subject, found, observed, kept, changed, pair[0] if pair else None,
                    None if "-" in logs else given, _prices(subject, found))  # fmt: skip


def _prices(subject: Subject, found: Improvements) -> Mapping[str, Price]:
    """What the variables that the job wants and its files set otherwise are worth in today's step."""
    if found.now is None:
        return {}
    request, layout = subject.request, subject.asked.layout
    job = Job(request.model, request.cluster, request.workload, layout, subject.effective)
    return variable_prices(job, subject.environment, found.now)


def _measured(observed: Observed | None) -> Measured:
    if observed is None:
        return Measured()
    if observed.steps is None and observed.peak is None and not observed.settings:
        raise InputError(f"{', '.join(observed.files)} says nothing of settings, steps or memory", "give the job's log")
    return Measured(
        None if observed.steps is None else observed.steps.median_s,
        None if observed.peak is None else observed.peak.allocated_bytes,
    )


def _numbered(subject: Subject, found: Sequence[Improvement], first: int) -> tuple[Change, ...]:
    """Changes with their edits; those that the form of the file has no words for are left out."""
    made = [Change(0, one, edits(subject, one.request, one.choice)) for one in found]
    said = [replace(one, stopped=tuple(refused(subject, one.edits))) for one in made if one.edits]
    return tuple(
        replace(one, number=number, priced=replace(one.priced, risks=(*one.priced.risks, *one.stopped)))
        for number, one in enumerate(said, first)
    )


def write_taken(answer: Improved, number: int, path: str) -> Change:
    """Write the configuration with change `number` made to `path`; InputError for a number that the page lacks."""
    taken = next((one for one in answer.numbered if one.number == number), None)
    if taken is None:
        raise InputError(f"there is no change {number}", f"--take 1 to {len(answer.numbered)}")
    if Path(path).resolve() == Path(answer.subject.reading.file).resolve():
        raise InputError(f"--edited {path} is the configuration itself", "write beside it")
    try:
        write_text(Path(path), rewritten(answer.subject, taken.edits))
    except OSError as error:
        raise InputError(
            f"cannot write --edited {path}: {error.strerror}", "give a path in a folder that exists"
        ) from None
    return taken
