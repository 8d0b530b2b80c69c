"""Environment variables of a training process: what overlap needs that no configuration field can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.configure.job import Job, preset
from advisor.spec.hardware import BLACKWELL
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp

FILE = "launch/environment.yaml"
LARGE_HIDDEN = 8192


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the environment, with the reason for its value."""

    name: str
    value: str
    reason: str
    source: str


def traits(job: Job) -> frozenset[str]:
    """What the conditions of presets/launch/environment.yaml may ask of a job."""
    layout, knobs, gpu = job.layout, job.knobs, job.gpu
    held = {
        "sm100": gpu.capability_major >= BLACKWELL,
        "fsdp": knobs.fsdp is not Fsdp.none,
        "tp_or_cp": layout.tp > 1 or layout.cp > 1,
        "ep_overlap": knobs.ep_overlap,
        "flex": knobs.dispatcher in (Dispatcher.deepep, Dispatcher.hybridep),
        "hybridep": knobs.dispatcher is Dispatcher.hybridep,
        "full_iteration": knobs.cuda_graph is CudaGraph.full_iteration,
        "rack": job.cluster.system.nvlink_domain > job.cluster.system.gpus_per_node,
        "staged": layout.pp > 1,
        "large_dense": not job.model.is_moe and job.model.hidden >= LARGE_HIDDEN,
        "nvfp4": job.workload.precision.name == "nvfp4",
        "b300": gpu.name.startswith("b300"),
        "grace": gpu.name.startswith("gb"),
        "latent_attention": job.model.has_mla,
        "fine_offload": bool(knobs.offload_modules),
        "inference": job.workload.mode != "train",
    }
    return frozenset(name for name, holds in held.items() if holds)


def variables(job: Job) -> tuple[Variable, ...]:
    """The variables to export for `job` (with the knobs that really take effect), in the order of the preset."""
    table = preset(FILE)
    held = traits(job)
    domain = job.cluster.system.nvlink_domain
    filled = {"domain": domain, "hybridep_ranks": min(job.layout.ep, domain)}
    found = []
    for name, rows in table["variables"].items():
        row = next((one for one in rows if _holds(one, held)), None)
        if row is not None:
            value = str(row["value"]).format_map(filled)
            found.append(Variable(name, value, str(row["why"]), "MB:scripts/performance recipes, env_vars"))
    return tuple(found)


def _holds(row: Mapping[str, object], held: frozenset[str]) -> bool:
    conditions = row["when"]
    if not isinstance(conditions, list):
        return False
    return all((text[1:] not in held) if text.startswith("-") else (text in held) for text in map(str, conditions))
