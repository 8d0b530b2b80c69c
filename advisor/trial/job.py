"""From a candidate to what the worker is told: a JSON mapping in the words of megatron-core, complete and plain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from advisor.configure.environment import variables
from advisor.configure.job import Job
from advisor.configure.offload import offload_fields
from advisor.configure.overlap import resolve
from advisor.configure.resolved import asked_of
from advisor.errors import InputError
from advisor.export.model_fields import model_facts, model_fields, require_supported
from advisor.search.request import Request
from advisor.search.stages import megatron_flags
from advisor.spec.layout import Dispatcher, Fsdp, Knobs
from advisor.spec.plan import Candidate

Device = Literal["cuda", "cpu"]

SCHEMA_VERSION = 1
GPT_FIELDS = ("share_embeddings_and_output_weights", "position_embedding_type", "rotary_base", "rotary_percent")
NOT_CONFIG = {
    "seq_length", "max_position_embeddings", "vocab_size", "make_vocab_size_divisible_by",
    "share_embeddings_and_output_weights", "position_embedding_type", "rotary_percent",
}  # fmt: skip
SPLIT_FIELDS = {
    "account_for_embedding_in_pipeline_split": "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split": "account_for_loss_in_pipeline_split",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout": "pipeline_model_parallel_layout",
}
# Fused kernels of Transformer Engine, Apex and megatron-core that need a GPU; their reference forms run on a CPU.
OFF_ON_CPU = (
    "gradient_accumulation_fusion", "masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion",
    "apply_rope_fusion", "persist_layer_norm", "moe_grouped_gemm", "moe_permute_fusion", "cross_entropy_loss_fusion",
    "tp_comm_overlap",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drive:
    """How a trial is driven: `warmup` and `steps` are counted steps, `profile_steps` follow them under the profiler."""

    device: Device
    steps: int = 20
    warmup: int = 2
    profile_steps: int = 1
    threads: int = 1
    seed: int = 1234
    collective_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """Knobs that no prediction knows; 0 leaves them to megatron-core. `bucket_size` counts parameters."""

    bucket_size: int = 0
    dispatcher_sms: int = 0


PLAIN = Tuned()


def make_job(request: Request, candidate: Candidate, drive: Drive, tuned: Tuned = PLAIN) -> dict[str, Any]:
    """The job of a candidate. Raises InputError for what the worker, or this device, cannot run."""
    facts = model_facts(request.model, str(request.settings["model"].value))
    require_supported(request.model, facts, "try a model of attention and feed-forward layers")
    problems = list(_problems(request, candidate.knobs, candidate, drive))
    if problems:
        raise InputError(f"a trial of this layout cannot run: {'; '.join(problems)}", "choose another candidate")
    layout, knobs = candidate.layout, candidate.knobs
    fields = model_fields(request.model, request.workload, facts)
    config = {name: value for name, value in fields.items() if name not in NOT_CONFIG}
    if not request.model.has_mla:  # GPTModel takes the rotary base, but latent attention reads its own configuration
        config.pop("rotary_base", None)
    config |= _parallel(candidate) | _precision(request, drive) | _moe(request, knobs, drive, tuned) | _recompute(knobs)
    config |= offload_fields(knobs)
    config |= dict.fromkeys(OFF_ON_CPU, False) if drive.device == "cpu" else _fused(request, knobs, fields)
    config["mtp_num_layers"] = candidate.mtp_depth or None
    sixteen = "fp32" if request.workload.precision.name == "fp32" else _storage(request)
    return {
        "schema_version": SCHEMA_VERSION,
        "config": {name: value for name, value in config.items() if value is not None},
        "gpt": {
            **{name: fields[name] for name in GPT_FIELDS if name in fields},
            "vocab_size": candidate.memory.padded_vocab,
            "max_sequence_length": request.model.position_embeddings or request.workload.seq_len,
        },
        "dtype": sixteen,
        "sizes": {name: getattr(layout, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp")},
        "order": request.cluster.rank_order,
        "optimizer_instances": knobs.optimizer_instances,
        "ddp": _ddp(request, candidate, drive) | ({"bucket_size": tuned.bucket_size} if tuned.bucket_size else {}),
        "optimizer": _optimizer(request, knobs, sixteen, drive),
        "batch": {
            "mbs": layout.mbs,
            "seq_len": request.workload.seq_len,
            "num_microbatches": layout.num_microbatches,
            "vocab_size": request.model.vocab_size,
        },
        "run": {name: getattr(drive, name) for name in Drive.__slots__},
        "environment": {one.name: one.value for one in variables(_subject(request, candidate))},
        "stand_ins": list(stand_ins(request, candidate, drive)),
        **({"user_buffers": _user_buffers(request, candidate)} if drive.device == "cuda" else {}),
    }


def _subject(request: Request, candidate: Candidate) -> Job:
    return Job(request.model, request.cluster, request.workload, candidate.layout, candidate.knobs)


def _problems(request: Request, knobs: Knobs, candidate: Candidate, drive: Drive) -> Iterator[str]:
    if request.workload.mode != "train":
        yield f"--mode {request.workload.mode} trains nothing"
    if drive.device == "cpu":
        if candidate.layout.cp > 1:
            yield "context parallelism needs Transformer Engine, so a GPU"
        if knobs.optimizer_offload or knobs.offload_layers or knobs.offload_modules:
            yield "there is nothing to offload to from a CPU"


def stand_ins(request: Request, candidate: Candidate, drive: Drive) -> Iterator[str]:
    """What runs in place of what was planned, in words."""
    if drive.device == "cuda":
        if request.workload.fp8_params and not _keeps_quantised(request):
            yield f"bf16 weights in place of {request.workload.precision.name} ones, which the step would have to fill"
        return
    yield "CPU and gloo in place of GPUs and NCCL, the local layer specification in place of Transformer Engine"
    if candidate.knobs.dispatcher in (Dispatcher.deepep, Dispatcher.hybridep):
        yield f"alltoall in place of {candidate.knobs.dispatcher.name}"
    if request.workload.precision.quantised:
        yield f"bf16 in place of {request.workload.precision.name}"
    if request.model.is_moe and request.workload.grouped_gemm:
        yield "experts one after another in place of grouped GEMM"
    if candidate.knobs.tp_overlap:
        yield "plain collectives in place of user buffers, which are Transformer Engine's"
    if candidate.knobs.delay_wgrad:
        yield "weight gradients at once in place of delayed ones, which are Transformer Engine's"
    if any(getattr(layer.mixer, "window", None) for layer in request.model.kinds):
        yield "full attention in place of sliding windows"


def _fused(request: Request, knobs: Knobs, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fused kernels and freed pipeline outputs: on in Megatron-LM and Megatron-Bridge, off in TransformerConfig.

    What they accept: megatron/core/transformer/mlp.py, moe/experts.py, transformer_config.py (0.16 and 0.19).
    """
    workload, activation, gated = request.workload, fields["activation_func"], fields["gated_linear_unit"]
    swiglu, biased = activation == "silu" and gated, activation == "gelu" and fields["add_bias_linear"] and not gated
    return {
        "gradient_accumulation_fusion": workload.grad_accumulation_fused and knobs.fsdp is Fsdp.none,
        "masked_softmax_fusion": workload.softmax_fused,
        "bias_activation_fusion": swiglu or (biased and not request.model.is_moe),
        "bias_dropout_fusion": True,
        "apply_rope_fusion": fields["position_embedding_type"] == "rope" and not request.model.has_mla,
        "cross_entropy_loss_fusion": workload.cross_entropy_fused,
        "cross_entropy_fusion_impl": "native" if workload.cross_entropy_fused else None,
        "deallocate_pipeline_outputs": True,
    }


def _user_buffers(request: Request, candidate: Candidate) -> dict[str, Any]:
    """Settings of Transformer Engine's buffers by GEMM, as the exports of the same layout name them."""
    if not candidate.knobs.tp_overlap:
        return {}
    found = resolve(_subject(request, candidate), asked_of(candidate.knobs)).buffers
    return {gemm: dict(settings) for gemm, settings in found.gemms.items()}


def _storage(request: Request) -> str:
    return "fp16" if request.workload.precision.name == "fp16" else "bf16"


def _parallel(candidate: Candidate) -> dict[str, Any]:
    layout, knobs = candidate.layout, candidate.knobs
    flags = megatron_flags(layout.split, candidate.mtp_depth)
    interleaved = layout.pp > 1 and layout.vpp > 1
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if interleaved else None,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": layout.sp,
        "overlap_p2p_comm": interleaved and knobs.overlap_p2p,
        "batch_p2p_comm": not (interleaved and knobs.overlap_p2p),
        "microbatch_group_size_per_vp_stage": layout.split.group if interleaved else None,
        "cp_comm_type": knobs.cp_comm.name if layout.cp > 1 else None,
        "tp_comm_overlap": knobs.tp_overlap,
        **{word: flags[name] for name, word in SPLIT_FIELDS.items() if name in flags},
    }


def _precision(request: Request, drive: Drive) -> dict[str, Any]:
    name = request.workload.precision.name
    found: dict[str, Any] = {"bf16": name not in {"fp32", "fp16"}, "fp16": name == "fp16"}
    found |= {"hidden_dropout": 0.0, "attention_dropout": 0.0, "attention_softmax_in_fp32": True}
    if drive.device == "cpu" or not request.workload.precision.quantised:
        return found
    recipes = {"fp8-delayed": "delayed", "fp8-current": "tensorwise", "fp8-blockwise": "blockwise", "mxfp8": "mxfp8"}
    if name == "nvfp4":
        return found | {"fp4": "e2m1", "fp4_recipe": "nvfp4"}
    found |= {"fp8_param": True} if _keeps_quantised(request) else {}
    return found | {"fp8": "e4m3" if name == "mxfp8" else "hybrid", "fp8_recipe": recipes[name]}


def _keeps_quantised(request: Request) -> bool:
    """Whether weights are kept and gathered in the number format of the products."""
    name = request.workload.precision.name
    return request.workload.fp8_params and name in {"fp8-delayed", "fp8-current", "fp8-blockwise"}


def _moe(request: Request, knobs: Knobs, drive: Drive, tuned: Tuned) -> dict[str, Any]:
    if not request.model.is_moe:
        return {}
    flex = knobs.dispatcher in (Dispatcher.deepep, Dispatcher.hybridep)
    kind = {Dispatcher.none: "allgather"}.get(knobs.dispatcher, knobs.dispatcher.name)
    found: dict[str, Any] = {
        "moe_token_dispatcher_type": ("alltoall" if drive.device == "cpu" else "flex") if flex else kind,
        "moe_flex_dispatcher_backend": knobs.dispatcher.name if flex and drive.device == "cuda" else None,
        f"moe_{knobs.dispatcher.name}_num_sms": tuned.dispatcher_sms or None if flex else None,
        "moe_shared_expert_overlap": knobs.shared_expert_overlap,
        "overlap_moe_expert_parallel_comm": knobs.ep_overlap,
        "delay_wgrad_compute": knobs.delay_wgrad and drive.device == "cuda",
        "moe_expert_capacity_factor": request.workload.capacity_factor,
        "moe_pad_expert_input_to_capacity": request.workload.pad_to_capacity or None,
        "moe_router_force_load_balancing": request.workload.routing == "balanced",
    }
    return found


def _recompute(knobs: Knobs) -> dict[str, Any]:
    full = knobs.full_uniform or knobs.full_block
    if full:
        method = "uniform" if knobs.full_uniform else "block"
        return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": full}
    if knobs.recompute:
        return {"recompute_granularity": "selective", "recompute_modules": list(knobs.recompute)}
    return {}


def _ddp(request: Request, candidate: Candidate, drive: Drive) -> dict[str, Any]:
    """Fields of DistributedDataParallelConfig; parameter gathers are aligned as Megatron-Bridge does with VPP."""
    knobs, layout = candidate.knobs, candidate.layout
    sharded: dict[str, Any] = {}
    if knobs.fsdp is not Fsdp.none:
        # Gloo cannot scale while it reduces.
        sharded = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": knobs.fsdp.name,
                   "gradient_reduce_div_fusion": drive.device == "cuda"}  # fmt: skip
    return sharded | {
        "grad_reduce_in_fp32": knobs.grad_dtype == "fp32",
        "overlap_grad_reduce": knobs.overlap_grad_reduce,
        "overlap_param_gather": knobs.overlap_param_gather and knobs.distributed_optimizer,
        "align_param_gather": layout.pp > 1 and layout.vpp > 1 and knobs.overlap_param_gather,
        "use_distributed_optimizer": knobs.distributed_optimizer,
        "num_distributed_optimizer_instances": knobs.optimizer_instances,
        **({"delay_wgrad_compute": True} if knobs.delay_wgrad and drive.device == "cuda" else {}),
        **({"fp8_param_gather": True} if drive.device == "cuda" and _keeps_quantised(request) else {}),
    }


def _optimizer(request: Request, knobs: Knobs, storage: str, drive: Drive) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "optimizer": request.workload.optimizer,
        "lr": 1e-4,
        "weight_decay": 0.01,
        "clip_grad": 1.0,
        "bf16": storage == "bf16",
        "fp16": storage == "fp16",
        "params_dtype": storage,
        "use_distributed_optimizer": knobs.distributed_optimizer,
        "overlap_param_gather": knobs.overlap_param_gather and knobs.distributed_optimizer,
    }
    if drive.device == "cuda" and request.workload.precision.quantised and request.workload.precision.name != "nvfp4":
        found["fp8_recipe"] = _precision(request, drive)["fp8_recipe"]
    low = knobs.moment_dtype != "fp32" or knobs.main_param_dtype != "fp32"
    if low or knobs.optimizer_offload:
        found |= {
            "use_precision_aware_optimizer": True,
            "main_grads_dtype": knobs.grad_dtype if low else "fp32",
            "exp_avg_dtype": knobs.moment_dtype,
            "exp_avg_sq_dtype": knobs.moment_dtype,
            "main_params_dtype": knobs.main_param_dtype,
        }
    if knobs.optimizer_offload:
        found |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": knobs.optimizer_offload,
                  "overlap_cpu_optimizer_d2h_h2d": True}  # fmt: skip
    return found
