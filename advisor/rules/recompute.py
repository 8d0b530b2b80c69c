"""Recomputation and CUDA graphs: what excludes what, and what does nothing."""

from __future__ import annotations

import numpy as np

from advisor.rules.grid import expert_parts
from advisor.rules.rule import ARG, NEVER, TC, Case, Row, Rule, always
from advisor.spec.layout import RECOMPUTE_MODULES, Array, CudaGraph, Dispatcher
from advisor.spec.model import CompressedAttention, DenseMlp, Model

SWITCHES = tuple(f"rc_{module}" for module in RECOMPUTE_MODULES)
LAYER = "ML:megatron/core/transformer/transformer_layer.py"
SKILL = "MB:skills/nemo-mbridge-perf-activation-recompute/SKILL.md"


def _full(case: Case) -> Array:
    return (case.columns.full_uniform > 0) | (case.columns.full_block > 0)


def has_latent(model: Model) -> bool:
    """Whether any layer has the up-projections that mla_up_proj recomputes."""
    return model.has_mla or any(isinstance(layer.mixer, CompressedAttention) for layer in model.kinds)


def _any(case: Case, *modules: str) -> Array:
    """Entries that recompute one of these modules."""
    switches = [getattr(case.columns, f"rc_{module}") for module in modules]
    return np.any(np.broadcast_arrays(*switches), axis=0) if switches else NEVER


def idle_modules(model: Model) -> tuple[str, ...]:
    """Recompute modules that Megatron accepts although no layer of `model` has them."""
    parts = expert_parts(model)
    dense = any(isinstance(layer.mlp, DenseMlp) for layer in model.kinds)
    present = {
        "moe": bool(parts),
        "shared_experts": any(part.shared_ffn for part in parts),
        "mlp": dense,
        "layernorm": bool(parts) or has_latent(model),
    }
    return tuple(module for module, there in present.items() if not there)


def _dynamic_experts(case: Case) -> bool:
    return case.model.is_moe and not case.workload.pad_to_capacity


def _scoped(case: Case) -> Array:
    mask: Array = case.columns.cuda_graph == CudaGraph.scoped
    return mask


def _whole(case: Case) -> Array:
    mask: Array = case.columns.cuda_graph == CudaGraph.full_iteration
    return mask


def _synced_preprocess(case: Case) -> Array:
    if not case.model.is_moe or case.workload.pad_to_capacity or case.workload.capacity_factor is None:
        return NEVER
    mask: Array = _scoped(case) & (case.columns.dispatcher == Dispatcher.alltoall)
    return mask


def _modules(row: Row, among: tuple[str, ...]) -> str:
    return ", ".join(module for module in row.knobs.recompute if module in among)


def _without(row: Row, drop: tuple[str, ...]) -> str:
    return "recompute=" + (",".join(module for module in row.knobs.recompute if module not in drop) or "none")


RECOMPUTE = (
    Rule(
        "full-recompute-one-method", "stop", ("full_uniform", "full_block"), f"{TC}:1901-1925",
        lambda c: (c.columns.full_uniform > 0) & (c.columns.full_block > 0),
        lambda r: "full recomputation is uniform or by block, not both",
        lambda r: "recompute=full",
    ),
    Rule(
        "mla-up-proj-needs-mla", "stop", ("rc_mla_up_proj",), f"{TC}:1964-2012",
        lambda c: NEVER if has_latent(c.model) else c.columns.rc_mla_up_proj,
        lambda r: f"mla_up_proj is a part of multi-head latent attention, which {r.model.name} has not",
        lambda r: _without(r, ("mla_up_proj",)),
    ),
    Rule(
        "moe-act-needs-experts", "stop", ("rc_moe_act",), f"{TC}:1964-2012 (needs moe_grouped_gemm)",
        lambda c: NEVER if c.model.is_moe and c.workload.grouped_gemm else c.columns.rc_moe_act,
        lambda r: f"moe_act is the activation of grouped experts, which {r.model.name} has not"
        + (" (grouped GEMM is off)" if r.model.is_moe else ""),
        lambda r: _without(r, ("moe_act",)),
    ),
    Rule(
        "shared-recompute-xor-shared-overlap", "stop", ("rc_shared_experts", "shared_expert_overlap"),
        f"{TC}:1964-2012",
        lambda c: c.columns.rc_shared_experts & c.columns.shared_expert_overlap,
        lambda r: "shared experts are either recomputed or overlapped with the dispatch",
        lambda r: "shared_expert_overlap=false",
    ),
    Rule(
        "delayed-fp8-without-output-recompute", "stop", ("rc_moe_act", "rc_layernorm"), f"{TC}:1964-2012",
        lambda c: _any(c, "moe_act", "layernorm") if c.workload.precision.name == "fp8-delayed" else NEVER,
        lambda r: f"fp8 with delayed scaling cannot recompute {_modules(r, ('moe_act', 'layernorm'))}",
        lambda r: "precision=fp8-current",
    ),
    Rule(
        "modules-ignored-under-full-recompute", "silent", (*SWITCHES, "full_uniform", "full_block"),
        "ML:megatron/core/transformer/transformer_block.py (full granularity checkpoints whole layers)",
        lambda c: _any(c, *RECOMPUTE_MODULES) & _full(c),
        lambda r: f"full recomputation repeats whole layers; the modules {', '.join(r.knobs.recompute)} are ignored",
        lambda r: "recompute=full",
    ),
    Rule(
        "recompute-module-absent", "info", SWITCHES, f"{LAYER}:473-530",
        lambda c: _any(c, *idle_modules(c.model)),
        lambda r: f"{_modules(r, idle_modules(r.model))} does nothing here: in {r.model.name} no layer has such a"
        " module of its own (norms are fused into the projections behind them)",
        lambda r: _without(r, idle_modules(r.model)),
    ),
    Rule(
        "core-attn-recompute-fused", "slow", ("rc_core_attn",), f"{SKILL} (-0.01 % memory, +3.9 % time)",
        lambda c: c.columns.rc_core_attn if c.workload.attention_impl == "fused" else NEVER,
        lambda r: "fused attention keeps no score matrix: recomputing core_attn saves nothing and repeats attention",
        lambda r: _without(r, ("core_attn",)),
    ),
)  # fmt: skip

GRAPHS = (
    Rule(
        "full-recompute-needs-full-graph", "stop", ("cuda_graph", "full_uniform", "full_block"), f"{TC}:2773-2975",
        lambda c: _full(c) & _scoped(c),
        lambda r: "full recomputation runs without CUDA graph or inside one of the full iteration, not a scoped one",
        lambda r: "cuda_graph=none",
    ),
    Rule(
        "router-graph-without-moe-recompute", "stop", ("cuda_graph", "rc_moe"), f"{TC}:2773-2975",
        # In a hybrid model expert layers stand alone, and the graphs hold the other layers.
        lambda c: c.columns.rc_moe & _scoped(c) if c.model.is_moe and not c.model.is_hybrid else NEVER,
        lambda r: "a scoped CUDA graph holds the router, so the expert layer around it cannot be recomputed",
        lambda r: _without(r, ("moe",)),
    ),
    Rule(
        "full-graph-needs-static-experts", "stop", ("cuda_graph", "dispatcher"), f"{TC}:1868, 2773-2975",
        lambda c: _whole(c) & (c.columns.dispatcher != Dispatcher.hybridep) if _dynamic_experts(c) else NEVER,
        lambda r: "a CUDA graph of the full iteration needs fixed token counts per expert: capacity with padding, or"
        f" hybridep with a rank budget, not {r.knobs.dispatcher.name}",
        lambda r: "cuda_graph=scoped",
    ),
    Rule(
        "scoped-graph-without-synced-dispatch", "stop", ("cuda_graph", "dispatcher"), f"{TC}:2773-2975",
        _synced_preprocess,
        lambda r: f"alltoall with capacity factor {r.workload.capacity_factor} and no padding copies counts to the"
        " host, which a scoped CUDA graph cannot hold",
        lambda r: "pad_to_capacity=true",
    ),
    Rule(
        "graph-without-dropout-recompute", "stop", ("cuda_graph", "rc_core_attn"), f"{TC}:2773-2975",
        lambda c: c.columns.rc_core_attn & (c.columns.cuda_graph > 0) if c.workload.attention_dropout > 0 else NEVER,
        lambda r: f"attention dropout {r.workload.attention_dropout} draws random numbers, which a graphed"
        " recomputation cannot repeat",
        lambda r: _without(r, ("core_attn",)),
    ),
    Rule(
        "full-graph-without-mlp-dropout-recompute", "stop", ("cuda_graph", "rc_mlp", "rc_moe"), f"{TC}:2773-2975",
        lambda c: _any(c, "mlp", "moe") & _whole(c) if c.workload.hidden_dropout > 0 else NEVER,
        lambda r: f"hidden dropout {r.workload.hidden_dropout} draws random numbers, which a graphed recomputation"
        " cannot repeat",
        lambda r: _without(r, ("mlp", "moe")),
    ),
    Rule(
        "full-graph-fixed-lengths", "info", ("cuda_graph",), f"{ARG}:1953-1971",
        lambda c: _whole(c) & always(c.workload.task == "sft"),
        lambda r: "fine-tuning batches vary in length; a CUDA graph of the full iteration needs them padded",
        lambda r: "cuda_graph=none",
    ),
)  # fmt: skip
