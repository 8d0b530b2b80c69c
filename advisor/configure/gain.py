"""What each overlap brings: the step of the cost model with the knob and without it, all else equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from advisor.configure.experts import FLEX, backend_runs_on
from advisor.configure.job import Job
from advisor.cost.pairs import ratio_spread
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import findings
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Knobs, table

Change = Callable[[Knobs], Knobs]


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of a step with and without one overlap; `saved_s` = without - with, `low_s` and `high_s` its interval.

    `now` says whether the job has it. `note` says why a side could not be computed (then the seconds are None) or what
    the model leaves out. The interval is that of a change of one dial (`cost.pairs`), as `advisor improve` shows it; it
    is assumed for these knobs, since no two public runs of one release differ in one of them alone.
    """

    name: str
    now: bool
    with_s: float | None
    without_s: float | None
    saved_s: float | None
    low_s: float | None
    high_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Dial:
    """A knob with both sides; `reads` says whether the job has it on, `applies` why it cannot matter ("" = it can)."""

    name: str
    on: Change
    off: Change
    reads: Callable[[Knobs], bool]
    applies: str = ""


def _switch(name: str, off_too: tuple[str, ...] = (), applies: str = "") -> _Dial:
    off: dict[str, Any] = dict.fromkeys((name, *off_too), False)
    on: dict[str, Any] = {name: True}
    return _Dial(
        name,
        lambda knobs: replace(knobs, **on),
        lambda knobs: replace(knobs, **off),
        lambda knobs: bool(getattr(knobs, name)),
        applies,
    )


def _choice(name: str, field: str, value: object, otherwise: object, applies: str = "") -> _Dial:
    on: dict[str, Any] = {field: value}
    off: dict[str, Any] = {field: otherwise}
    return _Dial(
        name,
        lambda knobs: replace(knobs, **on),
        lambda knobs: replace(knobs, **off),
        lambda knobs: getattr(knobs, field) == value,
        applies,
    )


def _delayed(applies: str) -> _Dial:
    """Weight gradients put off: beside the overlap of expert exchange that it needs, on both sides."""
    return _Dial(
        "delay_wgrad",
        lambda knobs: replace(knobs, ep_overlap=True, delay_wgrad=True),
        lambda knobs: replace(knobs, ep_overlap=True, delay_wgrad=False),
        lambda knobs: knobs.delay_wgrad,
        applies,
    )


def _dials(job: Job) -> Iterator[_Dial]:
    layout = job.layout
    several = "" if layout.dp > 1 else f"DP is {layout.dp}"
    yield _switch("tp_overlap", applies="" if layout.tp > 1 else "TP is 1")
    staged = layout.pp > 1 and layout.vpp > 1
    yield _switch("overlap_p2p", applies="" if staged else f"PP is {layout.pp}, VPP is {layout.vpp}")
    yield _switch("overlap_grad_reduce", ("overlap_param_gather",), several)
    yield _switch("overlap_param_gather", applies=several)
    if job.model.is_moe:
        split = "" if layout.ep > 1 else f"EP is {layout.ep}"
        yield _switch("ep_overlap", ("delay_wgrad",), split)
        yield _delayed(split)
        shared = job.model.moe is not None and job.model.moe.shared_ffn > 0
        yield _switch("shared_expert_overlap", applies=split or ("" if shared else "there is no shared expert"))
        for kind, backend in FLEX.items():
            gate = "" if backend_runs_on(backend, job.gpu) else f"does not run on {job.gpu.name}"
            yield _choice(f"dispatcher {backend}", "dispatcher", kind, Dispatcher.alltoall, split or gate)
    for comm in (CpComm.all_gather, CpComm.a2a):
        gate = "" if layout.cp > 1 else f"CP is {layout.cp}"
        yield _choice(f"cp_comm {comm.name}", "cp_comm", comm, CpComm.p2p, gate)
    for graph in (CudaGraph.scoped, CudaGraph.full_iteration):
        yield _choice(f"cuda_graph {graph.name}", "cuda_graph", graph, CudaGraph.none)


def gains(job: Job) -> tuple[Gain, ...]:
    """What every overlap would bring to `job`, whose knobs are those that take effect; unmodelled ones say so."""
    dials = tuple(_dials(job))
    sides: list[Knobs] = []
    for dial in dials:
        sides += [dial.on(job.knobs), dial.off(job.knobs)]
    columns = table([job.layout] * len(sides), sides)
    columns_step = step(job.model, job.cluster, job.workload, columns, load_profile(job.gpu))
    found = []
    for i, dial in enumerate(dials):
        now, note = dial.reads(job.knobs), dial.applies or _refused(job, sides[2 * i : 2 * i + 2])
        if note:
            found.append(Gain(dial.name, now, None, None, None, None, None, note))
            continue
        with_it, without = columns_step.detail(2 * i), columns_step.detail(2 * i + 1)
        saved = without.step_s - with_it.step_s
        spread = ratio_spread(with_it, turned=1)
        low, high = without.step_s - with_it.step_s * spread, without.step_s - with_it.step_s / spread
        found.append(Gain(dial.name, now, with_it.step_s, without.step_s, saved, low, high))
    return tuple(found)


def _refused(job: Job, sides: list[Knobs]) -> str:
    """Why a side is illegal although the job as it stands may be legal; empty when both are fine."""
    for knobs in sides:
        for one in findings(job.model, job.cluster, job.workload, job.layout, knobs):
            if one.severity == "stop":
                return f"{one.rule}: {one.message}"
    return ""
