"""Corrects predictions by measured runs of the same model, GPU and precision, weighed by likeness of the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from advisor.cost.interval import shifted
from advisor.errors import InputError
from advisor.fit.committed import LeaveOut
from advisor.fit.runs import Run, read_runs, release_of
from advisor.fit.validate import Row, predict_rows
from advisor.search.request import Request
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Knobs, Layout
from advisor.spec.model import Model
from advisor.spec.plan import Candidate, Finding
from advisor.spec.workload import Workload

DOUBT = 0.2
"""Weight of "no correction" beside anchors; an anchor with the same recipe has weight 1."""
UNLIKE_KNOB, UNLIKE_DOUBLING, UNLIKE_RELEASE, MOST_RELEASES = 1.0, 0.5, 0.3, 5
"""How much less an anchor says, in logarithms, per knob that differs, per doubling of a layout field, and per release
between (where both name one)."""
KNOBS = ("dispatcher", "cuda_graph", "ep_overlap", "recompute", "full_uniform", "full_block", "fsdp", "tp_overlap")
FIELDS = ("tp", "pp", "vpp", "cp", "ep", "mbs")
LEAST_LEFT = 0.9
"""Share of an interval that remains beside an anchor of the same recipe."""


class Job(Protocol):
    """What an anchor is compared with: a measured run or a candidate of a plan."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def cluster(self) -> Cluster:
        """Where it runs."""

    @property
    def workload(self) -> Workload:
        """What is trained."""

    @property
    def layout(self) -> Layout:
        """How it is laid out."""

    @property
    def knobs(self) -> Knobs:
        """Choices within the layout."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured run with log(measured / predicted)."""

    run: Run
    log_ratio: float


def read_anchors(paths: Sequence[str | Path], leave_out: LeaveOut = "none") -> list[Anchor]:
    """Anchors of CSV files in the form of profiles/runs/published_runs.csv; InputError if no row can be used."""
    runs = [run for path in paths for run in read_runs(Path(path))[0] if run.scored]
    if not runs:
        names = ", ".join(map(str, paths))
        raise InputError(f"no measured run can be read from {names}", f"try: advisor validate {paths[0]}")
    return anchors_of(predict_rows(runs, leave_out, with_memory=False))


def anchors_of(rows: Sequence[Row]) -> list[Anchor]:
    """Anchors of rows with a measured step and without a flag."""
    return [
        Anchor(row.run, float(np.log((row.run.step_s or row.predicted_s) / row.predicted_s)))
        for row in rows
        if row.run.scored
    ]


def likeness(job: Job, run: Run) -> float:
    """Weight of `run` for `job`: 0 for another model, GPU or precision, 1 for the same recipe, less per difference."""
    same = (
        job.model.name == run.model.name
        and job.model.num_layers == run.model.num_layers
        and job.cluster.gpu.name == run.cluster.gpu.name
        and job.workload.precision.name == run.workload.precision.name
    )
    if not same:
        return 0.0
    knobs = sum(getattr(job.knobs, name) != getattr(run.knobs, name) for name in KNOBS)
    knobs += job.workload.routing != run.workload.routing
    doublings = sum(abs(np.log2(getattr(job.layout, name) / getattr(run.layout, name))) for name in FIELDS)
    doublings += abs(np.log2(job.workload.seq_len / run.workload.seq_len))
    doublings += 0.1 * abs(np.log2(job.cluster.gpus / run.cluster.gpus))
    unlike = UNLIKE_KNOB * knobs + UNLIKE_DOUBLING * doublings
    return float(np.exp(-unlike - UNLIKE_RELEASE * _releases(job.workload.software, run.workload.software)))


def _releases(one: str, other: str) -> float:
    """Releases between two names, 0 where one of them is not stated."""
    return min(abs(release_of(one) - release_of(other)) / 100, MOST_RELEASES) if one and other else 0.0


def correction(job: Job, anchors: Sequence[Anchor], but: str = "") -> tuple[float, float] | None:
    """(factor on the step, share of the interval that remains) from all anchors but the run `but`; None without any.

    The factor is the weighted mean of measured / predicted; `DOUBT` draws it towards 1 where nothing is alike.
    """
    weights = [0.0 if anchor.run.id == but else likeness(job, anchor.run) for anchor in anchors]
    whole = sum(weights)
    if whole <= 0.0:
        return None
    log_ratio = sum(weight * anchor.log_ratio for weight, anchor in zip(weights, anchors, strict=True))
    return float(np.exp(log_ratio / (whole + DOUBT))), 1 - (1 - LEAST_LEFT) * min(max(weights), 1.0)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A candidate as anchors are compared with it."""

    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    knobs: Knobs


def _chosen(request: Request, candidate: Candidate) -> _Chosen:
    return _Chosen(request.model, request.cluster, request.workload, candidate.layout, candidate.knobs)


def anchor_finding(request: Request, candidate: Candidate, anchors: Sequence[Anchor]) -> Finding:
    """What anchors did to a candidate: how many count, which is the most alike, and by what they change the step."""
    chosen = _chosen(request, candidate)
    weights = [likeness(chosen, anchor.run) for anchor in anchors]
    about = f"{request.model.name} on {request.cluster.gpu.name} in {request.workload.precision.name}"
    found = correction(chosen, anchors)
    if found is None:
        message = f"none of the {len(anchors)} measured runs is of {about}: no prediction is corrected"
        return Finding("anchor-of-something-else", "slow", message, f"anchor with a run of {about}")
    best = int(np.argmax(weights))
    message = (
        f"{sum(weight > 0 for weight in weights)} of {len(anchors)} measured runs are of {about}; the most alike, "
        f"{anchors[best].run.id}, has weight {weights[best]:.2f} (1 = the same recipe): step {found[0] - 1:+.1%}"
    )
    return Finding("anchored", "info", message)


def anchored(request: Request, candidate: Candidate, anchors: Sequence[Anchor]) -> Candidate:
    """The candidate with its step corrected, as it is where no anchor has its model, GPU and precision."""
    found = correction(_chosen(request, candidate), anchors)
    if found is None or candidate.step is None:
        return candidate
    return replace(candidate, step=shifted(candidate.step, *found))


def anchored_ranking(request: Request, candidates: Sequence[Candidate], anchors: Sequence[Anchor]) -> list[Candidate]:
    """Corrected candidates, ranks counted anew.

    The order stays where memory is the objective, and where all are corrected alike; else the fastest comes first.
    """
    found = [anchored(request, one, anchors) for one in candidates]
    speeds = [one.step.tokens_per_s_per_gpu if one.step else 0.0 for one in found]
    factors = [
        own / before.step.tokens_per_s_per_gpu
        for own, before in zip(speeds, candidates, strict=True)
        if before.step is not None
    ]
    if request.objective == "throughput" and not np.allclose(factors, factors[:1], rtol=1e-9, atol=0.0):
        found = [found[i] for i in np.argsort([-one for one in speeds], kind="stable")]
    return [replace(one, rank=rank) for rank, one in enumerate(found, 1)]
