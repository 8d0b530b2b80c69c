"""Fits the few coefficients that decide to measured runs, within their bounds, deterministically.

Least squares with a soft L1 loss on log(predicted / measured) over the logarithms of the coefficients, from starting
values that no training run decided; groups of few runs weigh as much as `SHARES` says, and a pull towards the starting
values settles what the runs leave open. scipy is imported only here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.cost.profile import Profile, load_profile
from advisor.fit.dials import DIALS, Dial, at_start, bounds, fitted_profile, turned
from advisor.fit.predict import Jobs
from advisor.fit.runs import Run
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array

SOFT = 0.06
"""Log error above which a run counts linearly instead of squared."""
SHARES = {"simumax-b200": 40.0, "moefold-t3": 30.0, "seqsel-t5": 14.0}
"""How many runs the runs of a group weigh together: some groups are few."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Result of a fit: the factor of each dial on its starting value, and the GPUs whose runs were used."""

    dials: tuple[Dial, ...]
    factors: Array
    gpus: tuple[str, ...] = ()

    def profile(self, gpu: Gpu) -> Profile:
        """The GPU's profile with the fitted coefficients."""
        return fitted_profile(gpu, self.dials, self.factors)


def weights(runs: Sequence[Run], shares: Mapping[str, float]) -> Array:
    """Weight per run: 1, or such that the runs of a group named in `shares` weigh together as that many runs."""
    sizes = Counter(run.group for run in runs)
    return np.array([np.sqrt(shares.get(run.group, sizes[run.group]) / sizes[run.group]) for run in runs])


class Problem:
    """log(predicted / measured) of runs as a function of the logarithms of the dial factors, and its derivative.

    `start` are the profiles by GPU that factors of 1 stand for; None for the starting values of the coefficients.
    """

    def __init__(self, runs: Sequence[Run], dials: Sequence[Dial], start: Mapping[str, Profile] | None = None) -> None:
        self.runs, self.dials, self.jobs = list(runs), tuple(dials), Jobs(runs)
        self.gpus = list({run.cluster.gpu.name: run.cluster.gpu for run in runs}.values())
        self.start = start or {gpu.name: at_start(load_profile(gpu), (*DIALS, *dials)) for gpu in self.gpus}
        self.measured = np.log([run.step_s or np.nan for run in runs])
        self.low, self.high = bounds(dials, list(self.start.values()))
        self.pull = np.array([dial.pull for dial in dials])

    def log_errors(self, logs: Array, where: tuple[str, ...] = ("",)) -> Array:
        """One per run; nan for runs on GPUs whose name does not begin with one of `where`."""
        made = {name: turned(profile, self.dials, np.exp(logs)) for name, profile in self.start.items()}
        seconds = self.jobs.seconds(lambda run: made[run.cluster.gpu.name], lambda gpu: gpu.name.startswith(where))
        out: Array = np.log(seconds) - self.measured
        return out

    def derivative(self, logs: Array, base: Array) -> Array:
        """D log_errors / d logs, (runs, dials); a dial is evaluated only on the GPUs it applies to."""
        out = np.zeros((len(self.runs), len(self.dials)))
        for j, dial in enumerate(self.dials):
            moved = logs.copy()
            moved[j] += 1e-3 if logs[j] + 1e-3 < self.high[j] else -1e-3
            slope = (self.log_errors(moved, dial.where or ("",)) - base) / (moved[j] - logs[j])
            out[:, j] = np.where(np.isnan(slope), 0.0, slope)
        return out

    def step(self, logs: Array, base: Array, slope: Array, weight: Array) -> Array:
        """The best logs for errors that are linear around `logs`: soft L1, within the bounds, pulled to the start."""
        from scipy.optimize import least_squares

        whole = np.vstack([weight[:, None] * slope, np.diag(self.pull)])
        margin = 1e-6 * (self.high - self.low)
        found = least_squares(
            lambda at: np.concatenate([weight * (base + slope @ (at - logs)), self.pull * at]),
            np.clip(logs, self.low + margin, self.high - margin), jac=lambda _: whole,
            bounds=(self.low, self.high), loss="soft_l1", f_scale=SOFT, max_nfev=100,
        )  # fmt: skip
        return np.asarray(found.x)


def calibrate(
    runs: Sequence[Run], shares: Mapping[str, float] = SHARES, dials: Sequence[Dial] = DIALS, steps: int = 6
) -> Fit:
    """Fits `dials` to the measured step times of `runs` in `steps` linearisations, from the starting values."""
    problem = Problem(runs, dials)
    logs, _, _ = solved(problem, weights(runs, shares), steps)
    return Fit(tuple(dials), np.exp(logs), tuple(gpu.name for gpu in problem.gpus))


def solved(problem: Problem, weight: Array, steps: int) -> tuple[Array, Array, Array]:
    """(logs, log errors, derivative) after `steps` linearisations from the starting values."""
    logs = np.clip(np.zeros(len(problem.dials)), problem.low, problem.high)
    base = problem.log_errors(logs)
    slope = problem.derivative(logs, base)
    for i in range(steps):
        logs = problem.step(logs, base, slope, weight)
        base = problem.log_errors(logs)
        if i + 1 < steps:
            slope = problem.derivative(logs, base)
    return logs, base, slope


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """A fit to all runs, and the factors of the dials of fits that have not seen the runs of one key each."""

    fit: Fit
    factors: Mapping[str, Mapping[str, Array]]


def leave_out(
    runs: Sequence[Run], keys: Mapping[str, Callable[[Run], str]], shares: Mapping[str, float] = SHARES,
    dials: Sequence[Dial] = DIALS, *, steps: int = 6, again: int = 3,
) -> LeftOut:  # fmt: skip
    """Fits once with all runs and once without each model, GPU or whatever `keys` tell apart.

    Every fit has the same starting values, bounds and pulls. A fit without some runs begins at the solution of all
    and is repeated `again` times on predictions made with its own coefficients; only the derivative is shared.
    """
    problem, weight = Problem(runs, dials), weights(runs, shares)
    logs, base, slope = solved(problem, weight, steps)
    factors: dict[str, dict[str, Array]] = {}
    for name, key in keys.items():
        values = np.array([key(run) for run in runs])
        factors[name] = {}
        for value in sorted(set(values.tolist())):
            kept = weight * (values != value)
            at, errors = logs, base
            for i in range(again):
                at = problem.step(at, errors, slope, kept)
                errors = problem.log_errors(at) if i + 1 < again else errors
            factors[name][value] = np.exp(at)
    return LeftOut(Fit(tuple(dials), np.exp(logs), tuple(gpu.name for gpu in problem.gpus)), factors)
