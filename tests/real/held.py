"""What the real framework holds once it has settled a configuration, and what a change promised, in the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.configure.job import preset
from advisor.search.request import Request
from advisor.search.single import Choice
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp, Knobs, Layout
from advisor.spec.workload import Workload

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
PRECISION_FIELDS = ("fp16", "bf16", "fp8", "fp8_recipe", "fp4")


def chunks(config: Any, pp: int, vpp: int) -> tuple[int, ...]:
    """Decoder layers of every chunk as Megatron would build them, in model order."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    if config.pipeline_model_parallel_layout is not None:
        table = config.pipeline_model_parallel_layout.layout
        return tuple(
            sum(part.name == "decoder" for part in table[rank][slot]) for slot in range(vpp) for rank in range(pp)
        )
    slots = range(vpp) if vpp > 1 else [None]
    return tuple(get_num_layers_to_build(config, slot, rank) for slot in slots for rank in range(pp))


def dtype(value: Any) -> str:
    """A torch dtype by our name."""
    return DTYPES[str(value).removeprefix("torch.")]


def in_bridge(cfg: Any) -> dict[str, Any]:
    """A container of Megatron-Bridge after runtime_config_update."""
    ddp, optimizer, train = cfg.ddp, cfg.optimizer, cfg.train
    found = _of_the_model(cfg.model)
    found |= {
        "dp": cfg.data_parallel_size, "seq_len": cfg.model.seq_length,
        "mbs": train.micro_batch_size, "gbs": train.global_batch_size,
        "overlap_grad_reduce": ddp.overlap_grad_reduce, "overlap_param_gather": ddp.overlap_param_gather,
        "distributed_optimizer": ddp.use_distributed_optimizer,
        "fsdp": ddp.data_parallel_sharding_strategy if ddp.use_megatron_fsdp else "none",
        "optimizer_instances": ddp.num_distributed_optimizer_instances,
        "grad_dtype": "fp32" if ddp.grad_reduce_in_fp32 else "bf16",
        "fp8_params": bool(getattr(cfg.mixed_precision, "fp8_param_gather", False)),
        "precision": precision_of(cfg.mixed_precision),
    }  # fmt: skip
    return found | _of_the_optimizer(optimizer)


def _gradients(args: Any) -> str:
    """Megatron-FSDP keeps gradients in the format of the weights unless told; the usual script adds them up in fp32."""
    if not args.use_megatron_fsdp:
        return "fp32" if args.accumulate_allreduce_grads_in_fp32 else "bf16"
    told = args.megatron_fsdp_main_grads_dtype
    return dtype(told) if told is not None else "bf16" if args.bf16 else "fp32"


def in_megatron(args: Any, config: Any) -> dict[str, Any]:
    """Arguments of Megatron-LM after validate_args(), and the TransformerConfig made of them."""
    found = _of_the_model(config)
    found |= {
        "mbs": args.micro_batch_size, "gbs": args.global_batch_size, "seq_len": args.seq_length,
        "overlap_grad_reduce": args.overlap_grad_reduce, "overlap_param_gather": args.overlap_param_gather,
        # Muon shards by whole layers instead.
        "distributed_optimizer": args.use_distributed_optimizer or args.use_layer_wise_distributed_optimizer,
        "fsdp": args.data_parallel_sharding_strategy if args.use_megatron_fsdp else "none",
        "optimizer_instances": args.num_distributed_optimizer_instances,
        "grad_dtype": _gradients(args),
        "fp8_params": bool(args.fp8_param_gather), "precision": _of_the_flags(args),
    }  # fmt: skip
    return found | _of_the_optimizer(args)


def _of_the_flags(args: Any) -> str:
    """Our name of the number formats that Megatron-LM is told."""
    recipes = {"delayed": "fp8-delayed", "tensorwise": "fp8-current", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}
    if args.fp4:
        return "nvfp4"
    if args.fp8:
        return recipes[args.fp8_recipe]
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"


def precision_of(mixed: Any) -> str:
    """Our name of a MixedPrecisionConfig."""
    table = preset("versions.yaml")
    if mixed is None:
        return "fp32"
    seen = {field: getattr(mixed, field) for field in PRECISION_FIELDS}
    for name, recipe in table["precisions"].items():
        if recipe in table["precision_fields"]:
            said = table["precision_fields"]["defaults"] | table["precision_fields"][recipe]
            if {field: said[field] for field in seen} == seen:
                return str(name)
    raise AssertionError(f"no precision of ours is {seen}")


def _of_the_model(config: Any) -> dict[str, Any]:
    """Fields of a TransformerConfig, or of a provider, which is one."""
    pp, vpp = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size or 1
    full = config.recompute_granularity == "full"
    selective = config.recompute_granularity == "selective"
    experts = config.num_moe_experts is not None
    flex = config.moe_token_dispatcher_type == "flex"
    comm = config.cp_comm_type
    shared = experts and bool(config.moe_shared_expert_intermediate_size)
    return {
        "tp": config.tensor_model_parallel_size, "pp": pp, "vpp": vpp, "cp": config.context_parallel_size,
        "sp": config.sequence_parallel, "split": chunks(config, pp, vpp),
        "ep": config.expert_model_parallel_size if experts else 1,
        "etp": (config.expert_tensor_parallel_size or config.tensor_model_parallel_size) if experts else 1,
        "recompute": tuple(sorted(config.recompute_modules)) if selective else (),
        "full_uniform": config.recompute_num_layers if full and config.recompute_method == "uniform" else 0,
        "full_block": config.recompute_num_layers if full and config.recompute_method == "block" else 0,
        "dispatcher": "none" if not experts else config.moe_flex_dispatcher_backend if flex
                      else config.moe_token_dispatcher_type,
        "ep_overlap": config.overlap_moe_expert_parallel_comm, "delay_wgrad": config.delay_wgrad_compute,
        "shared_expert_overlap": shared and config.moe_shared_expert_overlap,
        "capacity_factor": config.moe_expert_capacity_factor if experts else None,
        "pad_to_capacity": experts and bool(config.moe_pad_expert_input_to_capacity),
        "cuda_graph": graph_of(config),
        "tp_overlap": config.tp_comm_overlap and not config.multi_latent_attention,  # TELinear switches it off
        "overlap_p2p": config.overlap_p2p_comm and pp > 1,
        "cp_comm": (comm[0] if isinstance(comm, list) else comm or "p2p").replace("+", "_"),
        "mtp_depth": config.mtp_num_layers or 0,
    }  # fmt: skip


def graph_of(config: Any) -> str:
    """Our name of what is captured."""
    if config.cuda_graph_impl == "none":
        return "none"
    scope = {getattr(one, "name", one) for one in config.cuda_graph_scope or ()}
    whole = config.cuda_graph_impl == "full_iteration" or scope & {"full_iteration", "full"}
    return "full_iteration" if whole else "scoped"


def _of_the_optimizer(optimizer: Any) -> dict[str, Any]:
    offload = optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0.0
    return {
        "optimizer": optimizer.optimizer.removeprefix("dist_"), "optimizer_offload": offload,
        "moment_dtype": dtype(optimizer.exp_avg_dtype), "main_param_dtype": dtype(optimizer.main_params_dtype),
    }  # fmt: skip


def promised(request: Request, choice: Choice, held: Knobs) -> dict[str, Any]:
    """What a change promises: sizes of its layout, the knobs that take effect, and what of the workload is a field."""
    layout, workload = choice.layout, request.workload
    sizes = ("tp", "pp", "vpp", "cp", "dp", "mbs", "gbs", "sp")
    found = {name: getattr(layout, name) for name in sizes} | {"split": layout.split.layers}
    moe = request.model.is_moe
    found |= {"ep": layout.ep if moe else 1, "etp": layout.etp if moe else 1}
    return found | _knobs(held, layout) | _workload(workload, moe)


def _knobs(held: Knobs, layout: Layout) -> dict[str, Any]:
    plain = ("full_uniform", "full_block", "ep_overlap", "delay_wgrad", "shared_expert_overlap", "tp_overlap",
             "overlap_grad_reduce", "overlap_param_gather", "distributed_optimizer", "optimizer_offload",
             "optimizer_instances", "grad_dtype", "moment_dtype", "main_param_dtype")  # fmt: skip
    named: Mapping[str, Dispatcher | CudaGraph | Fsdp] = {
        "dispatcher": held.dispatcher, "cuda_graph": held.cuda_graph, "fsdp": held.fsdp,
    }  # fmt: skip
    return {
        **{name: getattr(held, name) for name in plain},
        **{name: value.name for name, value in named.items()},
        "recompute": tuple(sorted(held.recompute)),
        "overlap_p2p": held.overlap_p2p and layout.pp > 1 and layout.vpp > 1,
        "cp_comm": held.cp_comm.name if layout.cp > 1 else "p2p",
    }


def _workload(workload: Workload, moe: bool) -> dict[str, Any]:
    return {
        "precision": workload.precision.name, "fp8_params": workload.fp8_params, "optimizer": workload.optimizer,
        "capacity_factor": workload.capacity_factor if moe else None,
        "pad_to_capacity": moe and workload.capacity_factor is not None and workload.pad_to_capacity,
        "mtp_depth": workload.mtp_depth, "seq_len": workload.seq_len,
    }  # fmt: skip


def broken(said: Mapping[str, Any], holds: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Names whose promise does not hold: {name: (promised, held)}."""
    return {name: (said[name], holds[name]) for name in said if said[name] != holds[name]}
