"""Coefficients of somebody's own cluster, from own runs or own nccl-tests logs, as a profile file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from advisor import data
from advisor.cost.profile import Coefficient, Profile, load_profile
from advisor.errors import InputError
from advisor.fit.calibrate import Problem, solved, weights
from advisor.fit.dials import BF16, FP4, FP8, LOOSE, Dial, touched, turned
from advisor.fit.nccl_tests import network_of, read_nccl_log
from advisor.fit.runs import Skipped, read_runs
from advisor.spec.layout import Array
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.load.system import load_system
from advisor.units import gbs_to_bps

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
    """Coefficients that changed, per GPU; `before` and `after` are median absolute errors in percent (runs only)."""

    changed: dict[str, dict[str, Coefficient]]
    runs: int
    skipped: tuple[Skipped, ...]
    before_pct: float | None
    after_pct: float | None


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
    changed = {gpu.name: _changed(load_profile(gpu), np.exp(logs)) for gpu in problem.gpus}
    return Calibration(changed, len(runs), tuple(skipped), _median_pct(before), _median_pct(errors))


def _median_pct(logs: Array) -> float:
    return float(100 * np.median(np.abs(np.exp(logs) - 1)))


def _changed(profile: Profile, factors: Array) -> dict[str, Coefficient]:
    after = turned(profile, OWN_DIALS, factors)
    out = {}
    for dial, factor in zip(OWN_DIALS, factors, strict=True):
        if abs(np.log(factor)) > 1e-3:
            for kind, key in touched(profile, dial):
                out[f"gemm_tflops.{key}" if kind == "gemm" else key] = getattr(after, kind)[key]
    return out


def calibrate_network(logs: Sequence[Path], system: str) -> Calibration:
    """Network share and latency of a system from nccl-tests logs. InputError if no log spans nodes."""
    found = load_system(system)
    network = network_of([read_nccl_log(path) for path in logs], gbs_to_bps(found.inter_domain_uni_gbs))
    if network.share is None and network.latency_s is None:
        raise InputError("no log spans two nodes", "run all_gather_perf or all_reduce_perf on two nodes or more")
    profile = load_profile(found.gpu)
    source = f"nccl-tests: {', '.join(path.name for path in logs)}"
    changed = {}
    for name, value in (("network_share", network.share), ("network_latency_s", network.latency_s)):
        if value is not None:
            old = profile.coefficients[name]
            held = float(np.clip(value, old.low, old.high))
            changed[name] = Coefficient(held, old.low, old.high, "measured", source, old.start)
    return Calibration({found.gpu.name: changed}, 0, (), None, None)


def profile_text(gpu: str, changed: Mapping[str, Coefficient], note: str) -> str:
    """A whole profiles/fitted/<gpu>.yaml: the entries the GPU has, with the changed ones in their place."""
    path = data.find("profiles", f"fitted/{gpu}.yaml")
    entries = {} if path is None else read_yaml_mapping(path)
    rates = entries.pop("gemm_tflops", {})
    for name, one in changed.items():
        if name.startswith("gemm_tflops."):
            rates[name[12:]] = _entry(one, 1e12)
        else:
            entries[name] = _entry(one, 1.0)
    return f"# Coefficients of {gpu}, calibrated with {note}.\n" + yaml.safe_dump(
        {"gemm_tflops": rates, **entries}, sort_keys=False, width=10_000, default_flow_style=None
    )


def _entry(one: Coefficient, unit: float) -> dict[str, Any]:
    numbers = {"value": one.value, "start": one.start, "low": one.low, "high": one.high}
    origin = one.source.split("; started from: ")[-1]
    kind = "measured" if one.kind == "measured" else "fitted"
    rounded = {name: float(f"{value / unit:.4g}") for name, value in numbers.items()}
    return {**rounded, "kind": kind, "source": f"own cluster; {origin}"}
