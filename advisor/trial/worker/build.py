"""Builds what a rank trains: process groups, GPTModel chunks in DDP, optimizer, all from megatron-core.

The order and the choices follow Megatron-LM's training set-up (megatron/training/training.py@d98e8a64: get_model,
setup_model_and_optimizer, train): buckets only on the first chunk, gradient synchronisation left to the schedule,
finalize_model_grads after the last microbatch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from advisor.trial.worker import groups, optional, shim
from advisor.trial.worker.buffers import open_user_buffers

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "squared_relu": lambda x: torch.pow(torch.nn.functional.relu(x), 2),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STATE_DTYPES = DTYPES | {"fp8": torch.uint8}


@dataclass(frozen=True, slots=True)
class Built:
    """What a rank trains with.

    `ignored` are fields of the job that the installed megatron-core does not have, `stand_ins` what runs here in place
    of what the job says, in words.
    """

    job: Mapping[str, Any]
    chunks: list[Any]
    optimizer: Any
    config: Any
    ddp_config: Any
    layer_spec: str
    ignored: tuple[str, ...]
    stand_ins: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether the rank has a GPU."""
        return bool(self.job["run"]["device"] == "cuda")


def open_groups(job: Mapping[str, Any]) -> None:
    """Join the process group and make Megatron's groups; RuntimeError when the sizes do not fit the world."""
    run, sizes = job["run"], job["sizes"]
    if run["device"] == "cuda":
        torch.cuda.set_device(card_of(int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()))
    else:
        torch.set_num_threads(run["threads"])
        shim.without_cuda()
        groups.watch()
    backend = "nccl" if run["device"] == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=run["collective_timeout_s"]))
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes["tp"],
        pipeline_model_parallel_size=sizes["pp"],
        virtual_pipeline_model_parallel_size=sizes["vpp"] if sizes["vpp"] > 1 else None,
        context_parallel_size=sizes["cp"],
        expert_model_parallel_size=sizes["ep"],
        expert_tensor_parallel_size=sizes["etp"],
        num_distributed_optimizer_instances=job["optimizer_instances"],
        distributed_timeout_minutes=run["collective_timeout_s"] / 60,
        order=job["order"],
        create_gloo_process_groups=False,
    )
    seed = run["seed"] + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    if run["device"] == "cuda":
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(seed)


def card_of(local_rank: int, seen: int) -> int:
    """The GPU of a rank, of those that it sees: of its own number, or the only one, as some launchers show it.

    RuntimeError where it sees none, or fewer than there are ranks on the node.
    """
    if seen == 1:
        return 0
    if local_rank >= seen:
        raise RuntimeError(f"rank {local_rank} of this node has no GPU: torch sees {seen}")
    return local_rank


def build(job: Mapping[str, Any]) -> Built:
    """Model chunks, optimizer and configuration of the rank; `open_groups` has been called."""
    lack = optional.lack_of_engine(job["run"]["device"])
    engine = not lack
    if not engine:
        shim.without_transformer_engine()
    job, stand_ins = optional.settled(job, lack)
    config, ignored = _config(job)
    stand_ins += open_user_buffers(job, config, DTYPES[job["dtype"]])
    chunks = [_chunk(job, config, engine, stage) for stage in _stages(job)]
    if job["run"]["device"] == "cuda":
        chunks = [chunk.cuda(torch.cuda.current_device()) for chunk in chunks]
    ddp_config = _ddp_config(job)
    chunks = [_in_ddp(chunk, config, ddp_config, index) for index, chunk in enumerate(chunks)]
    optimizer = _optimizer(job, chunks)
    _connect(config, ddp_config, chunks, optimizer)
    spec = "transformer_engine" if engine else "local"
    return Built(job, chunks, optimizer, config, ddp_config, spec, ignored, stand_ins)


def _stages(job: Mapping[str, Any]) -> list[int | None]:
    vpp = job["sizes"]["vpp"]
    return list(range(vpp)) if vpp > 1 else [None]


def _config(job: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """TransformerConfig (or its latent-attention kind) of the job; fields it does not know are named, not given."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    latent = bool(job["config"].get("multi_latent_attention"))
    kind = MLATransformerConfig if latent else TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    dtype = DTYPES[job["dtype"]]
    given = {**job["config"], "params_dtype": dtype, "pipeline_dtype": dtype}
    if given["activation_func"] not in ACTIVATIONS:
        raise RuntimeError(f"no activation is named {given['activation_func']}: one of {', '.join(ACTIVATIONS)}")
    given["activation_func"] = ACTIVATIONS[given["activation_func"]]
    for name in ("window_size", "moe_layer_freq"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name]) if name == "window_size" else list(given[name])
    config = kind(**{name: value for name, value in given.items() if name in known})
    return config, tuple(sorted(set(given) - known))


def _chunk(job: Mapping[str, Any], config: Any, engine: bool, stage: int | None) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_decoder_layer_specs,
        get_gpt_mtp_block_spec,
    )

    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=engine, normalization=config.normalization, vp_stage=stage
    )
    prediction = None
    if config.mtp_num_layers:
        last = get_gpt_decoder_layer_specs(config, engine, normalization=config.normalization)[-1]
        prediction = get_gpt_mtp_block_spec(config, last, use_transformer_engine=engine, vp_stage=stage)
    place = {"ignore_virtual": False, "vp_stage": stage}
    return GPTModel(
        config=config,
        transformer_layer_spec=block,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        mtp_block_spec=prediction,
        vp_stage=stage,
        **job["gpt"],
    )


def _ddp_config(job: Mapping[str, Any]) -> Any:
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig(**job["ddp"])


def _in_ddp(chunk: Any, config: Any, ddp_config: Any, index: int) -> Any:
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.transformer.module import Float16Module

    if config.bf16 or config.fp16:
        chunk = Float16Module(config, chunk)
    kind: Any = DistributedDataParallel
    if ddp_config.use_megatron_fsdp:
        from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

        kind = FullyShardedDataParallel
        if str(torch.cuda.current_device()) == "cpu":
            shim.fsdp_without_cuda()
            kind = partial(kind, device=torch.device("cpu"))
    return kind(config, ddp_config, chunk, disable_bucketing=index > 0)


def _optimizer(job: Mapping[str, Any], chunks: list[Any]) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    given = {name: STATE_DTYPES[one] if name.endswith("_dtype") else one for name, one in job["optimizer"].items()}
    if given["optimizer"] == "muon":
        from megatron.core.optimizer.muon import get_megatron_muon_optimizer

        given["optimizer"] = "dist_muon"  # how 0.19 is told to shard it by layers; 0.16 does not read the name
        more = {"use_gloo_process_groups": False, "layer_wise_distributed_optimizer": True}
        return get_megatron_muon_optimizer(OptimizerConfig(**given), chunks, **more)
    return get_megatron_optimizer(OptimizerConfig(**given), chunks, use_gloo_process_groups=False)


def _connect(config: Any, ddp_config: Any, chunks: list[Any], optimizer: Any) -> None:
    """Give the schedule the functions that it calls around microbatches."""
    from megatron.core.distributed import finalize_model_grads

    def per_chunk(functions: list[Any]) -> Any:
        return functions if len(functions) > 1 else functions[0]

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if ddp_config.overlap_grad_reduce:
        config.no_sync_func = per_chunk([chunk.no_sync for chunk in chunks])
        config.grad_sync_func = per_chunk([chunk.start_grad_sync for chunk in chunks])
    if ddp_config.overlap_param_gather and ddp_config.align_param_gather:
        config.param_sync_func = per_chunk([chunk.start_param_sync for chunk in chunks])
