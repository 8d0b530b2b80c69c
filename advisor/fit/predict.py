"""Predictions for many measured runs at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from advisor.cost.profile import Profile, load_profile
from advisor.cost.step import step
from advisor.fit.runs import Run
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array, table


def predicted_step_s(runs: Sequence[Run], profile_of: Callable[[Gpu], Profile] = load_profile) -> Array:
    """Predicted seconds per step, one per run; runs of the same job share one table."""
    jobs: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        system = run.cluster.system
        jobs[run.model, system.name, run.cluster.gpus, replace(run.workload, software="")].append(i)
    out = np.empty(len(runs))
    for members in jobs.values():
        first = runs[members[0]]
        columns = table([runs[i].layout for i in members], [runs[i].knobs for i in members])
        profile = profile_of(first.cluster.gpu)
        out[members] = step(first.model, first.cluster, first.workload, columns, profile).step_s
    return out
