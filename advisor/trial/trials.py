"""The trials that a plan asks for: candidate, proxy, job, and the name and key that tell them apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.search.candidates import make_candidates
from advisor.search.request import Request
from advisor.spec.layout import CudaGraph, Knobs, Layout
from advisor.spec.plan import Candidate, StepEstimate
from advisor.trial.job import PLAIN, Drive, Tuned, make_job
from advisor.trial.proxy import make_proxy


@dataclass(frozen=True, slots=True)
class Trial:
    """One layout to run. `request` and `candidate` are the plan's; `run_request` and `run_candidate` what is run.

    They differ for a proxy (`proxy_layers` is then not None), and where the plan captures CUDA graphs, which a trial
    runs without. What is run is priced as it is run. Equal keys mean equal jobs.
    """

    source: str
    request: Request
    candidate: Candidate
    run_request: Request
    run_candidate: Candidate
    proxy_layers: int | None
    job: dict[str, Any]
    tuned: Tuned = PLAIN

    @property
    def predicted(self) -> StepEstimate:
        """The predicted step of what is run; InputError for a plan that trains nothing."""
        if self.run_candidate.step is None:
            raise InputError(f"{self.source} is not a plan of training", "leave out --mode")
        return self.run_candidate.step

    @property
    def name(self) -> str:
        """The layout in a word that can be a folder's name, with the begin of the key."""
        return f"{words_of(self.candidate.layout, self.candidate.knobs)}-{self.key[:8]}"

    @property
    def key(self) -> str:
        """Hash over everything that the ranks are told."""
        return hashlib.sha256(json.dumps(self.job, sort_keys=True).encode()).hexdigest()

    @property
    def ranks(self) -> int:
        """Processes of the group."""
        return self.run_candidate.layout.gpus

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """What runs in place of what was planned, in words."""
        graphs = self.candidate.knobs.cuda_graph
        said = () if graphs is CudaGraph.none else (f"no CUDA graphs in place of {graphs.name} ones, and priced so",)
        return (*said, *self.job["stand_ins"])


def words_of(layout: Layout, knobs: Knobs) -> str:
    """Sizes above 1 of a layout in a word (tp2-pp2-vpp2-mbs1), with the dispatcher of a mixture of experts."""
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
    sizes = [f"{name}{getattr(layout, name)}" for name in names if getattr(layout, name) > 1]
    if knobs.dispatcher:
        sizes.append(knobs.dispatcher.name)
    return "-".join([*sizes, f"mbs{layout.mbs}"])


def make_trial(  # noqa: PLR0917
    source: str, request: Request, candidate: Candidate, drive: Drive, layers: int | None, tuned: Tuned = PLAIN
) -> Trial:
    """The trial of a candidate, as a proxy of `layers` layers unless that is None."""
    run_request, run = (request, candidate) if layers is None else make_proxy(request, candidate, layers)
    if run.knobs.cuda_graph is not CudaGraph.none:
        knobs = dataclasses.replace(run.knobs, cuda_graph=CudaGraph.none)
        (run,) = make_candidates(run_request, [(run.layout, knobs)], ranks=[candidate.rank])
    job = make_job(run_request, run, drive, tuned)
    return Trial(source, request, candidate, run_request, run, layers, job, tuned)


def read_trials(
    plan: Path, top: int, drive: Drive, proxy_layers: int | None
) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """Trials of the best `top` candidates of a plan's JSON that can run, and why better ones were left out.

    A plan may hold fewer, an estimate holds one. Raises InputError for a file that is no plan, or when none can run.
    """
    best = read_plan(plan)
    held = len(json.loads(plan.read_text(encoding="utf-8")).get("candidates", [None]))
    trials: list[Trial] = []
    left_out: list[str] = []
    for rank in range(1, held + 1):
        one = best if rank == 1 else read_plan(plan, rank)
        try:
            trials.append(make_trial(str(plan), one.request, one.candidate, drive, proxy_layers))
        except InputError as problem:
            left_out.append(f"candidate {rank}: {problem.message}")
            if len(left_out) == held:
                raise
        if len(trials) == top:
            break
    return tuple(trials), tuple(left_out)
