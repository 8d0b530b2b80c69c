"""Fits the few coefficients that measured trials decide, and says how well a trial is predicted without itself.

Every dial is a physical rate or share inside its bounds, drawn to the value the trials were planned with; how strongly
is what predicts left-out trials best. A dial that hardly moves any of the steps is left as it is: trials say nothing
about it. Noisy trials weigh less, and a trial far from all others counts linearly (soft L1, `fit.calibrate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.cost.profile import Coefficient, Profile, load_profile
from advisor.fit.calibrate import Problem
from advisor.fit.changed import changed_by, fitted_entries, with_changes
from advisor.fit.dials import BF16, FP4, FP8, Dial, touched
from advisor.fit.runs import Run
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array


def both_formats(*names: str) -> tuple[str, ...]:
    """Coefficients with those that hold in their place under bf16, where a profile has them."""
    return tuple(f"{name}{suffix}" for name in names for suffix in ("", ".bf16"))


SPEED = ("gemm.tf32", *BF16, *FP8, *FP4, "memory_share")
"""How fast the device runs as a whole: clocks, power, or who else uses it."""
TRIAL_DIALS = (
    Dial(SPEED, pull=0.25),
    *(
        Dial(names, pull=1.0)
        for names in (
            ("gemm.tf32",), BF16, FP8, FP4, both_formats("attention_time_factor"), ("memory_share",),
            both_formats("unfused_factor"), both_formats("layer_gap_s"), ("optimizer_bytes_per_param",),
            ("tp_exposed", "tp_exposed_overlap"), ("cp_exposed",), ("ep_volume_factor",), both_formats("per_expert_s"),
            both_formats("expert_layer_gap_s"), ("pp_exposed_overlap",), ("p2p_latency_s",), ("bubble_factor",),
            ("chunk_overhead_s",), ("dp_exposed",), ("host_sync_s", "host_sync_quantised_s"), ("step_constant_s",),
        )
    ),
)  # fmt: skip
PULLS = (0.1, 0.3, 1.0)
"""Factors on the pulls of the dials, of which the fit takes the one with the least error of left-out trials."""
LEAST_SLOPE = 0.05
"""A dial counts when turning it by a share moves a step by at least this part of the share."""
NOISE = 0.05
"""Spread of a trial's steps (half the distance of the quartiles) at which it weighs less by a factor of sqrt(2)."""
ROUNDS, AGAIN = 5, 3
LEAST_LEFT = 2


@dataclass(frozen=True, slots=True, eq=False)
class TrialFit:
    """Coefficients of one GPU that trials moved, and log(predicted / measured) of every run, in their order.

    `left_out` are errors of fits that have not seen the run; all-nan for one or two runs.
    """

    gpu: Gpu
    runs: tuple[Run, ...]
    changed: Mapping[str, Coefficient]
    dials: tuple[str, ...]
    before: Array
    after: Array
    left_out: Array

    @property
    def profile(self) -> Profile:
        """The GPU's profile with what changed."""
        return with_changes(load_profile(self.gpu), self.changed)

    def entries(self) -> dict[str, Any]:
        """What changed in the form of profiles/fitted."""
        return fitted_entries(self.changed)


def fit_trials(runs: Sequence[Run], spreads: Sequence[float]) -> TrialFit:
    """Fits `TRIAL_DIALS` to runs on one GPU; `spreads` is the noise of each as a share of its step."""
    gpu = runs[0].cluster.gpu
    profile = load_profile(gpu)
    free = [dial for dial in TRIAL_DIALS if _free(profile, dial)]
    whole = Problem(runs, free, {gpu.name: profile})
    before = whole.log_errors(np.zeros(len(free)))
    slope = whole.derivative(np.zeros(len(free)), before)
    sizes = np.abs(slope).max(axis=0, initial=0.0)
    moving = [dial for dial, size in zip(free, sizes, strict=True) if size >= LEAST_SLOPE]
    weight = 1 / np.sqrt(1 + (np.asarray(spreads) / NOISE) ** 2)
    logs, after, left_out = _best(Problem(runs, moving, {gpu.name: profile}), weight)
    unseen = "too few to leave one out" if np.isnan(left_out).all() else f"left out {median_pct(left_out):.1f} %"
    source = f"{len(runs)} trials of advisor trial, {unseen}"
    changed = changed_by(profile, moving, np.exp(logs), source)
    return TrialFit(gpu, tuple(runs), changed, tuple(dial.key for dial in moving), before, after, left_out)


def median_pct(log_errors: Array) -> float:
    """Median absolute error in percent of the measured step; nan where there is none."""
    known = log_errors[~np.isnan(log_errors)]
    return float(100 * np.median(np.abs(np.exp(known) - 1))) if len(known) else float("nan")


def _free(profile: Profile, dial: Dial) -> bool:
    """Whether the profile has the coefficients of a dial, above zero and with room to move."""
    found = [getattr(profile, kind)[key] for kind, key in touched(profile, dial)]
    return bool(found) and all(one.value > 0 and one.low < one.high for one in found)


def _best(problem: Problem, weight: Array) -> tuple[Array, Array, Array]:
    """(logs, log errors, log errors of left-out runs) with the pulls that predict left-out runs best.

    Where none can be left out, the strongest pull: few trials move little.
    """
    pulls, found = problem.pull, []
    for factor in PULLS:
        problem.pull = pulls * factor
        logs, after, slope = _solved(problem, weight)
        found.append((logs, after, _left_out(problem, weight, logs, after, slope)))
    scores = [float(np.average(np.abs(left), weights=weight)) for _, _, left in found]
    return found[-1] if np.isnan(scores).any() else found[int(np.argmin(scores))]


def _solved(problem: Problem, weight: Array) -> tuple[Array, Array, Array]:
    """(logs, log errors, derivative) after `ROUNDS` linearisations from where the trials were planned."""
    logs = np.zeros(len(problem.dials))
    errors = problem.log_errors(logs)
    slope = problem.derivative(logs, errors)
    for _ in range(ROUNDS if len(logs) else 0):
        logs = problem.step(logs, errors, slope, weight)
        errors = problem.log_errors(logs)
        slope = problem.derivative(logs, errors)
    return logs, errors, slope


def _left_out(problem: Problem, weight: Array, logs: Array, errors: Array, slope: Array) -> Array:
    """Error of every run under the fit without it, from the solution of all; nan for fewer than `LEAST_LEFT` others."""
    found = np.full(len(errors), np.nan)
    for i in range(len(errors) if len(errors) > LEAST_LEFT else 0):
        kept = weight * (np.arange(len(errors)) != i)
        at, now = logs, errors
        for _ in range(AGAIN if len(logs) else 0):
            at = problem.step(at, now, slope, kept)
            now = problem.log_errors(at)
        found[i] = now[i]
    return found
