"""Coefficients of somebody's own cluster, from own runs, as a system file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from advisor.cost.profile import Coefficient, load_profile
from advisor.errors import InputError
from advisor.fit.calibrate import Problem, solved, weights
from advisor.fit.changed import changed_by, fitted_entries, origin
from advisor.fit.dials import BF16, FP4, FP8, LOOSE, Dial
from advisor.fit.own_system import own_system
from advisor.fit.runs import Skipped, read_runs
from advisor.spec.layout import Array
from advisor.spec.load.system import load_system

OWN = "own cluster"
OWN_DIALS = tuple(
    Dial(names, pull=LOOSE)
    for names in (
        BF16, FP8, FP4, ("memory_share",), ("tp_exposed",), ("tp_exposed_overlap",), ("dp_exposed",),
        ("per_expert_s",), ("host_sync_s", "host_sync_quantised_s"), ("step_constant_s",),
    )
)  # fmt: skip
"""What differs between clusters and software stacks of the same GPU; drawn to the committed values."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Coefficients that changed, per GPU; `before` and `after` are median absolute errors in percent.

    `systems` are those that the runs ran on.
    """

    changed: dict[str, dict[str, Coefficient]]
    runs: int
    skipped: tuple[Skipped, ...]
    before_pct: float
    after_pct: float
    systems: tuple[str, ...]


def calibrate_runs(path: Path) -> Calibration:
    """Fits `OWN_DIALS` to the measured runs of a file, from the committed values. InputError without usable runs."""
    runs, skipped = read_runs(path)
    runs = [run for run in runs if run.scored]
    if not runs:
        reason = f"; line {skipped[0].line}: {skipped[0].reason}" if skipped else ""
        raise InputError(f"no measured run can be read from {path}{reason}", f"try: advisor validate {path}")
    problem = Problem(runs, OWN_DIALS, {run.cluster.gpu.name: load_profile(run.cluster.gpu) for run in runs})
    logs, errors, _ = solved(problem, weights(runs, {}), 5)
    before = problem.log_errors(np.zeros(len(OWN_DIALS)))
    changed = {gpu.name: changed_by(load_profile(gpu), OWN_DIALS, np.exp(logs), OWN) for gpu in problem.gpus}
    systems = tuple(dict.fromkeys(run.cluster.system.name for run in runs))
    return Calibration(changed, len(runs), tuple(skipped), _median_pct(before), _median_pct(errors), systems)


def _median_pct(logs: Array) -> float:
    return float(100 * np.median(np.abs(np.exp(logs) - 1)))


def calibrated_system(found: Calibration, system: str | None, note: str) -> str:
    """The system file of the runs with the fitted coefficients in it, for --system of every verb.

    `system` is the file or preset to write them into (None = the one that all runs ran on). InputError for runs on
    several systems, and for a system with another GPU.
    """
    if len(found.changed) != 1:
        raise InputError(f"runs on {len(found.changed)} GPUs make {len(found.changed)} files", "one GPU at a time")
    ((gpu, changed),) = found.changed.items()
    if system is None and len(found.systems) > 1:
        raise InputError(f"the runs are of {', '.join(found.systems)}", "name the one to write: --system")
    named = system or found.systems[0]
    if load_system(named).gpu.name != gpu:
        raise InputError(f"the runs are of {gpu}, {named} has {load_system(named).gpu.name}", "name their system")
    return own_system(named, own_entries(changed), {}, f"Calibrated by advisor calibrate --runs {note}.")


def own_entries(changed: Mapping[str, Coefficient]) -> dict[str, Any]:
    """Changed coefficients in the form of profiles/fitted, each with its origin on the own cluster."""
    return fitted_entries(changed, lambda one: f"{OWN}; {origin(one.source)}")
