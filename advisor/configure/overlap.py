"""Communication overlap, field by field: what was asked, what Megatron-Bridge makes of it, and why.

Follows CommOverlapConfig.finalize() and setup() of megatron-bridge; the fields of its versions 0.3.1 and 0.6.2 and
their automatic values are the same, checks differ (presets/versions.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from advisor.configure.beside import context_fields, graph_fields, precision_fields
from advisor.configure.experts import expert_fields
from advisor.configure.job import Job
from advisor.configure.resolved import MB, ML, Asked, Field, Outcome, Value, settle
from advisor.configure.userbuffers import BufferChoice, choose
from advisor.cost.buckets import BRIDGE_BUCKET
from advisor.spec.layout import Dispatcher, Fsdp, Knobs

OVERLAP = f"{MB}/comm_overlap.py"
LATENT = (
    "latent attention: its projections have buffer names that Transformer Engine does not know, and the first of them"
    " switches the overlap off for every layer built after it (one warning of megatron-core)"
)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Every overlap field of a job, its tensor-parallel user buffers, and the knobs that really take effect."""

    job: Job
    asked: Asked
    fields: tuple[Field, ...]
    buffers: BufferChoice
    effective: Knobs

    def field(self, path: str) -> Field:
        """The field of a dotted name; KeyError when there is none."""
        for one in self.fields:
            if one.path == path:
                return one
        raise KeyError(path)

    @property
    def held(self) -> Job:
        """The job with what really takes effect."""
        field = self.field("ddp.bucket_size")
        bucket = field.effective if field.requested is not None and isinstance(field.effective, int) else None
        return replace(self.job, knobs=self.effective, workload=replace(self.job.workload, bucket_size=bucket))

    @property
    def stopped(self) -> tuple[Field, ...]:
        """Fields for which the job would be refused."""
        return tuple(one for one in self.fields if one.outcome == "stop")


def resolve(job: Job, asked: Asked, *, lora: bool = False) -> Overlap:
    """Every overlap setting of `job` when `asked` is given to Bridge's CommOverlapConfig.

    A bucket size that `asked` leaves open is that of the job.
    """
    if asked.bucket_size is None:
        asked = replace(asked, bucket_size=job.workload.bucket_size)
    tensor = _tensor_on(job, asked)
    buffers = choose(job, active=tensor[0], why_not=tensor[2], named=asked.tp_comm_overlap_cfg, lora=lora)
    fields = (
        *_tensor(job, asked, tensor, buffers),
        *_pipeline(job, asked),
        *_data(job, asked),
        *expert_fields(job, asked),
        *context_fields(job),
        *graph_fields(job, asked),
        *precision_fields(job),
    )
    return Overlap(job, asked, fields, buffers, _effective(job.knobs, fields))


def _effective(knobs: Knobs, fields: tuple[Field, ...]) -> Knobs:
    """The knobs of the fields that hold, for the cost model."""
    held = {one.path: one.effective for one in fields}
    dispatcher = str(held.get("model.moe_flex_dispatcher_backend") or held["model.moe_token_dispatcher_type"] or "none")
    return replace(
        knobs,
        tp_overlap=bool(held["model.tp_comm_overlap"]),
        overlap_p2p=bool(held["model.overlap_p2p_comm"]),
        overlap_grad_reduce=bool(held["ddp.overlap_grad_reduce"]),
        overlap_param_gather=bool(held["ddp.overlap_param_gather"]),
        ep_overlap=bool(held["model.overlap_moe_expert_parallel_comm"]),
        delay_wgrad=bool(held["model.delay_wgrad_compute"]),
        shared_expert_overlap=bool(held["model.moe_shared_expert_overlap"]),
        dispatcher=Dispatcher[dispatcher],
    )


def _tensor_on(job: Job, asked: Asked) -> tuple[bool, Outcome, str]:
    """Whether tensor-parallel overlap is on; of what is against it Bridge names the first only."""
    layout = job.layout
    if not asked.tp_comm_overlap:
        return False, "asked", "not asked for"
    if layout.tp < 2:
        return False, "silent", f"TP is {layout.tp}: there is nothing to overlap below 2 (warning only)"
    if not layout.sp:
        return False, "silent", "sequence parallelism is off: there are no gathers and scatters (warning only)"
    if asked.transformer_engine is None:
        return False, "silent", "Transformer Engine does not import (warning only)"
    if job.model.has_mla:
        return False, "silent", LATENT
    return True, "asked", f"TP is {layout.tp} with sequence parallelism, and Transformer Engine imports"


def _tensor(job: Job, asked: Asked, found: tuple[bool, Outcome, str], buffers: BufferChoice) -> Iterator[Field]:
    held, outcome, why = found
    yield Field("model", "tp_comm_overlap", asked.tp_comm_overlap, held, outcome, why, OVERLAP)
    if not held:
        source, reason = "automatic", "without tensor-parallel overlap no buffers are set up"
        yield Field(
            "model", "tp_comm_overlap_cfg", asked.tp_comm_overlap_cfg, None, _lost(asked, source), reason, OVERLAP
        )
        return
    name = buffers.name or ("custom" if buffers.gemms and buffers.match == "custom" else None)
    kind: Outcome = "asked" if asked.tp_comm_overlap_cfg else "automatic"
    yield Field("model", "tp_comm_overlap_cfg", asked.tp_comm_overlap_cfg, name, kind, buffers.reason, OVERLAP)
    yield Field(
        "model", "tp_comm_bootstrap_backend", None, "nccl", "automatic", "default of CommOverlapConfig", OVERLAP
    )


def _lost(asked: Asked, otherwise: str) -> Outcome:
    return "silent" if asked.tp_comm_overlap_cfg else ("automatic" if otherwise == "automatic" else "asked")


def _pipeline(job: Job, asked: Asked) -> Iterator[Field]:
    layout = job.layout
    interleaved = layout.pp > 1 and layout.vpp > 1
    if interleaved:
        why = f"PP is {layout.pp} and VPP is {layout.vpp}: the interleaved schedule sends beside compute"
    elif layout.pp > 1:
        why = f"PP is {layout.pp} without interleaving (VPP 1): sends and receives go out as one batch"
    else:
        why = "PP is 1: there are no transfers between stages"
    overlap, kind, said = settle(asked.overlap_p2p_comm, interleaved, why)
    batch, batch_kind, batch_said = settle(asked.batch_p2p_comm, layout.pp > 1 and not interleaved, why)
    stop = ""
    if overlap and batch:
        stop = "overlapped and batched transfers exclude each other: set batch_p2p_comm too"
    elif overlap and layout.pp > 1 and not interleaved:
        stop = "Bridge passes it on, and Megatron's schedule without interleaving refuses it"
    elif layout.pp > 1 and not overlap and not batch:
        said = f"{said}; transfers are neither overlapped nor batched"
    outcome: Outcome = "stop" if stop else kind
    schedule = f"{ML}/core/pipeline_parallel/schedules.py"
    yield Field("model", "overlap_p2p_comm", asked.overlap_p2p_comm, overlap, outcome, stop or said,
                schedule if stop else OVERLAP, "megatron" if stop else "")  # fmt: skip
    yield Field("model", "batch_p2p_comm", asked.batch_p2p_comm, batch, batch_kind, batch_said, OVERLAP)
    yield from _deferral(job, asked)


def _deferral(job: Job, asked: Asked) -> Iterator[Field]:
    """Deferred weight gradient of the embedding, and how many microbatches may wait for it (-1 = none)."""
    why = "off unless asked for"
    on, kind, said = settle(asked.defer_embedding_wgrad_compute, False, why, "given by hand")
    limit, limit_kind, limit_said = settle(asked.wgrad_deferral_limit, -1, why, "given by hand")
    stop = ""
    if on and job.layout.pp < 2:
        stop = "deferring the embedding's weight gradient needs PP above 1"
    elif on and int(str(limit)) < 0:
        stop = "deferring the embedding's weight gradient needs wgrad_deferral_limit of 0 or more; Bridge sets -1"
    yield Field("model", "defer_embedding_wgrad_compute", asked.defer_embedding_wgrad_compute, on,
                "stop" if stop else kind, stop or said, f"{ML}/core/model_parallel_config.py" if stop else OVERLAP,
                "megatron" if stop else "")  # fmt: skip
    yield Field("model", "wgrad_deferral_limit", asked.wgrad_deferral_limit, limit, limit_kind, limit_said, OVERLAP)


def _data(job: Job, asked: Asked) -> Iterator[Field]:
    """Gradient reduction and parameter gather; Bridge settles them only under the distributed optimizer."""
    layout, knobs = job.layout, job.knobs
    sharded = knobs.distributed_optimizer or knobs.fsdp is not Fsdp.none
    yield Field("ddp", "use_distributed_optimizer", knobs.distributed_optimizer, sharded, "asked",
                "shards optimizer state over data-parallel ranks" if sharded else "optimizer state is replicated",
                f"{MB}/config.py")  # fmt: skip
    if not sharded:
        yield from _plain_data(job, asked)
        return
    several, staged = layout.dp > 1, layout.dp > 1 and layout.pp > 1 and layout.vpp > 1
    why = f"DP is {layout.dp}" + ("" if several else ": nothing to reduce or gather")
    bucket = BRIDGE_BUCKET if several else None
    size_why = f"{why}; counted in parameters, not bytes" if several else why
    aligned = f"DP is {layout.dp}, PP {layout.pp}, VPP {layout.vpp}: " + (
        "stages gather at the same time" if staged else "needs all three above 1"
    )
    step = "switched off in Bridge for a checkpoint problem; recipes turn it on by hand"
    rows: tuple[tuple[str, str, Value, str], ...] = (
        ("ddp", "bucket_size", bucket, size_why),
        ("ddp", "overlap_grad_reduce", several, why),
        ("ddp", "overlap_param_gather", several, why),
        ("ddp", "align_param_gather", staged, aligned),
        ("optimizer", "overlap_param_gather_with_optimizer_step", False, step),
    )
    for section, name, automatic, reason in rows:
        requested: Value = getattr(asked, name)
        held, outcome, said = settle(requested, automatic, reason)
        yield Field(section, name, requested, held, outcome, said, OVERLAP)


def _plain_data(job: Job, asked: Asked) -> Iterator[Field]:
    """Without a distributed optimizer setup() leaves cfg.ddp alone, so what is asked of CommOverlapConfig is lost."""
    kept = job.knobs.overlap_grad_reduce and job.layout.dp > 1
    why = "no distributed optimizer: CommOverlapConfig is not applied to cfg.ddp, which keeps its own value"
    rows: tuple[tuple[str, str, Value], ...] = (
        ("ddp", "bucket_size", None),
        ("ddp", "overlap_grad_reduce", kept),
        ("ddp", "overlap_param_gather", False),
        ("ddp", "align_param_gather", False),
        ("optimizer", "overlap_param_gather_with_optimizer_step", False),
    )
    for section, name, held in rows:
        requested: Value = getattr(asked, name)
        outcome: Outcome = "silent" if requested not in (None, held) else "automatic"
        yield Field(section, name, requested, held, outcome, why, OVERLAP)
