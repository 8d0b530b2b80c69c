"""What each overlap brings: the step of the cost model with the knob and without it, all else equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from advisor.configure.experts import FLEX, backend_runs_on
from advisor.configure.job import Job
from advisor.configure.overlap import LATENT
from advisor.cost.buckets import BRIDGE_BUCKET, TRIED_BUCKETS
from advisor.cost.pairs import ratio_spread
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import findings
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, table
from advisor.spec.plan import StepEstimate
from advisor.spec.workload import Workload

Change = Callable[[Job], Job]
GainKind = Literal["fitted", "measured", "assumed", "none"]

ONE_BUCKET = 2**50
"""Parameters that no chunk holds: everything in one bucket."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of a step with and without one overlap; `saved_s` = without - with, `low_s` and `high_s` its interval.

    `now` says whether the job has it. `note` says why a side could not be computed (then the seconds are None and
    `kind` is none) or what the model leaves out. The interval is that of a change of one dial (`cost.pairs`), as
    `advisor improve` shows it; it is assumed for these knobs, since no two public runs of one release differ in one of
    them alone.
    """

    name: str
    now: bool
    with_s: float | None
    without_s: float | None
    saved_s: float | None
    low_s: float | None
    high_s: float | None
    note: str = ""
    kind: GainKind = "assumed"


@dataclass(frozen=True, slots=True)
class _Dial:
    """A choice with both sides; `now` says whether the job has it on, `applies` why it cannot matter ("" = it can)."""

    name: str
    on: Change
    off: Change
    now: bool
    applies: str = ""
    note: str = ""


def turned(job: Job, **knobs: Any) -> Job:
    """The job with other knobs."""
    return replace(job, knobs=replace(job.knobs, **knobs))


def given(job: Job, **workload: Any) -> Job:
    """The job with other fields of its workload."""
    return replace(job, workload=replace(job.workload, **workload))


def _switch(job: Job, name: str, off_too: tuple[str, ...] = (), applies: str = "") -> _Dial:
    off: dict[str, Any] = dict.fromkeys((name, *off_too), False)
    on: dict[str, Any] = {name: True}
    now = bool(getattr(job.knobs, name))
    return _Dial(name, lambda one: turned(one, **on), lambda one: turned(one, **off), now, applies)


def _choice(job: Job, name: str, field: str, sides: tuple[object, object], applies: str = "") -> _Dial:
    on: dict[str, Any] = {field: sides[0]}
    off: dict[str, Any] = {field: sides[1]}
    now = getattr(job.knobs, field) == sides[0]
    return _Dial(name, lambda one: turned(one, **on), lambda one: turned(one, **off), now, applies)


def _delayed(job: Job, applies: str) -> _Dial:
    """Weight gradients put off: beside the overlap of expert exchange that it needs, on both sides."""
    return _Dial(
        "delay_wgrad",
        lambda one: turned(one, ep_overlap=True, delay_wgrad=True),
        lambda one: turned(one, ep_overlap=True, delay_wgrad=False),
        job.knobs.delay_wgrad,
        applies,
    )


def _no_buffers(job: Job) -> str:
    if job.layout.tp < 2:
        return "TP is 1"
    return LATENT if job.model.has_mla else ""


def _dials(job: Job) -> Iterator[_Dial]:
    layout = job.layout
    several = "" if layout.dp > 1 else f"DP is {layout.dp}"
    yield _switch(job, "tp_overlap", applies=_no_buffers(job))
    staged = layout.pp > 1 and layout.vpp > 1
    yield _switch(job, "overlap_p2p", applies="" if staged else f"PP is {layout.pp}, VPP is {layout.vpp}")
    yield from _data_dials(job, several)
    if job.model.is_moe:
        split = "" if layout.ep > 1 else f"EP is {layout.ep}"
        yield _switch(job, "ep_overlap", ("delay_wgrad",), split)
        yield _delayed(job, split)
        shared = job.model.moe is not None and job.model.moe.shared_ffn > 0
        yield _switch(job, "shared_expert_overlap", applies=split or ("" if shared else "there is no shared expert"))
        for kind, backend in FLEX.items():
            gate = "" if backend_runs_on(backend, job.gpu) else f"does not run on {job.gpu.name}"
            yield _choice(job, f"dispatcher {backend}", "dispatcher", (kind, Dispatcher.alltoall), split or gate)
    for comm in (CpComm.all_gather, CpComm.a2a):
        gate = "" if layout.cp > 1 else f"CP is {layout.cp}"
        yield _choice(job, f"cp_comm {comm.name}", "cp_comm", (comm, CpComm.p2p), gate)
    for graph in (CudaGraph.scoped, CudaGraph.full_iteration):
        yield _choice(job, f"cuda_graph {graph.name}", "cuda_graph", (graph, CudaGraph.none))
    note = "16-bit gradients change the mathematics" if job.knobs.grad_dtype == "fp32" else "changes the mathematics"
    yield replace(_choice(job, "grad_reduce_in_fp32", "grad_dtype", ("fp32", "bf16")), note=note)


def _data_dials(job: Job, several: str) -> Iterator[_Dial]:
    """Data-parallel traffic: who reduces and gathers when, and in pieces of which size."""
    plain = "" if job.knobs.fsdp is Fsdp.none else "FSDP shards the optimizer by itself"
    yield _switch(job, "overlap_grad_reduce", ("overlap_param_gather",), several)
    yield _switch(job, "overlap_param_gather", applies=several)
    note = "optimizer states whole on every rank take memory"
    yield replace(_switch(job, "distributed_optimizer", ("overlap_param_gather",), several or plain),
                  name="use_distributed_optimizer", note=note)  # fmt: skip
    cut = "" if job.knobs.overlap_grad_reduce else "without overlap_grad_reduce everything is one bucket"
    applies = several or ("" if job.knobs.fsdp is Fsdp.none else "FSDP has units of its own") or cut
    asked = job.workload.bucket_size
    yield _Dial(
        "bucket_size", lambda one: one, lambda one: given(one, bucket_size=ONE_BUCKET), not applies, applies,
        "beside one bucket for everything",
    )  # fmt: skip
    for size in TRIED_BUCKETS:
        yield _Dial(
            f"bucket_size {size}", lambda one, size=size: given(one, bucket_size=size),  # type: ignore[misc]
            lambda one: given(one, bucket_size=None), asked == size, applies, f"beside {BRIDGE_BUCKET}",
        )  # fmt: skip


def steps(jobs: Sequence[Job]) -> list[StepEstimate]:
    """The predicted step of jobs that differ in knobs, layout or workload only; one table per workload."""
    found: list[StepEstimate | None] = [None] * len(jobs)
    by_workload: dict[Workload, list[int]] = {}
    for at, job in enumerate(jobs):
        by_workload.setdefault(job.workload, []).append(at)
    for workload, places in by_workload.items():
        columns = table([jobs[at].layout for at in places], [jobs[at].knobs for at in places])
        first = jobs[places[0]]
        priced = step(first.model, first.cluster, workload, columns, load_profile(first.gpu))
        for row, at in enumerate(places):
            found[at] = priced.detail(row)
    return [one for one in found if one is not None]


def gains(job: Job) -> tuple[Gain, ...]:
    """What every overlap would bring to `job`, whose knobs are those that take effect; unmodelled ones say so."""
    dials = tuple(_dials(job))
    sides = [(dial.on(job), dial.off(job)) for dial in dials]
    priced = steps([one for pair in sides for one in pair])
    found = []
    for i, (dial, pair) in enumerate(zip(dials, sides, strict=True)):
        refused = dial.applies or _refused(pair)
        if refused:
            found.append(Gain(dial.name, dial.now, None, None, None, None, None, refused, "none"))
            continue
        found.append(gain_of(dial.name, dial.now, priced[2 * i], priced[2 * i + 1], dial.note))
    return tuple(found)


def gain_of(name: str, now: bool, with_it: StepEstimate, without: StepEstimate, note: str = "") -> Gain:
    """The gain of one dial from the steps of both sides, with the interval of a change of one dial."""
    saved = without.step_s - with_it.step_s
    spread = ratio_spread(with_it, turned=1)
    low, high = without.step_s - with_it.step_s * spread, without.step_s - with_it.step_s / spread
    return Gain(name, now, with_it.step_s, without.step_s, saved, low, high, note)


def _refused(sides: Sequence[Job]) -> str:
    """Why a side is illegal although the job as it stands may be legal; empty when both are fine."""
    for job in sides:
        for one in findings(job.model, job.cluster, job.workload, job.layout, job.knobs):
            if one.severity == "stop":
                return f"{one.rule}: {one.message}"
    return ""
