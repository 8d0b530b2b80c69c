"""Parts that need a package which may be missing here: Transformer Engine, Apex, DeepEP, Megatron-FSDP, Muon.

`settled` looks at what is installed and gives the job as it can be run, with what stands in for the rest in words, so
that no record is silent about it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from advisor.trial.worker.said import first_line

OF_FSDP = ("use_megatron_fsdp", "data_parallel_sharding_strategy", "gradient_reduce_div_fusion")
OF_AWARE = (
    "use_precision_aware_optimizer", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype",
)  # fmt: skip
# Fields that megatron-core refuses, or ignores, without Transformer Engine, and what runs when they are off.
OF_ENGINE = {
    "tp_comm_overlap": "plain collectives in place of user buffers",
    "delay_wgrad_compute": "weight gradients at once in place of delayed ones",
    "moe_grouped_gemm": "experts one after another in place of grouped GEMM",
    "fp8": "bf16 in place of fp8",
    "fp4": "bf16 in place of fp4",
}
# Kernels as megatron-core imports them (None where the installation has none), by the field that asks for them.
KERNELS = {
    "moe_permute_fusion": (
        "megatron.core.transformer.moe.moe_utils", "fused_permute_with_probs", "tokens permuted by torch"
    ),
    "apply_rope_fusion": (
        "megatron.core.models.common.embeddings.rope_utils", "fused_apply_rotary_pos_emb", "rotary embedding by torch"
    ),
}  # fmt: skip
FLEX = {"deepep": "HAVE_DEEP_EP", "hybridep": "HAVE_HYBRIDEP"}

Job = dict[str, Any]


def lack_of_engine(device: str) -> str:
    """Why layers cannot be those of Transformer Engine here, empty where they can."""
    if device != "cuda":
        return "Transformer Engine needs a GPU"
    if find_spec("transformer_engine") is None:
        return "transformer_engine is not installed"
    try:
        importlib.import_module("transformer_engine.pytorch")
    except (ImportError, RuntimeError, AssertionError, AttributeError, OSError) as problem:
        return f"transformer_engine cannot be imported: {first_line(problem)}"
    return ""


def settled(job: Mapping[str, Any], lack: str) -> tuple[Job, tuple[str, ...]]:
    """The job as this installation can run it, and what stands in for what it lacks; `lack` is that of the engine.

    RuntimeError for context parallelism without Transformer Engine, which nothing stands in for.
    """
    found = {name: dict(one) if isinstance(one, Mapping) else one for name, one in job.items()}
    if lack and job["sizes"]["cp"] > 1:
        raise RuntimeError(f"context parallelism needs Transformer Engine: {lack}")
    said = [*_sharding(found), *_optimizer(found, lack)]
    if lack:
        said += _engine(found, lack)
    said += [*_kernels(found["config"]), *_dispatcher(found["config"])]
    return found, tuple(said)


def _sharding(job: Job) -> Iterator[str]:
    ddp = job["ddp"]
    if ddp.get("use_megatron_fsdp") and (lack := _lack_of_fsdp()):
        for name in OF_FSDP:
            ddp.pop(name, None)
        yield f"plain distributed optimizer in place of Megatron-FSDP: {lack}"


def _lack_of_fsdp() -> str:
    if find_spec("einops") is None:
        return "einops is not installed"
    try:
        adapter = importlib.import_module("megatron.core.distributed.fsdp.mcore_fsdp_adapter")
    except ImportError as problem:
        return str(problem)
    return "" if adapter.HAVE_MEGATRON_FSDP else "this megatron-core has none"


def _optimizer(job: Job, lack: str) -> Iterator[str]:
    ddp, optimizer = job["ddp"], job["optimizer"]
    if optimizer["optimizer"] == "muon":
        if find_spec("emerging_optimizers") is None:
            optimizer["optimizer"] = "adam"
            yield "adam in place of muon: emerging_optimizers is not installed"
        else:  # megatron-core shards the states of Muon by layers and refuses its distributed optimizer
            for one in (ddp, optimizer):
                one.update(use_distributed_optimizer=False, overlap_param_gather=False)
    if lack and optimizer.get("use_precision_aware_optimizer") and not optimizer.get("optimizer_cpu_offload"):
        kept = ", ".join(sorted({str(optimizer[name]) for name in OF_AWARE[2:]} - {"fp32"}))
        for name in OF_AWARE:
            optimizer.pop(name, None)
        yield f"fp32 states of the optimizer in place of {kept} ones: {lack}"


def _engine(job: Job, lack: str) -> Iterator[str]:
    config, ddp = job["config"], job["ddp"]
    for name, words in OF_ENGINE.items():
        if config.get(name):
            config[name] = None if name in {"fp8", "fp4"} else False
            yield f"{words}: {lack}"
    for name in ("fp8_recipe", "fp4_recipe", "fp8_param"):
        config.pop(name, None)
    for name in ("delay_wgrad_compute", "fp8_param_gather"):
        ddp.pop(name, None)
    job["optimizer"].pop("fp8_recipe", None)


def _kernels(config: Job) -> Iterator[str]:
    for name, (module, kernel, words) in KERNELS.items():
        if config.get(name) and getattr(importlib.import_module(module), kernel, None) is None:
            config[name] = False
            yield f"{words} in place of one kernel: this installation has no {kernel}"
    if config.get("gradient_accumulation_fusion") and find_spec("fused_weight_gradient_mlp_cuda") is None:
        config["gradient_accumulation_fusion"] = False
        yield "weight gradients added after their product: fused_weight_gradient_mlp_cuda (Apex) is not installed"


def _dispatcher(config: Job) -> Iterator[str]:
    backend = config.get("moe_flex_dispatcher_backend")
    if backend is None:
        return
    kernels = importlib.import_module("megatron.core.transformer.moe.fused_a2a")
    if not getattr(kernels, FLEX[backend], False):
        config |= {"moe_token_dispatcher_type": "alltoall"}
        for name in ("moe_flex_dispatcher_backend", f"moe_{backend}_num_sms"):
            config.pop(name, None)
        yield f"alltoall in place of {backend}: deep_ep is not installed, or has none"
