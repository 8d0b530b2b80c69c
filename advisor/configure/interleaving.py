"""Virtual pipeline stages: what each number of chunks per rank costs in memory and brings in bubble and overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.configure.job import Job
from advisor.cost.memory import memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import findings
from advisor.search.stages import balanced_split, rank_loads
from advisor.search.weights import stage_weights
from advisor.spec.layout import Layout, table

MOST = 12


@dataclass(frozen=True, slots=True)
class Interleaving:
    """One choice of `vpp`: step, bubble and exposed transfers in seconds, peak bytes of the worst rank.

    `imbalance` is the heaviest pipeline rank over the mean (1 = balanced), `form` how Megatron is told the split.
    """

    vpp: int
    form: str
    imbalance: float
    step_s: float
    bubble_s: float
    exposed_pp_s: float
    peak_bytes: float
    fits: bool
    chosen: bool


def interleavings(job: Job, budget_bytes: float) -> tuple[Interleaving, ...]:
    """Every legal number of chunks per rank, each with its balanced split; empty without pipeline parallelism.

    `chosen` marks the fastest that fits `budget_bytes`.
    """
    if job.layout.pp < 2:
        return ()
    layouts = [layout for layout in _layouts(job) if _legal(job, layout)]
    if not layouts:
        return ()
    columns = table(layouts, [job.knobs] * len(layouts))
    sizes = memory(job.model, job.cluster, job.workload, columns)
    times = step(job.model, job.cluster, job.workload, columns, load_profile(job.gpu))
    weights = stage_weights(job.model, job.workload, job.workload.mtp_depth)
    found = []
    for i, layout in enumerate(layouts):
        peak, time = sizes.detail(i).peak_device_bytes, times.detail(i)
        loads = rank_loads(layout.split, weights)
        found.append(
            Interleaving(
                vpp=layout.vpp,
                form=layout.split.form,
                imbalance=max(loads) * len(loads) / sum(loads),
                step_s=time.step_s,
                bubble_s=time.bubble_s,
                exposed_pp_s=time.exposed_s["pp"],
                peak_bytes=peak,
                fits=peak <= budget_bytes,
                chosen=False,
            )
        )
    fitting = [one for one in found if one.fits]
    best = min(fitting, key=lambda one: (one.step_s, one.vpp), default=None)
    return tuple(replace(one, chosen=one is best) for one in found)


def _layouts(job: Job) -> list[Layout]:
    found, most = [job.layout], max(1, job.model.num_layers // job.layout.pp)
    for vpp in range(1, min(most, MOST) + 1):
        split = balanced_split(job.model, job.workload, job.layout.pp, vpp, job.workload.mtp_depth)
        if split is not None and vpp != job.layout.vpp:
            found.append(replace(job.layout, vpp=vpp, split=split))
    return sorted(found, key=lambda layout: layout.vpp)


def _legal(job: Job, layout: Layout) -> bool:
    found = findings(job.model, job.cluster, job.workload, layout, job.knobs)
    return all(one.severity != "stop" for one in found)
