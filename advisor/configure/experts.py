"""Settings of expert parallelism: overlap of the exchange, delayed weight gradients, shared experts, dispatcher."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.configure.job import Job, preset
from advisor.configure.resolved import MB, ML, Asked, Field, Outcome
from advisor.spec.hardware import Gpu
from advisor.spec.layout import CudaGraph, Dispatcher

FLEX = {Dispatcher.deepep: "deepep", Dispatcher.hybridep: "hybridep"}
OVERLAP = f"{MB}/comm_overlap.py"
BACKEND = f"{MB}/flex_dispatcher_backend.py"
CONFIG = f"{ML}/core/transformer/transformer_config.py"


def backend_runs_on(backend: str, gpu: Gpu) -> bool:
    """Whether Bridge takes a flex backend on a GPU: by compute capability, DeepEP also by product name."""
    major = gpu.capability_major
    if backend == "hybridep":
        return major in (8, 9, 10)
    return major in (8, 9) or re.match(r"b[23]00\b", gpu.name) is not None


def expert_fields(job: Job, asked: Asked) -> Iterator[Field]:
    """Dispatcher, overlap of the expert exchange, delayed weight gradients and shared-expert overlap."""
    if not job.model.is_moe:
        yield from _dense(job, asked)
        return
    dispatcher = _dispatcher(job)
    yield from dispatcher
    yield _exchange(job, asked)
    yield _delayed(job, asked)
    yield _shared(job, flex=dispatcher[0].effective == "flex")


def _dense(job: Job, asked: Asked) -> Iterator[Field]:
    why = "the model has no experts"
    for name in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        wanted = getattr(asked, name)
        outcome: Outcome = "stop" if wanted else "automatic"
        yield Field("model", name, wanted, bool(wanted), outcome, why, OVERLAP, "bridge" if wanted else "")
    shared = job.knobs.shared_expert_overlap
    yield Field("model", "moe_shared_expert_overlap", shared, False, "silent" if shared else "automatic", why, CONFIG)
    flex = FLEX.get(job.knobs.dispatcher)
    yield Field("model", "moe_token_dispatcher_type", None, None, "silent" if flex else "automatic", why, BACKEND)
    yield Field("model", "moe_flex_dispatcher_backend", flex, None, "silent" if flex else "automatic", why, BACKEND)


def _dispatcher(job: Job) -> tuple[Field, Field]:
    """Dispatcher and flex backend after apply_flex_dispatcher_backend; a GPU it does not know falls back."""
    wanted = job.knobs.dispatcher
    backend = FLEX.get(wanted)
    if backend is None:
        kind = "alltoall" if wanted is Dispatcher.none else wanted.name
        why = "tokens go by plain collectives"
        return (
            Field("model", "moe_token_dispatcher_type", kind, kind, "asked", why, BACKEND),
            Field("model", "moe_flex_dispatcher_backend", None, None, "automatic", why, BACKEND),
        )
    runs = backend_runs_on(backend, job.gpu)
    gate = "capability 8.x, 9.x or a B200 or B300" if backend == "deepep" else "capability 8, 9 or 10"
    what = f"{job.gpu.name} has compute capability {job.gpu.compute_capability}; {backend} needs {gate}"
    outcome: Outcome = "asked" if runs else "silent"
    why = what if runs else f"{what}: falls back to alltoall with a warning"
    return (
        Field("model", "moe_token_dispatcher_type", "flex", "flex" if runs else "alltoall", outcome, why, BACKEND),
        Field("model", "moe_flex_dispatcher_backend", backend, backend if runs else None, outcome, why, BACKEND),
    )


def exchange_blockers(job: Job, target: str) -> list[tuple[str, str]]:
    """What forbids overlap of the expert exchange, each with who refuses it: "bridge" (setup) or "megatron"."""
    layout, knobs, workload = job.layout, job.knobs, job.workload
    version = preset("versions.yaml")["bridge"][target]
    allgather = knobs.dispatcher is Dispatcher.allgather
    sixteen_bit = workload.precision.param_bytes == 2
    moe_recompute = version["moe_recompute_with_ep_overlap"]
    rules = (
        (layout.ep < 2, "EP is 1", "bridge"),
        (allgather, "the allgather dispatcher does not overlap; use alltoall or a flex backend", "bridge"),
        (not sixteen_bit, f"parameters are {workload.precision.name}, bf16 or fp16 is needed", "bridge"),
        (layout.pp > 1 and layout.vpp < 2, f"PP is {layout.pp} without VPP", "bridge"),
        (bool(knobs.full_uniform or knobs.full_block), "full recompute is on", "bridge"),
        ("moe" in knobs.recompute, "experts are recomputed", "bridge" if moe_recompute == "stop" else "megatron"),
        (knobs.shared_expert_overlap and not _flex_works(job), "shared-expert overlap is on", "bridge"),
        (workload.mtp_depth > 1, f"{workload.mtp_depth} prediction modules, one at most is supported", "bridge"),
    )
    return [(text, who) for broken, text, who in rules if broken]


def _flex_works(job: Job) -> bool:
    backend = FLEX.get(job.knobs.dispatcher)
    return backend is not None and backend_runs_on(backend, job.gpu)


def _exchange(job: Job, asked: Asked) -> Field:
    wanted = asked.overlap_moe_expert_parallel_comm
    if not wanted:
        why = "off unless asked for"
        return Field("model", "overlap_moe_expert_parallel_comm", wanted, False,
                     "asked" if wanted is False else "automatic", why, OVERLAP)  # fmt: skip
    blockers = exchange_blockers(job, asked.target)
    if blockers:
        who = "bridge" if any(name == "bridge" for _, name in blockers) else "megatron"
        why = "; ".join(text for text, _ in blockers)
        return Field("model", "overlap_moe_expert_parallel_comm", True, True, "stop", why, OVERLAP, who)
    why = f"EP is {job.layout.ep}; the exchange of one microbatch runs beside the compute of another"
    return Field("model", "overlap_moe_expert_parallel_comm", True, True, "asked", why, OVERLAP)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _delayed(job: Job, asked: Asked) -> Field:
    name, wanted = "delay_wgrad_compute", asked.delay_wgrad_compute
    if not wanted:
        why = "off unless asked for"
        return Field("model", name, wanted, False, "asked" if wanted is False else "automatic", why, OVERLAP)
    engine = _version(asked.transformer_engine or "0")
    if not asked.overlap_moe_expert_parallel_comm:
        why = "needs overlap_moe_expert_parallel_comm on CommOverlapConfig"
        return Field("model", name, True, True, "stop", why, OVERLAP, "bridge")
    if asked.overlap_grad_reduce is not False and job.layout.dp > 1 and engine < (2, 7):
        why = "with overlap_grad_reduce Transformer Engine 2.7 is needed"
        return Field("model", name, True, True, "stop", why, OVERLAP, "bridge")
    if job.knobs.cuda_graph is not CudaGraph.none and engine < (2, 10):
        return Field("model", name, True, True, "stop", "with CUDA graphs Transformer Engine 2.10 is needed", CONFIG,
                     "megatron")  # fmt: skip
    why = "weight gradients wait until the exchange of the next microbatch has something to hide under"
    return Field("model", name, True, True, "asked", why, OVERLAP)


def _shared(job: Job, flex: bool) -> Field:
    name, wanted = "moe_shared_expert_overlap", job.knobs.shared_expert_overlap
    experts = job.model.moe
    if not wanted:
        return Field("model", name, False, False, "asked", "not asked for", CONFIG)
    if flex:
        return Field("model", name, True, False, "silent", "a flex backend switches it off", BACKEND)
    if experts is None or not experts.shared_ffn:
        return Field("model", name, True, False, "silent", "the model has no shared expert", CONFIG)
    if job.knobs.dispatcher is Dispatcher.allgather:
        why = "only the alltoall dispatcher overlaps shared experts"
        return Field("model", name, True, True, "stop", why, CONFIG, "megatron")
    return Field("model", name, True, True, "asked", "shared experts run beside dispatch and combine", CONFIG)
