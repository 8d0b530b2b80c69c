"""From measured trials to coefficients of the systems that they ran on, a fit per GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.fit.own_system import own_system
from advisor.fit.trials import TrialFit, fit_trials, median_pct
from advisor.spec.layout import Array
from advisor.trial.measured import Measured, Timed, read_measured


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the trials on one GPU gave."""

    fit: TrialFit
    trials: tuple[Timed, ...]

    @property
    def system(self) -> str:
        """The system that the trials were planned for, a preset or a file."""
        return self.trials[0].system


@dataclass(frozen=True, slots=True)
class TrialCalibration:
    """Usable trials and a fit per GPU, in the order in which the GPUs appear."""

    measured: Measured
    fits: tuple[Fitted, ...]


def calibrate_trials(folder: Path) -> TrialCalibration:
    """Fits the records of a folder of trials. InputError where none can be used (see `read_measured`)."""
    measured = read_measured(folder)
    by_gpu: dict[str, list[Timed]] = defaultdict(list)
    for one in measured.trials:
        by_gpu[one.run.cluster.gpu.name].append(one)
    fits = [
        Fitted(fit_trials([one.run for one in trials], [one.spread for one in trials]), tuple(trials))
        for trials in by_gpu.values()
    ]
    return TrialCalibration(measured, tuple(fits))


def calibrated_system(found: Fitted, measured: Measured) -> str:
    """The text of the system file with the fitted coefficients, and the trials with their errors as comments."""
    return own_system(found.system, found.fit.entries(), {}, "\n".join(_notes(found, measured)))


def _notes(found: Fitted, measured: Measured) -> Iterator[str]:
    fit = found.fit
    yield f"Calibrated by advisor calibrate --trials on {len(fit.runs)} trials: median error of the step"
    yield f"{median_pct(fit.before):.1f} % before, {median_pct(fit.after):.1f} % after, {_left_out(fit.left_out)}."
    yield "host: " + ", ".join(f"{name} {value}" for name, value in measured.environment.items())
    for run, before, left in zip(fit.runs, fit.before, fit.left_out, strict=True):
        yield f"{run.id}: {run.step_s:.4g} s measured, predicted {_signed(before)} before, {_signed(left)} left out"


def _left_out(errors: Array) -> str:
    return "too few to leave one out" if np.isnan(errors).all() else f"{median_pct(errors):.1f} % left out"


def _signed(log_error: float) -> str:
    return "-" if np.isnan(log_error) else f"{100 * np.expm1(log_error):+.1f} %"
