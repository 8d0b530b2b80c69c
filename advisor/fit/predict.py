"""Predictions for many measured runs at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from advisor.cost.profile import Profile, load_profile
from advisor.cost.setting import Setting
from advisor.cost.step import setting_of, step_seconds
from advisor.fit.runs import Run
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array, table


class Jobs:
    """Runs as tables: one per job, so that runs of the same job share it and profiles can be tried again and again.

    `key` tells jobs of equal content apart that need profiles of their own.
    """

    def __init__(self, runs: Sequence[Run], key: Callable[[Run], str] = lambda _: "") -> None:
        self.count = len(runs)
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i, run in enumerate(runs):
            workload = replace(run.workload, software="")
            groups[run.model, run.cluster.system.name, run.cluster.gpus, workload, key(run)].append(i)
        self.tables = [
            (self._setting([runs[i] for i in members]), runs[members[0]], members) for members in groups.values()
        ]

    @staticmethod
    def _setting(runs: Sequence[Run]) -> Setting:
        first = runs[0]
        columns = table([run.layout for run in runs], [run.knobs for run in runs])
        return setting_of(first.model, first.cluster, first.workload, columns, load_profile(first.cluster.gpu))

    def seconds(self, profile_of: Callable[[Run], Profile], where: Callable[[Gpu], bool] = lambda _: True) -> Array:
        """Predicted seconds per step, one per run; nan for runs on GPUs that `where` leaves out."""
        out = np.full(self.count, np.nan)
        for setting, first, members in self.tables:
            if where(setting.cluster.gpu):
                out[members] = step_seconds(replace(setting, profile=profile_of(first).under(first.workload.precision)))
        return out


def predicted_step_s(runs: Sequence[Run], profile_of: Callable[[Gpu], Profile] = load_profile) -> Array:
    """Predicted seconds per step, one per run, from the profile of its GPU."""
    return Jobs(runs).seconds(lambda run: profile_of(run.cluster.gpu))
