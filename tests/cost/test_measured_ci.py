"""Predicted against measured memory of Megatron-LM's functional tests, read through their own arguments.

Run as a script (`python -m tests.cost.test_measured_ci`) for the table of residuals.

The measured process is the last rank: Megatron writes memory through the tensorboard writer, which only rank
world_size - 1 has (ML:megatron/training/global_vars.py@d98e8a64 `_set_tensorboard_writer`), so the prediction is that
of the last pipeline stage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from advisor.cost.memory import memory
from advisor.errors import InputError
from advisor.spec.layout import table
from advisor.spec.load.megatron import MegatronJob, read_megatron_args
from advisor.spec.load.system import load_system, make_cluster
from advisor.units import GIB, MIB

SYSTEMS = {"h100-sxm-80gb": "dgx-h100", "gb200-186gb": "gb200-nvl72"}
CLASSES = ("numeric", "no_vocab", "no_world", "small", "local_impl")


@dataclass(frozen=True)
class Predicted:
    """Bytes of the last rank on one world size: at the peak, by term there, and the states alone."""

    world: int
    peak: float
    states: float
    moment: str
    terms: dict[str, float]


@dataclass(frozen=True)
class Case:
    """A measured run and what is predicted for it, one entry per world size considered."""

    id: str
    group: str
    job: MegatronJob
    peak: float
    allocated: float
    predicted: tuple[Predicted, ...]

    @property
    def error(self) -> float:
        """Relative error of the peak: distance to the predicted range where the world size is not known."""
        peaks = [one.peak for one in self.predicted]
        nearest = min(max(self.peak, min(peaks)), max(peaks))
        return nearest / self.peak - 1


def last_rank(job: MegatronJob, system: str, world: int) -> Predicted:
    """Memory of the last rank of `job` on `world` GPUs."""
    layout, knobs = job.layout(world)
    columns = table([layout], [knobs])
    cluster = make_cluster(load_system(system), world)
    found = memory(job.model, cluster, job.workload, columns, rank=layout.pp - 1)
    part = found.parts[0]

    def scalar(value: Any) -> float:
        return float(np.asarray(value).reshape(-1)[0])

    static = {name: scalar(value) for name, value in part.static.items()}
    moments = {name: {term: scalar(value) for term, value in terms.items()} for name, terms in part.moments.items()}
    worst = max(moments, key=lambda name: sum(moments[name].values()))
    held = sum(static.values())
    return Predicted(world, scalar(found.allocated_bytes), held, worst, static | moments[worst])


def worlds(job: MegatronJob, stated: int | None) -> list[int]:
    """The stated world size, else the smallest legal one and its multiples."""
    if stated is not None:
        return [stated]
    legal = []
    for times in (1, 2, 4, 8):
        try:
            job.layout(times * job.smallest_world)
        except InputError:
            continue  # the global batch does not divide over that many ranks
        legal.append(times * job.smallest_world)
    return legal


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """All measured runs with their predictions."""
    rows = yaml.safe_load((Path(__file__).parent / "data" / "measured_ci.yaml").read_text())
    found = []
    for row in rows:
        job = read_megatron_args(row["args"], vocab_size=row.get("vocab_hint"), environment=row["env"])
        group = row["class"]
        if group == "small" and row["args"].get("transformer-impl") == "local":
            group = "local_impl"
        system = SYSTEMS[row["gpu"]]
        predicted = tuple(last_rank(job, system, world) for world in worlds(job, row["world_size"]))
        expect = row["expect"]
        peak, allocated = expect["peak_allocated_GiB"] * GIB, expect["allocated_GiB"] * GIB
        found.append(Case(row["id"], group, job, peak, allocated, predicted))
    return tuple(found)


def of(*groups: str) -> list[Case]:
    """The cases of some classes."""
    return [case for case in cases() if case.group in groups]


def report(show: Callable[[str], None]) -> None:
    """Residuals: one line per case, then the figures per class."""
    for group in CLASSES:
        for case in of(group):
            parts = []
            for one in case.predicted:
                own = one.peak - one.states
                parts.append(
                    f"W{one.world} {one.peak / GIB:.2f} ({one.moment}; states {one.states / GIB:.2f} + {own / GIB:.2f})"
                )
            gap = case.predicted[0].peak - case.peak
            show(
                f"{case.id} {group:10} measured {case.peak / GIB:7.2f} states {case.allocated / GIB:6.2f} "
                f"error {100 * case.error:+6.1f} % {gap / MIB:+8.0f} MiB | " + " | ".join(parts)
            )
    for group in CLASSES:
        errors = [abs(case.error) for case in of(group)]
        gaps = [abs(case.predicted[0].peak - case.peak) / MIB for case in of(group)]
        show(
            f"{group:10} n {len(errors):2} |error| median {100 * median(errors):.1f} % worst {100 * max(errors):.1f} % "
            f"within 15 %: {sum(error <= 0.15 for error in errors)}; |MiB| median {median(gaps):.0f}"
        )


def test_numeric_cases_are_within_the_target():
    errors = sorted(abs(case.error) for case in of("numeric"))
    assert len(errors) == 4
    assert median(errors) <= 0.06
    assert errors[-1] <= 0.15


def test_measured_peak_lies_near_the_range_where_inputs_are_missing():
    near = [abs(case.error) <= 0.15 for case in of("no_world", "no_vocab")]
    assert len(near) == 10
    assert sum(near) >= 0.75 * len(near)


def test_small_cases_are_off_by_tens_of_mebibytes():
    small = of("small")
    assert len(small) == 51
    assert median(abs(case.predicted[0].peak - case.peak) for case in small) <= 60 * MIB
    assert sum(abs(case.error) <= 0.15 for case in small) >= 0.8 * len(small)


def test_states_explain_what_stays_allocated_after_a_step():
    """Without a pipeline only the workspaces of cuBLAS stay beside the states: 96 MiB, 128 more for grouped GEMMs."""
    plain = [
        case.allocated - case.predicted[0].states
        for case in of("small", "numeric")
        if case.job.layout_request["pp"] == 1 and not case.job.model.is_moe and case.job.workload.optimizer == "adam"
    ]
    assert len(plain) >= 10
    assert all(94 * MIB <= rest <= 104 * MIB for rest in plain), [rest / MIB for rest in plain]


def test_megatrons_own_layers_are_near():
    local = of("local_impl")
    assert len(local) == 9
    assert median(abs(case.error) for case in local) <= 0.10


if __name__ == "__main__":
    report(print)
