"""Weight-gradient placeholders: one tensor per distinct shape of linear weight.

With gradient accumulation fused into the GEMM the true gradient goes straight to the main buffer, but autograd still
wants a tensor of the weight's shape. Transformer Engine keeps one uninitialised tensor per shape and data type for the
whole run (TE:transformer_engine/pytorch/module/base.py, get_dummy_wgrad), and they are allocated memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.cost.stages import Stage
from advisor.spec.layout import Array, Columns
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mamba,
    Mixer,
    Model,
)
from advisor.spec.workload import Workload

Shape = tuple[int, int, str]
"""Rows, columns and the column that divides their product ("tp", "etp" or "" for a replicated weight)."""


def _mixer_shapes(mixer: Mixer, hidden: int) -> Iterator[Shape]:
    if isinstance(mixer, GroupedQueryAttention):
        keys = 0 if mixer.shares_kv else mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
        queries = mixer.heads * mixer.head_dim * (2 if mixer.output_gate else 1)
        yield queries + keys, mixer.query_rank or hidden, "tp"
        yield hidden, mixer.heads * mixer.v_head_dim, "tp"
    elif isinstance(mixer, LatentAttention):
        queries = mixer.heads * (mixer.qk_nope_dim + mixer.qk_rope_dim)
        if mixer.q_rank is not None:
            yield mixer.q_rank, hidden, ""
        yield queries, mixer.q_rank or hidden, "tp"
        yield mixer.kv_rank + mixer.qk_rope_dim, hidden, ""
        yield mixer.heads * (mixer.qk_nope_dim + mixer.v_head_dim), mixer.kv_rank, "tp"
        yield hidden, mixer.heads * mixer.v_head_dim, "tp"
    elif isinstance(mixer, CompressedAttention):
        yield mixer.q_rank + mixer.head_dim, hidden, ""
        yield mixer.heads * mixer.head_dim, mixer.q_rank, "tp"
        yield mixer.o_rank * mixer.o_groups, hidden, "tp"
    elif isinstance(mixer, Mamba):
        inner = mixer.heads * mixer.head_dim
        yield 2 * inner + 2 * mixer.groups * mixer.state + mixer.heads, hidden, "tp"
        yield hidden, inner, "tp"
    elif isinstance(mixer, DeltaNet):
        keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        yield 2 * keys + 2 * values + 2 * mixer.value_heads, hidden, "tp"
        yield hidden, values, "tp"


def _pair(ffn: int, gated: bool, hidden: int, divisor: str) -> Iterator[Shape]:
    yield (2 if gated else 1) * ffn, hidden, divisor
    yield hidden, ffn, divisor


def _shapes(layer: Layer, model: Model) -> Iterator[Shape]:
    if layer.mixer is not None:
        yield from _mixer_shapes(layer.mixer, model.hidden)
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp):
        yield from _pair(mlp.ffn, mlp.gated, model.hidden, "tp")
    elif isinstance(mlp, ExpertMlp):
        yield from _pair(mlp.ffn, mlp.gated, mlp.latent or model.hidden, "etp")
        if mlp.shared_ffn:
            yield from _pair(mlp.shared_ffn, mlp.gated, model.hidden, "tp")


def placeholder_bytes(model: Model, workload: Workload, columns: Columns, stage: Stage) -> Array:
    """Bytes of the cached placeholders of one rank's decoder layers; 0 without fused accumulation or under FSDP."""
    if not workload.grad_accumulation_fused:
        return np.zeros(1)
    present: dict[Shape, Array] = {}
    for layer, count in zip(model.kinds, stage.layers, strict=True):
        for shape in _shapes(layer, model):
            here = np.minimum(count, 1)
            present[shape] = np.maximum(present[shape], here) if shape in present else here
    element = 4.0 if workload.precision.name == "fp32" else 2.0
    divisors: dict[str, Array | int] = {"tp": columns.tp, "etp": columns.etp, "": 1}
    total: Array = np.zeros(1)
    for (rows, cols, divisor), here in present.items():
        total = total + here * (element * rows * cols / divisors[divisor])
    return np.where(columns.fsdp > 0, 0.0, total)
