"""What public reports of slow runs had in common: settings that run, cost time, and look innocent."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from advisor import data
from advisor.rules.rule import NEVER, SCH, Case, Row, Rule, always
from advisor.spec.layout import Array, CudaGraph, Dispatcher, Fsdp
from advisor.spec.load.fields import read_yaml_mapping

SKILLS = "MB:skills/nemo-mbridge-perf"
FORWARD_SHARE = 0.25
"""Forward over forward, backward and a repeated forward: what full recomputation adds to compute, of the whole."""
MICROBATCHES_PER_STAGE = 4
"""From so many microbatches per stage on, a pipeline spends little time filling and draining."""
MOST_BUBBLE = 0.1
_FORMATS = {"bf16": "bf16", "fp8-delayed": "fp8", "fp8-current": "fp8", "fp8-blockwise": "fp8", "mxfp8": "fp8"}


def _moe(case: Case, mask: Array) -> Array:
    return mask if case.model.is_moe else NEVER


def _training(case: Case, mask: Array) -> Array:
    return mask if case.workload.mode == "train" else NEVER


def _repeated(row: Row) -> float:
    """Share of the layers that full recomputation runs twice."""
    if row.knobs.full_uniform:
        return 1.0
    return min(1.0, row.knobs.full_block * row.layout.pp * row.layout.vpp / row.model.num_layers)


def _instead(row: Row) -> str:
    modules = "recompute=moe_act,layernorm" if row.model.is_moe else "recompute=layernorm"
    fewer = f",pp={row.layout.pp // 2}" if row.layout.pp > 4 else ""
    return f"{modules}{fewer},sp=true,distributed_optimizer=true"


def _tensor_only(case: Case) -> Array:
    """One tensor-parallel group inside a domain per replica, with microbatches to fill a pipeline instead."""
    x = case.columns
    inside = (x.tp >= 4) & (x.tp <= case.cluster.used_per_domain)
    mask: Array = inside & (x.pp == 1) & (x.cp == 1) & (x.num_microbatches >= MICROBATCHES_PER_STAGE * x.tp)
    return mask if case.model.num_layers >= 4 and not case.model.is_moe else NEVER


def _bubble(row: Row) -> float:
    fill = (row.layout.pp - 1) / row.layout.vpp
    return fill / (row.layout.num_microbatches + fill)


def _plain_pipeline(case: Case) -> Array:
    x = case.columns
    idle = (x.pp - 1) / np.maximum(x.num_microbatches + x.pp - 1, 1)
    mask: Array = (x.pp > 1) & (x.vpp == 1) & (idle > MOST_BUBBLE) & (x.num_microbatches >= x.pp)
    return mask & (case.model.num_layers >= 2 * x.pp)


@lru_cache(maxsize=1)
def _buffers() -> dict[str, Any]:
    return read_yaml_mapping(data.require("presets", "userbuffers.yaml"))


def _has_buffers(case: Case | Row) -> bool:
    """Whether a user-buffer preset of the vendor has the architecture, number format and hidden size of the job."""
    table, arch = _buffers(), case.cluster.gpu.arch
    names = {token for token, archs in table["architectures"].items() if isinstance(archs, list) and arch in archs}
    fmt = _FORMATS.get(case.workload.precision.name)
    return any(
        row["gpu_arch"] in names and row["precision"] == fmt and row["hidden_size"] == case.model.hidden
        for row in table["presets"].values()
    )


LESSONS = (
    Rule(
        "allgather-is-slow", "slow", ("dispatcher", "ep"),
        "https://github.com/NVIDIA/Megatron-LM/issues/756 (130 TFLOP/s per GPU, 230 with alltoall and a newer grouped"
        " GEMM); ML:megatron/core/transformer/moe/README.md",
        lambda c: _moe(c, (c.columns.dispatcher == Dispatcher.allgather) & (c.columns.ep > 1)),
        lambda r: f"the allgather dispatcher sends every token to all {r.layout.ep} expert-parallel ranks, where"
        f" alltoall sends {r.model.moe.topk if r.model.moe else 1} copies of it",
        lambda r: "dispatcher=alltoall",
        weighed=True,
    ),
    Rule(
        "grouped-gemm-off", "slow", (),
        "https://github.com/NVIDIA/Megatron-LM/issues/756; ML:megatron/core/transformer/moe/README.md",
        lambda c: always(c.model.is_moe and not c.workload.grouped_gemm),
        lambda r: "without grouped GEMM the experts of a rank run one after another,"
        f" {r.model.moe.experts // r.layout.ep if r.model.moe else 1} small products in place of one",
        lambda r: "--moe-grouped-gemm with Transformer Engine 2 or newer",
    ),
    Rule(
        "full-recompute-costs", "slow", ("full_uniform", "full_block"),
        "https://github.com/NVIDIA/Megatron-LM/issues/1031 (296 TFLOP/s per GPU, 420 with selective recomputation)",
        lambda c: _training(c, (c.columns.full_uniform > 0) | (c.columns.full_block > 0)),
        lambda r: f"full recomputation runs the forward pass of {_repeated(r):.0%} of the layers twice: about"
        f" {FORWARD_SHARE * _repeated(r):.0%} of the compute is repeated; selective recomputation, fewer pipeline"
        " stages, sequence parallelism and the distributed optimizer make room for less",
        _instead,
        targets=("advisor",), weighed=True,
    ),
    Rule(
        "mlp-recompute-costs", "slow", ("rc_mlp",),
        f"{SKILLS}-memory-tuning (594 TFLOP/s of 710 on Llama 3 70B, 32 H100)",
        lambda c: NEVER if c.model.is_moe else _training(c, c.columns.rc_mlp),
        lambda r: "recomputing mlp repeats the largest products of a dense layer: 16 % slower measured on Llama 3 70B",
        lambda r: "recompute=layernorm",
        targets=("advisor",), weighed=True,
    ),
    Rule(
        "optimizer-offload-is-slow", "slow", ("optimizer_offload",), f"{SKILLS}-memory-tuning (off-02)",
        lambda c: _training(c, c.columns.optimizer_offload > 0),
        lambda r: f"{r.knobs.optimizer_offload:.0%} of the optimizer on the host: 1.9 times slower at 25 %, 4.2 at"
        " 100 % measured on Qwen3 30B",
        lambda r: "the smallest fraction that fits",
    ),
    Rule(
        "graph-gain-unproven", "info", ("cuda_graph", "dispatcher"),
        f"{SKILLS}-cuda-graphs (42.00 s with scoped graphs, 41.36 s without: Qwen3 30B, alltoall, 16 H100)",
        lambda c: _moe(c, (c.columns.cuda_graph == CudaGraph.scoped) & (c.columns.dispatcher < Dispatcher.hybridep)),
        lambda r: f"scoped CUDA graphs around the {r.knobs.dispatcher.name} dispatcher: the host still waits for token"
        " counts in every layer; that capture succeeds is no proof of a gain (42.00 s with, 41.36 s without, measured)",
        lambda r: "compare a step with cuda_graph=none",
        targets=("advisor",),
    ),
    Rule(
        "unfused-attention", "slow", (), "ML:megatron/core/transformer/dot_product_attention.py",
        lambda c: always(c.workload.attention_impl == "unfused" and c.workload.mode == "train"),
        lambda r: "unfused attention reads and writes score matrices of"
        f" {r.workload.seq_len} x {r.workload.seq_len} per head in every layer, which a fused kernel never stores",
        lambda r: "attention_impl=fused",
    ),
    Rule(
        "dp-traffic-shows", "slow", ("overlap_grad_reduce", "dp", "cp", "fsdp"),
        "ML:megatron/core/distributed/distributed_data_parallel_config.py; MB:docs/training/communication-overlap.md",
        lambda c: _training(
            c, ~c.columns.overlap_grad_reduce & (c.columns.dp * c.columns.cp > 1) & (c.columns.fsdp == Fsdp.none)
        ),
        lambda r: f"gradients of {r.layout.dp} data-parallel ranks are reduced after the backward pass, not beside it",
        lambda r: "overlap_grad_reduce=true",
        targets=("advisor",),
    ),
    Rule(
        "nvfp4-param-gather-memory", "info", ("overlap_param_gather", "distributed_optimizer", "dp", "cp"),
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/3714 (Llama 3.1 405B in NVFP4 on 256 GB200 ran out of"
        " memory, and ran with the overlap off)",
        lambda c: NEVER if c.workload.precision.name != "nvfp4" else _training(
            c, c.columns.overlap_param_gather & c.columns.distributed_optimizer & (c.columns.dp * c.columns.cp > 1)
        ),
        lambda r: "with NVFP4 the overlapped gather of parameters was seen to need memory that no formula here counts:"
        " a job at its limit ran out of memory with it and fitted without",
        lambda r: "overlap_param_gather=false",
        targets=("advisor",),
    ),
    Rule(
        "tp-without-sp", "info", ("tp", "sp"), "arXiv:2205.05198 section 4.2; MB:docs/performance-guide.md",
        lambda c: (c.columns.tp > 1) & ~c.columns.sp,
        lambda r: f"without sequence parallelism all {r.layout.tp} tensor-parallel ranks keep and compute the same"
        " norms and dropouts",
        lambda r: "sp=true",
        targets=("advisor",),
    ),
    Rule(
        "tensor-parallel-alone", "info", ("tp", "pp", "cp", "num_microbatches"),
        "https://github.com/NVIDIA/Megatron-LM/issues/258 (pp 8 beats tp 8 by 30 % on one DGX A100)",
        lambda c: _training(c, _tensor_only(c)),
        lambda r: f"tp {r.layout.tp} alone is not always best inside a node: every layer waits for its exchange, and"
        f" {r.layout.num_microbatches} microbatches would fill a pipeline of {r.layout.tp} stages to"
        f" {r.layout.num_microbatches / (r.layout.num_microbatches + r.layout.tp - 1):.0%}",
        lambda r: f"pp={r.layout.tp},tp=1",
        targets=("advisor",), weighed=True,
    ),
    Rule(
        "pipeline-without-interleaving", "info", ("pp", "vpp", "num_microbatches"),
        f"{SCH} (bubble = (pp - 1) / (m vpp)); {SKILLS}-parallelism (pp-02)",
        lambda c: _training(c, _plain_pipeline(c)),
        lambda r: f"pp {r.layout.pp} without interleaving fills and drains for {_bubble(r):.0%} of the step with"
        f" {r.layout.num_microbatches} microbatches; two chunks per rank halve that",
        lambda r: "vpp=2",
        targets=("advisor",), weighed=True,
    ),
    Rule(
        "tp-overlap-without-preset", "info", ("tp_overlap", "tp"),
        "https://github.com/NVIDIA/TransformerEngine/issues/426 (user buffers double the time of a layer of hidden"
        " 4096); presets/userbuffers.yaml",
        lambda c: c.columns.tp_overlap & (c.columns.tp > 1) if not _has_buffers(c) else NEVER,
        lambda r: f"no user-buffer preset is made for hidden size {r.model.hidden} in {r.workload.precision.name} on"
        f" {r.cluster.gpu.name}: Transformer Engine's own defaults can be slower than no overlap",
        lambda r: "try a short run with and without before relying on it (advisor trial)",
        targets=("bridge",),
    ),
    Rule(
        "tp-overlap-lost-with-mla", "silent", ("tp_overlap", "tp", "sp"),
        "ML:megatron/core/extensions/transformer_engine.py (TELinear, tp_comm_buffer_name)",
        lambda c: c.columns.tp_overlap & (c.columns.tp > 1) & c.columns.sp if c.model.has_mla else NEVER,
        lambda r: f"the projections of latent attention in {r.model.name} have buffer names that Transformer Engine"
        " does not know: the first of them switches user buffers off for every layer built after it",
        lambda r: "tp_overlap=false",
        targets=("advisor",),
    ),
)  # fmt: skip
