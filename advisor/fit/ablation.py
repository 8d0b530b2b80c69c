"""What each part of the model is worth: errors with it switched off, everything else as fitted with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from advisor.cost.profile import Profile, load_profile
from advisor.fit.dials import DIALS, RAMPS, at_start
from advisor.fit.predict import Jobs
from advisor.fit.runs import Run
from advisor.fit.validate import groups_of
from advisor.spec.hardware import Gpu

SHAPES = (
    *RAMPS, "grouped_fwd_ramp_m", "grouped_dgrad_ramp_m", "grouped_wgrad_ramp_m", "grouped_ramp_n", "grouped_ramp_k",
    "attention_ramp_blocks",
)  # fmt: skip
EXPERTS = ("ep_exposed", "ep_exposed_overlap", "ep_exposed_overlap_network", "per_expert_s")
HIDDEN = ("tp_exposed", "tp_exposed_overlap", "cp_exposed", "ep_exposed_overlap", "ep_exposed_overlap_network",
          "pp_exposed_overlap", "dp_exposed", "fsdp_exposed")  # fmt: skip
HOST = ("host_dense_layer_s", "host_moe_layer_s", "host_sync_s", "host_sync_quantised_s", "chunk_overhead_s",
        "layer_gap_s", "collective_wait_s", "step_constant_s", "straggler_share",
        "straggler_share_quantised")  # fmt: skip


def _held(values: Mapping[str, float]) -> Callable[[Gpu], Profile]:
    def made(gpu: Gpu) -> Profile:
        profile = load_profile(gpu)
        changed = {name: replace(profile.coefficients[name], value=value) for name, value in values.items()}
        return replace(profile, coefficients=MappingProxyType({**profile.coefficients, **changed}))

    return made


ABLATIONS: Mapping[str, Callable[[Gpu], Profile]] = MappingProxyType(
    {
        "everything": load_profile,
        "without shapes": _held(dict.fromkeys(SHAPES, 0.0)),
        "without expert exchange": _held(dict.fromkeys(EXPERTS, 0.0)),
        "without overlap": _held(dict.fromkeys(HIDDEN, 1.0)),
        "without host time": _held(dict.fromkeys(HOST, 0.0)),
        "without the fit": lambda gpu: at_start(load_profile(gpu), DIALS),
    }
)


def ablations(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Median absolute error of the step in percent per ablation and group, "all" for all runs together."""
    jobs = Jobs(runs)
    measured = np.array([run.step_s for run in runs], dtype=np.float64)
    out = {}
    for name, profile_of in ABLATIONS.items():
        made = {run.cluster.gpu.name: profile_of(run.cluster.gpu) for run in runs}
        errors = 100 * np.abs(jobs.seconds(lambda run, made=made: made[run.cluster.gpu.name]) / measured - 1)  # type: ignore[misc]
        groups = sorted({group for run in runs for group in groups_of(run)})
        out[name] = {"all": float(np.median(errors))} | {
            group: float(np.median(errors[[group in groups_of(run) for run in runs]])) for group in groups
        }
    return out


def noise_floor(runs: Sequence[Run]) -> dict[str, tuple[int, float, float]]:
    """Per group (layouts, median, greatest) of the spread in percent of the same layout in different releases."""
    same: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        key = (run.group, run.model_name, run.model.num_layers, run.cluster.system.name, run.cluster.gpus,
               replace(run.workload, software=""), run.layout, run.knobs)  # fmt: skip
        same.setdefault(key, []).append(run)
    spreads: dict[str, list[float]] = {}
    for found in same.values():
        steps = [run.step_s for run in found if run.step_s is not None]
        if len({run.software for run in found}) > 1 and len(steps) > 1:
            for group in groups_of(found[0]):
                spreads.setdefault(group, []).append(100 * (max(steps) / min(steps) - 1))
    return {group: (len(of), float(np.median(of)), max(of)) for group, of in sorted(spreads.items())}
