"""What is exported: a chosen layout with its overlap resolved for one version of the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from advisor.configure.chosen import Chosen
from advisor.configure.environment import Variable, variables
from advisor.configure.job import Job, preset
from advisor.configure.overlap import Overlap, resolve
from advisor.configure.resolved import Asked, asked_of
from advisor.errors import InputError
from advisor.search.stages import balanced_split, even_split
from advisor.spec.layout import Knobs, Layout
from advisor.spec.load.fields import did_you_mean
from advisor.spec.model import Model
from advisor.spec.split import PipelineSplit


@dataclass(frozen=True, slots=True)
class Subject:
    """A layout to export; `version` is that of Bridge ("0.3", "0.6"), `core` the Megatron-Core that goes with it.

    `knobs` of `job` are those that take effect; `origin` names the plan and the candidate for the head of a file.
    """

    job: Job
    overlap: Overlap
    environment: tuple[Variable, ...]
    version: str
    core: str
    origin: str

    @property
    def model(self) -> Model:
        """The model trained."""
        return self.job.model

    @property
    def layout(self) -> Layout:
        """The layout exported."""
        return self.job.layout

    @property
    def knobs(self) -> Knobs:
        """The knobs that take effect."""
        return self.job.knobs

    @property
    def title(self) -> str:
        """Model, GPUs and layout in one line."""
        layout = self.layout
        sizes = f"TP{layout.tp} PP{layout.pp} VPP{layout.vpp} CP{layout.cp} EP{layout.ep} ETP{layout.etp} DP{layout.dp}"
        return f"{self.model.name} on {layout.gpus} x {self.job.gpu.name}: {sizes} MBS{layout.mbs} GBS{layout.gbs}"


def versions(target: str) -> list[str]:
    """Versions that a target is exported for, oldest first: of megatron-core for Megatron-LM, else of Bridge."""
    return list(preset("versions.yaml")["core" if target == "megatron-lm" else "bridge"])


def version_pair(target: str, asked: str | None) -> tuple[str, str]:
    """Bridge and Megatron-Core version for what was asked ("0.6.2" counts as 0.6); the newest when nothing was.

    Raises InputError for a version that is not in presets/versions.yaml.
    """
    known = versions(target)
    wanted = known[-1] if asked is None else ".".join(str(asked).strip().lstrip("v").split(".")[:2])
    if wanted not in known:
        raise InputError(f"--target-version {asked} is not known for {target}", did_you_mean(wanted, known))
    table = preset("versions.yaml")["bridge"]
    if target == "megatron-lm":
        return next(bridge for bridge, row in table.items() if row["core"] == wanted), wanted
    return wanted, str(table[wanted]["core"])


def plain_split(job: Job) -> PipelineSplit:
    """The split of a layout in the fewest words that Megatron needs for it; a plan file only keeps the layers."""
    split, depth = job.layout.split, job.workload.mtp_depth
    if job.model.is_hybrid:
        return replace(split, form="pattern")
    for found in (
        even_split(job.model.num_layers, split.pp, split.vpp, depth),
        balanced_split(job.model, job.workload, split.pp, split.vpp, depth),
    ):
        home = split.mtp_chunk if depth else None
        if found is not None and (found.layers, found.mtp_chunk) == (split.layers, home):
            return replace(found, group=split.group)
    return split


def subject(chosen: Chosen, target: str, version: str | None, asked: Asked | None = None) -> Subject:
    """The layout of a plan, ready for `target`; overlap is asked for as the knobs of the plan say unless `asked` does.

    Raises InputError when the framework would refuse what is asked for.
    """
    bridge, core = version_pair(target, version)
    job = Job(chosen.model, chosen.cluster, chosen.workload, chosen.layout, chosen.knobs)
    job = replace(job, layout=replace(job.layout, split=plain_split(job)))
    wanted = asked or asked_of(job.knobs)
    overlap = resolve(job, replace(wanted, target=bridge))
    if overlap.stopped:
        first = overlap.stopped[0]
        raise InputError(f"{target} {bridge} would refuse {first.path}: {first.reason}", "plan or estimate it again")
    held = replace(job, knobs=overlap.effective)
    origin = f"{chosen.source}, candidate {chosen.rank}"
    return Subject(held, overlap, variables(held), bridge, core, origin)


def recipe(model: str, version: str) -> tuple[str, str] | None:
    """Module and function of Bridge's own pre-training recipe for a model preset, None where it has none."""
    row: Any = preset("versions.yaml")["recipes"].get(model)
    if not isinstance(row, dict) or version not in row["versions"]:
        return None
    return f"megatron.bridge.recipes.{row['module']}", str(row["function"])
