"""Reads a plan or an estimate back from its JSON file: the layout somebody chose, priced again by this version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import InputError
from advisor.search.candidates import make_candidates
from advisor.search.dials import KNOB_DIALS, knob_fields
from advisor.search.request import Request, resolve
from advisor.search.single import SIZES, make_layout
from advisor.search.sources import Setting
from advisor.search.values import whole
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Knobs, Layout
from advisor.spec.load.plan_file import MAKE_ONE, entry_of, read_record
from advisor.spec.model import Model
from advisor.spec.plan import Candidate, StepEstimate
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Chosen:
    """One candidate of a plan with the request it answers; `source` is the file, `rank` its place in the plan."""

    request: Request
    candidate: Candidate
    source: str
    rank: int

    @property
    def model(self) -> Model:
        """The model trained."""
        return self.request.model

    @property
    def cluster(self) -> Cluster:
        """The GPUs it runs on."""
        return self.request.cluster

    @property
    def workload(self) -> Workload:
        """What is trained, for every layout alike."""
        return self.request.workload

    @property
    def layout(self) -> Layout:
        """The layout chosen."""
        return self.candidate.layout

    @property
    def knobs(self) -> Knobs:
        """The knobs chosen."""
        return self.candidate.knobs

    @property
    def step(self) -> StepEstimate:
        """Predicted seconds of one step; InputError for a plan that trains nothing."""
        if self.candidate.step is None:
            raise InputError(f"{self.source} is not a plan of training", "leave out --mode")
        return self.candidate.step


def read_plan(path: str | Path, rank: int = 1) -> Chosen:
    """Candidate `rank` (1 = best) of a plan, or the layout of an estimate, from the JSON file `path`.

    Memory and step are computed again from the layout, so an old file is judged by the coefficients of today. Raises
    InputError for a file that is no plan, that has no such candidate, or whose settings this version does not know.
    """
    return chosen_of(read_record(Path(path)), str(path), rank)


def chosen_of(record: Mapping[str, Any], path: str, rank: int = 1) -> Chosen:
    """As `read_plan`, of the content of a file: a plan, an estimate, or the record of a trial."""
    entry = entry_of(record, rank, path)
    try:
        request = resolve(_settings(record["request"]))
        words = dict(entry["layout"])
        words["split"] = None
        if words.get("pp") == 1:
            words["pipeline_layout"] = None
        sizes = {name: whole(name, words[name]) for name in (*SIZES, "gbs")}
        fields = _without_none(words) | sizes
        layout = make_layout(request.model, request.workload, request.cluster.gpus, sizes["gbs"], fields)
        knobs = Knobs(**knob_fields({**entry["knobs"]}))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(f"{path} is no plan of this version: {problem!r}", MAKE_ONE) from problem
    _refuse_others(layout, entry, request.cluster.gpus, path)
    (candidate,) = make_candidates(request, [(layout, knobs)], ranks=[rank])
    return Chosen(request, candidate, path, rank)


def _refuse_others(layout: Layout, entry: Mapping[str, Any], gpus: int, path: str) -> None:
    """Refuse what would be dropped without a word: knobs that this version does not know, sizes of another job."""
    unknown = sorted(set(entry["knobs"]) - set(KNOB_DIALS))
    if unknown:
        raise InputError(f"{path} sets {', '.join(unknown)[:80]}, which this version does not know", MAKE_ONE)
    if {layout.tp * layout.cp * layout.dp * layout.pp, layout.etp * layout.ep * layout.edp * layout.pp} != {gpus}:
        sizes = ", ".join(f"{name} {getattr(layout, name)}" for name in SIZES)
        raise InputError(f"{path} is for {gpus} GPUs, which the sizes of its layout do not divide: {sizes}", MAKE_ONE)


def _settings(request: Mapping[str, Any]) -> dict[str, Setting]:
    """Settings of a request record with their origins; what says nothing (null) is left to the default."""
    origins, notes = dict(request.get("origins", {})), dict(request.get("notes", {}))
    return {
        name: Setting(value, str(origins.get(name, "plan")), str(notes.get(name, "")))
        for name, value in request.items()
        if name not in {"origins", "notes", "top"} and value is not None
    }


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
