"""What was measured of a job beside what is predicted and what was published for the same model and GPU."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from advisor import data
from advisor.errors import AdvisorError
from advisor.search.request import Request
from advisor.spec.load.system import load_system
from advisor.spec.plan import Candidate, Finding

RUNS, FIGURES = "runs/published_runs.csv", "public_figures.csv"
SPARSE = 2.0
"""Peak with 2:4 structured sparsity over the dense peak, as datasheets print it beside."""
NEAR = 0.8
"""A measured rate below this share of a published one needs a reason."""


@dataclass(frozen=True, slots=True)
class Published:
    """One public figure: model TFLOP/s per GPU, and under which software, number format and GPU count."""

    tflops: float
    software: str
    precision: str
    gpus: int | None
    source: str

    @property
    def words(self) -> str:
        """The figure and what is known of the run behind it."""
        size = "" if self.gpus is None else f", {self.gpus} GPUs"
        return f"{self.tflops:g} TFLOP/s published for {self.software}, {self.precision}{size}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured rate: model TFLOP/s per GPU over the dense peak of the number format (`mfu`), beside `published`."""

    tflops: float
    mfu: float
    peak_tflops: float
    published: tuple[Published, ...]
    findings: tuple[Finding, ...]


@lru_cache(maxsize=1)
def _rows() -> tuple[Mapping[str, str], ...]:
    """Public figures of whole models: those of runs, and those of reports without a layout."""
    found = []
    for name in (RUNS, FIGURES):
        lines = data.require("profiles", name).read_text(encoding="utf-8").splitlines()
        found += list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return tuple(row for row in found if row["tflops_per_gpu"] and not row.get("num_layers") and row["precision"])


def _gpu_of(row: Mapping[str, str]) -> str:
    return row["gpu"] if "gpu" in row else _gpu_of_system(row["system"])


@lru_cache(maxsize=64)
def _gpu_of_system(system: str) -> str:
    try:
        return load_system(system).gpu.name
    except AdvisorError:
        return ""


def published(model: str, gpu: str) -> tuple[Published, ...]:
    """Public figures of a whole model on a GPU, in the order of the file; () where there are none."""
    return tuple(
        Published(
            tflops=float(row["tflops_per_gpu"]),
            software=row["software"],
            precision=row["precision"],
            gpus=int(row["gpus"]) if row["gpus"] else None,
            source=row["source"],
        )
        for row in _rows()
        if row["model"] == model and _gpu_of(row) == gpu
    )


def measured(request: Request, candidate: Candidate | None, tflops: float) -> Measured:
    """What a measured rate of a job says, beside the prediction for `candidate` and what is published.

    `tflops` are model TFLOP/s per GPU, as Megatron prints them.
    """
    gpu, precision = request.cluster.gpu, request.workload.precision
    peak = gpu.peak_tflops.get(precision.gemm, gpu.peak_tflops["bf16"])
    known = published(request.model.name, gpu.name)
    findings = (
        _utilisation(request, tflops, peak),
        *_beside_prediction(candidate, tflops),
        *_beside_published(request, known, tflops),
    )
    return Measured(tflops, tflops / peak, peak, known, findings)


def _utilisation(request: Request, tflops: float, peak: float) -> Finding:
    gpu, precision = request.cluster.gpu, request.workload.precision
    said = (
        f"{tflops:g} TFLOP/s are {tflops / peak:.2%} of the dense {precision.gemm} peak of {gpu.name}, {peak:g};"
        f" {SPARSE * peak:g}, with 2:4 sparsity, is no peak of training"
    )
    if tflops > peak:
        return Finding("measured-utilisation", "slow", f"{said}: more than the peak, the count or the time is wrong")
    return Finding("measured-utilisation", "info", said)


def _beside_prediction(candidate: Candidate | None, tflops: float) -> Iterator[Finding]:
    if candidate is None or candidate.step is None:
        return
    step = candidate.step
    low, high = (step.tflops_per_gpu * step.step_s / seconds for seconds in (step.high_s, step.low_s))
    between = f"the {step.interval_level:.0%} interval of the prediction, {low:.0f} to {high:.0f} TFLOP/s"
    if tflops < low:
        lost = 1 - tflops / step.tflops_per_gpu
        yield Finding(
            "measured-below-prediction", "slow",
            f"{tflops:g} TFLOP/s are below {between}: {lost:.0%} less than this layout should reach",
            "look at exposed communication, host time and stragglers: advisor improve LOG, advisor trace FILES",
        )  # fmt: skip
    elif tflops > high:
        yield Finding("measured-above-prediction", "info", f"{tflops:g} TFLOP/s are above {between}")


def _beside_published(request: Request, known: tuple[Published, ...], tflops: float) -> Iterator[Finding]:
    """The newest figure in the same format, or that there is none; how far figures moved between releases."""
    if not known:
        return
    precision = request.workload.precision.name
    alike = [one for one in known if one.precision == precision]
    newest = max(alike or known, key=lambda one: (one.software, one.tflops))
    if not alike:
        yield Finding(
            "nothing-published-in-format", "info",
            f"no public figure of {request.model.name} on {request.cluster.gpu.name} is in {precision}; the"
            f" {newest.words}, are of another format and judge nothing here",
        )  # fmt: skip
    elif tflops < NEAR * newest.tflops:
        yield Finding(
            "measured-below-published", "slow",
            f"{tflops:g} TFLOP/s are {tflops / newest.tflops:.0%} of the {newest.words}",
            f"compare layout, dispatcher, graphs and release with {newest.source}",
        )  # fmt: skip
    yield from figures_move(request.model.name, request.cluster.gpu.name, alike or list(known))


def figures_move(model: str, gpu: str, figures: list[Published]) -> Iterator[Finding]:
    """How far public figures of one number format are apart between releases; each needs a version and a date."""
    by_format: dict[str, list[Published]] = {}
    for one in figures:
        by_format.setdefault(one.precision, []).append(one)
    for precision, those in by_format.items():
        releases = sorted({one.software for one in those})
        low, high = min(one.tflops for one in those), max(one.tflops for one in those)
        if len(releases) > 1:
            yield Finding(
                "published-figures-move", "info",
                f"{len(those)} public figures of {model} on {gpu} in {precision} go from {low:g} to {high:g} TFLOP/s"
                f" ({high / low - 1:+.0%}) over {len(releases)} releases, {releases[0]} to {releases[-1]}",
                "give the release and the date with every reference",
            )  # fmt: skip
