"""A layout as values of Megatron-Bridge's ConfigContainer, by dotted name: what snippet, overrides and YAML share.

A value is given where it is Megatron's default too: Bridge's recipes set many of them to something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.configure.beside import CP_WORDS
from advisor.configure.job import preset
from advisor.configure.offload import offload_fields
from advisor.export.subject import Subject, recipe
from advisor.export.words import Code
from advisor.search.stages import megatron_flags
from advisor.spec.layout import Fsdp

Value = tuple[str, Any]
Section = tuple[str, list[Value]]

SPLIT_FIELDS = {
    "pipeline_model_parallel_layout": "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split": "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "account_for_loss_in_pipeline_split",
}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
# Fields of CommOverlapConfig, by the field of the container that setup() writes them to.
OVERLAP_FIELDS = {
    "tp_comm_overlap": "model.tp_comm_overlap",
    "overlap_p2p_comm": "model.overlap_p2p_comm",
    "batch_p2p_comm": "model.batch_p2p_comm",
    "overlap_grad_reduce": "ddp.overlap_grad_reduce",
    "overlap_param_gather": "ddp.overlap_param_gather",
    "align_param_gather": "ddp.align_param_gather",
    "bucket_size": "ddp.bucket_size",
    "overlap_param_gather_with_optimizer_step": "optimizer.overlap_param_gather_with_optimizer_step",
    "overlap_moe_expert_parallel_comm": "model.overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute": "model.delay_wgrad_compute",
    "defer_embedding_wgrad_compute": "model.defer_embedding_wgrad_compute",
    "wgrad_deferral_limit": "model.wgrad_deferral_limit",
}


def dtype(name: str) -> Code:
    """A torch dtype: an attribute in Python, its name in an override."""
    return Code(f"torch.{DTYPES[name]}", f"torch.{DTYPES[name]}")


def sections(subject: Subject) -> list[Section]:
    """Dotted names with values, in titled groups and in the order in which they are set."""
    found = [
        ("parallel sizes", list(_parallel(subject))),
        ("batch and sequence", list(_batch(subject))),
        ("experts", list(_experts(subject))),
        ("recompute and CUDA graphs", list(_memory(subject))),
        ("data parallelism and optimizer", list(_optimizer(subject))),
        ("checkpoints", list(_checkpoints(subject))),
    ]
    return [(title, values) for title, values in found if values]


def comm_overlap(subject: Subject) -> dict[str, Any]:
    """Arguments of CommOverlapConfig, all that are known: what is spelled out is the same in every version."""
    return {name: subject.overlap.field(path).effective for name, path in OVERLAP_FIELDS.items()}


def precision(subject: Subject) -> tuple[str | None, list[Value]]:
    """Name of Bridge's mixed-precision recipe, and the fields of it that are changed."""
    job = subject.job
    name = preset("versions.yaml")["precisions"][job.workload.precision.name]
    changed: list[Value] = []
    wide = job.knobs.grad_dtype == "fp32"
    if wide != (job.workload.precision.name != "fp16"):
        changed.append(("grad_reduce_in_fp32", wide))
    if job.workload.precision.name in {"fp8-delayed", "fp8-current", "mxfp8"} and not job.workload.fp8_params:
        changed.append(("fp8_param_gather", False))
        if job.workload.precision.name == "mxfp8":
            changed.append(("reuse_grad_buf_for_mxfp8_param_ag", False))
    if job.workload.precision.name == "fp8-blockwise" and job.workload.fp8_params:
        changed.append(("fp8_param_gather", True))
    return name, changed


def _parallel(subject: Subject) -> Iterator[Value]:
    layout, job = subject.layout, subject.job
    flags = megatron_flags(layout.split, job.workload.mtp_depth) if layout.split.form != "pattern" else {}
    yield "model.tensor_model_parallel_size", layout.tp
    yield "model.sequence_parallel", layout.sp
    yield "model.pipeline_model_parallel_size", layout.pp
    yield "model.virtual_pipeline_model_parallel_size", layout.vpp if layout.vpp > 1 else None
    for flag, field in SPLIT_FIELDS.items():
        yield f"model.{field}", flags.get(flag, False if field.startswith("account") else None)
    if layout.split.group is not None:
        yield "model.microbatch_group_size_per_vp_stage", layout.split.group
    if layout.pp > 1:
        yield "model.pipeline_dtype", dtype("fp32" if job.workload.precision.param_bytes == 4 else _base(subject))
    yield "model.context_parallel_size", layout.cp
    yield "model.cp_comm_type", CP_WORDS[subject.knobs.cp_comm] if layout.cp > 1 else None
    for one in subject.overlap.fields:
        if one.name == "hierarchical_context_parallel_sizes":
            yield one.path, one.effective
    yield "model.expert_model_parallel_size", layout.ep
    if job.model.is_moe:
        yield "model.expert_tensor_parallel_size", layout.etp
    if job.cluster.rank_order == "tp-cp-ep-pp-dp":
        yield "dist.use_tp_pp_dp_mapping", True


def _base(subject: Subject) -> str:
    return "fp16" if subject.job.workload.precision.name == "fp16" else "bf16"


def _batch(subject: Subject) -> Iterator[Value]:
    yield "train.micro_batch_size", subject.layout.mbs
    yield "train.global_batch_size", subject.layout.gbs
    yield "model.seq_length", subject.job.workload.seq_len
    length = preset("versions.yaml")["bridge"][subject.version]["dataset_length"]
    yield f"dataset.{length}", subject.job.workload.seq_len
    yield from _prediction(subject)


def _prediction(subject: Subject) -> Iterator[Value]:
    """Prediction modules. Bridge's recipes of hybrid models append them to the layer pattern, once per module."""
    depth = subject.job.workload.mtp_depth
    if not subject.model.is_hybrid:
        yield "model.mtp_num_layers", depth or None
    elif subject.model.mtp is not None and recipe(subject.model.name, subject.version) is not None:
        yield "model.mtp_num_layers", depth
        if not depth:
            yield "model.mtp_hybrid_override_pattern", None


def _experts(subject: Subject) -> Iterator[Value]:
    if not subject.model.is_moe:
        return
    for name in ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_shared_expert_overlap"):
        yield f"model.{name}", subject.overlap.field(f"model.{name}").effective
    workload = subject.job.workload
    yield "model.moe_router_dtype", "fp32" if workload.router_fp32 else None
    yield "model.moe_expert_capacity_factor", workload.capacity_factor
    yield "model.moe_pad_expert_input_to_capacity", workload.capacity_factor is not None and workload.pad_to_capacity


def _memory(subject: Subject) -> Iterator[Value]:
    knobs = subject.knobs
    full = knobs.full_uniform or knobs.full_block
    granularity = "full" if full else "selective" if knobs.recompute else None
    yield "model.recompute_granularity", granularity
    yield "model.recompute_method", ("uniform" if knobs.full_uniform else "block") if full else None
    yield "model.recompute_num_layers", full or None
    yield "model.recompute_modules", [] if full else list(knobs.recompute)
    for name, value in offload_fields(knobs).items():
        yield f"model.{name}", value
    beside = ("cuda_graph", "use_te_rng_tracker", "te_rng_tracker", "check_for_nan_in_loss")
    for one in subject.overlap.fields:
        if one.name.startswith(beside):
            yield one.path, list(one.effective) if isinstance(one.effective, tuple) else one.effective
    retired = preset("versions.yaml")["bridge"][subject.version]["retired_graph_field"]
    if retired is not None:
        yield f"model.{retired}", None


def _optimizer(subject: Subject) -> Iterator[Value]:
    knobs = subject.knobs
    yield "ddp.use_distributed_optimizer", knobs.distributed_optimizer
    yield "optimizer.use_distributed_optimizer", knobs.distributed_optimizer
    if not subject.overlap.field("ddp.use_distributed_optimizer").effective:
        # CommOverlapConfig is not applied to cfg.ddp then.
        yield "ddp.overlap_grad_reduce", knobs.overlap_grad_reduce
        yield "ddp.overlap_param_gather", False
    if knobs.fsdp is not Fsdp.none:
        yield "ddp.use_megatron_fsdp", True
        yield "dist.use_megatron_fsdp", True
        yield "ddp.data_parallel_sharding_strategy", knobs.fsdp.name
        yield "model.gradient_accumulation_fusion", False
    name = subject.job.workload.optimizer
    yield "optimizer.optimizer", "dist_muon" if name == "muon" else name
    yield "ddp.num_distributed_optimizer_instances", knobs.optimizer_instances
    low = knobs.moment_dtype != "fp32" or knobs.main_param_dtype != "fp32"
    aware = bool(low or knobs.optimizer_offload)
    yield "optimizer.use_precision_aware_optimizer", aware
    yield "optimizer.main_grads_dtype", dtype(knobs.grad_dtype if low else "fp32")
    yield "optimizer.main_params_dtype", dtype(knobs.main_param_dtype)
    yield "optimizer.exp_avg_dtype", dtype(knobs.moment_dtype)
    yield "optimizer.exp_avg_sq_dtype", dtype(knobs.moment_dtype)
    yield "optimizer.optimizer_cpu_offload", bool(knobs.optimizer_offload)
    if knobs.optimizer_offload:
        yield "optimizer.optimizer_offload_fraction", knobs.optimizer_offload
        yield "optimizer.overlap_cpu_optimizer_d2h_h2d", True


def _checkpoints(subject: Subject) -> Iterator[Value]:
    yield "checkpoint.ckpt_format", "torch_dist" if subject.knobs.fsdp is Fsdp.none else "fsdp_dtensor"
    yield "checkpoint.fully_parallel_save", True
