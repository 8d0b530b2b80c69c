"""A plan's promise beside a trace: predicted and measured hidden share per communication kind, and a verdict.

The promise is the step of a candidate in the JSON that `advisor plan` or `advisor estimate` writes: `exposed_s` and
`hidden_s` per kind. A plan counts the data-parallel traffic of experts (edp) within dp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advisor.errors import InputError
from advisor.spec.load.plan_file import entry_of, read_record
from advisor.trace.analysis import Figures
from advisor.trace.kernels import table

Verdict = Literal["confirmed", "less than predicted", "not effective"]

PLAN_KINDS = ("tp", "cp", "pp", "dp", "ep")
WITHIN = {"edp": "dp"}
# Assumed: ten points are within what steps differ by; below a quarter of the promise, overlap does not work at all.
TOLERANCE = 0.10
INEFFECTIVE_SHARE = 0.25
LEAST_S = 1e-5


@dataclass(frozen=True, slots=True)
class Promise:
    """Predicted seconds of one step: whole, and per kind exposed and hidden."""

    path: Path
    rank: int
    step_s: float
    exposed_s: dict[str, float]
    hidden_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class KindVerdict:
    """One kind: predicted and measured seconds and shares (None where there is no such communication), and the verdict.

    `verdict` is None where one side has no communication of this kind or the plan promises to hide nothing; `reason`
    then says so, otherwise it is the first thing to change.
    """

    kind: str
    predicted_hidden_s: float
    predicted_exposed_s: float
    measured_hidden_s: float
    measured_exposed_s: float
    verdict: Verdict | None
    reason: str

    @property
    def predicted_share(self) -> float | None:
        """Predicted hidden / all of this kind."""
        return _share(self.predicted_hidden_s, self.predicted_exposed_s)

    @property
    def measured_share(self) -> float | None:
        """Measured hidden / all of this kind."""
        return _share(self.measured_hidden_s, self.measured_exposed_s)


def _share(hidden: float, exposed: float) -> float | None:
    return hidden / (hidden + exposed) if hidden + exposed >= LEAST_S else None


def read_promise(path: Path, rank: int = 1) -> Promise:
    """The step of the candidate with this rank (1 = the best) in a plan's JSON, or of an estimate's JSON.

    Raises:
        InputError: the file is no plan, has no such candidate or no step time.
    """
    step = entry_of(read_record(path), rank, str(path)).get("step")
    if not isinstance(step, Mapping):
        raise InputError(f"{path}: no plan with step times in it", "leave out --mode when planning")
    return Promise(
        path=path, rank=rank, step_s=_seconds(path, step, "step_s"),
        exposed_s={kind: _seconds(path, step, "exposed_s", kind) for kind in PLAN_KINDS},
        hidden_s={kind: _seconds(path, step, "hidden_s", kind) for kind in PLAN_KINDS},
    )  # fmt: skip


def _seconds(path: Path, step: Mapping[str, Any], *names: str) -> float:
    value: Any = step
    for name in names:
        value = value.get(name, 0.0) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{path}: step.{'.'.join(names)} is {str(value)[:40]!r}, not a number of seconds")
    return float(value)


def verdicts(promise: Promise, measured: Figures) -> list[KindVerdict]:
    """One per kind that either side has, in the order of the plan; `measured` is a mean step."""
    hidden: dict[str, float] = dict.fromkeys(PLAN_KINDS, 0.0)
    exposed: dict[str, float] = dict.fromkeys(PLAN_KINDS, 0.0)
    for name, figures in measured.kinds.items():
        kind = WITHIN.get(name, name)
        if kind in hidden:
            hidden[kind] += figures.hidden_s
            exposed[kind] += figures.exposed_s
    found = [_judged(kind, promise, hidden[kind], exposed[kind]) for kind in PLAN_KINDS]
    return [one for one in found if one.predicted_share is not None or one.measured_share is not None]


def _judged(kind: str, promise: Promise, hidden: float, exposed: float) -> KindVerdict:
    predicted, measured = _share(promise.hidden_s[kind], promise.exposed_s[kind]), _share(hidden, exposed)
    verdict: Verdict | None = None
    if measured is None:
        reason = "the trace holds no communication that is known to be of this kind"
    elif predicted is None:
        reason = "the plan predicts no communication of this kind"
    elif predicted < TOLERANCE:
        reason = "the plan promises to hide nothing worth the name"
    elif measured >= predicted - TOLERANCE:
        verdict, reason = "confirmed", ""
    else:
        verdict = "not effective" if measured < INEFFECTIVE_SHARE * predicted else "less than predicted"
        reason = str(table("advice")["advice"].get(kind, ""))
    return KindVerdict(kind, promise.hidden_s[kind], promise.exposed_s[kind], hidden, exposed, verdict, reason)
