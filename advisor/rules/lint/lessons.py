"""What public reports of slow runs had in common, asked of a configuration and its environment."""

from __future__ import annotations

from advisor.rules.lessons import LESSONS
from advisor.rules.lint.experts import ep_overlap
from advisor.rules.lint.form import ARG, PERF, ConfigRule, Hit, rule
from advisor.rules.lint.frame import fsdp
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import captures, graph

_SOURCES = {one.id: one.source for one in LESSONS}


def _one_queue(c: Setup) -> bool:
    return c.variable("CUDA_DEVICE_MAX_CONNECTIONS") == "1"


def _overlapped(c: Setup) -> list[str]:
    names = ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather", "optimizer.overlap_param_gather")
    return [name.split(".")[1] for name in names if c.on(name) or c.on(f"comm_overlap.{name.split('.')[1]}")]


def _serialised(c: Setup) -> str | None:
    """Gradient and parameter traffic beside compute, in one hardware queue that nothing asks for."""
    hidden = list(dict.fromkeys(_overlapped(c)))
    old = c.capability is None or c.capability[0] < 10
    if not (_one_queue(c) and old and c.tp == 1 and c.cp == 1 and hidden) or fsdp(c) or ep_overlap(c):
        return None
    return (
        f"CUDA_DEVICE_MAX_CONNECTIONS=1 puts compute and {' and '.join(hidden)} into one hardware queue, where they run"
        " one after the other; only TP or CP above 1 want it, here both are 1"
    )


def _full_recompute(c: Setup) -> bool:
    return bool(c.get("recompute_granularity") == "full")


def _no_grouped_gemm(c: Setup) -> bool:
    return c.n("experts") > 1 and c.off("moe_grouped_gemm")


def _tensor_only(c: Setup) -> Hit | None:
    dp, mbs, gbs = c.dp, c.n("mbs"), c.n("gbs")
    if c.tp < 4 or c.pp > 1 or c.cp > 1 or c.n("experts") > 1 or not (dp and mbs and gbs):
        return None
    batches = gbs // (mbs * dp)
    if batches < 4 * c.tp:
        return None
    return Hit(
        f"TP {c.tp} alone is not always best inside a node: {batches} microbatches would fill a pipeline of {c.tp}"
        f" stages to {batches / (batches + c.tp - 1):.0%}, without an exchange in every layer",
        f"PP {c.tp} with TP 1, by measurement",
    )


FUSIONS = (
    "gradient_accumulation_fusion", "masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion",
    "apply_rope_fusion", "persist_layer_norm",
)  # fmt: skip
SLOW_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": ("1", "the host waits for every kernel"),
    "NCCL_IB_DISABLE": ("1", "traffic between nodes goes over TCP"),
    "NCCL_P2P_DISABLE": ("1", "traffic between the GPUs of a node leaves NVLink"),
    "NCCL_SHM_DISABLE": ("1", "processes of a node exchange over the network"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked by another one"),
    "NCCL_DEBUG": ("TRACE", "every call of NCCL is written out"),
}
"""Variables of debugging that are left on, with the value that costs time and why."""


def _fusions_off(c: Setup) -> str | None:
    off = [name for name in FUSIONS if c.stated(name) is False and not c.on("deterministic_mode")]
    return f"{', '.join(off)} switched off: each is one kernel more per layer" if off else None


def _debugging(c: Setup) -> str | None:
    for name, (value, why) in SLOW_VARIABLES.items():
        if (c.variable(name) or "").upper() == value:
            return f"{name}={c.variable(name)}: {why}"
    return None


def _measuring(c: Setup) -> str | None:
    if c.n("timing_log_level") >= 2 or c.n("logger.timing_log_level") >= 2:
        return "timing_log_level 2 times every phase with the GPU drained in between"
    if c.n("train.empty_unused_memory_level") >= 1 or c.n("empty_unused_memory_level") >= 1:
        return "empty_unused_memory_level returns the allocator's memory in every step, to ask for it again"
    return None


LESSON_RULES: tuple[ConfigRule, ...] = (
    rule("one-connection-serialises", "slow", "environment", "mcore",
         "https://github.com/NVIDIA/Megatron-LM/issues/1468", _serialised,
         "CUDA_DEVICE_MAX_CONNECTIONS=1 without TP or CP: traffic does not overlap with compute",
         "unset CUDA_DEVICE_MAX_CONNECTIONS, or 8 to 32"),
    rule("ep-overlap-one-connection", "slow", "environment", "mcore",
         f"https://github.com/NVIDIA/Megatron-LM/pull/6311 (gain 3.7 % with 1, 7.8 % with 32); {PERF}",
         lambda c: ep_overlap(c) and _one_queue(c),
         "the EP overlap with CUDA_DEVICE_MAX_CONNECTIONS=1: the all-to-all waits in the queue of compute (gain 3.7 %"
         " with 1, 7.8 % with 32 measured on DeepSeek-V3 layers)",
         "export CUDA_DEVICE_MAX_CONNECTIONS=32"),
    rule("grouped-gemm-off", "slow", "transformer", "mcore", _SOURCES["grouped-gemm-off"], _no_grouped_gemm,
         "experts run one after another without grouped GEMM", "moe_grouped_gemm=true"),
    rule("full-recompute-costs", "slow", "transformer", "advisor", _SOURCES["full-recompute-costs"], _full_recompute,
         "full recomputation repeats the forward pass, about a quarter of the compute",
         "selective recomputation, fewer pipeline stages, sequence parallelism, the distributed optimizer"),
    rule("graph-gain-unproven", "info", "transformer", "advisor", _SOURCES["graph-gain-unproven"],
         lambda c: c.n("experts") > 1 and graph(c) != "none" and captures(c, "moe_router")
         and c.get("moe_token_dispatcher_type") in ("allgather", "alltoall"),
         "scoped CUDA graphs around the {moe_token_dispatcher_type} dispatcher: a capture that succeeds is no proof of"
         " a gain (42.00 s with, 41.36 s without, measured)",
         "compare a step without graphs"),
    rule("fusions-off", "slow", "transformer", "mcore", "ML:megatron/core/transformer/transformer_config.py (fusions)",
         _fusions_off, "fused kernels are switched off", "leave them on"),
    rule("debugging-variables", "slow", "environment", "env",
         "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; torch.cuda documentation", _debugging,
         "a variable of debugging is left on", "unset it for training"),
    rule("measuring-costs", "slow", "arguments", "mcore", f"{ARG}; ML:megatron/core/timers.py", _measuring,
         "measurements that slow every step down", "timing_log_level 0 or 1, empty_unused_memory_level 0"),
    rule("dp-traffic-shows", "slow", "overlap", "advisor", _SOURCES["dp-traffic-shows"],
         lambda c: (c.dp or 1) * c.cp > 1 and c.stated("ddp.overlap_grad_reduce") is False and not fsdp(c),
         "gradients of {dp} data-parallel ranks are reduced after the backward pass, not beside it",
         "ddp.overlap_grad_reduce=true"),
    rule("unfused-attention", "slow", "transformer", "mcore", _SOURCES["unfused-attention"],
         lambda c: c.get("attention_backend") in ("unfused", "local") or (
             c.variable("NVTE_FLASH_ATTN") == "0" and c.variable("NVTE_FUSED_ATTN") == "0"),
         "unfused attention reads and writes the score matrix of every head", "attention_backend=auto"),
    rule("tensor-parallel-alone", "info", "grid", "advisor", _SOURCES["tensor-parallel-alone"], _tensor_only,
         "TP alone with microbatches to fill a pipeline", "PP in place of TP, by measurement"),
)  # fmt: skip
