"""Tensors that attention and recurrent mixers save for backward, and what their backward allocates."""

from __future__ import annotations

import numpy as np

from advisor.cost.tensors import Local, Tensors, add
from advisor.spec.layout import Array, Columns, CpComm
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mamba,
    Mixer,
    Model,
    SparseIndexer,
)
from advisor.spec.workload import Workload

DELTA_CHUNK = 64
"""Tokens per chunk of the delta-rule kernel (flash-linear-attention, chunk_gated_delta_rule)."""


def local_kv_heads(kv_heads: int, tp: Array) -> Array:
    """Key-value heads per tensor-parallel rank; with more ranks than heads every rank keeps one (a replica)."""
    heads: Array = np.maximum(kv_heads, tp) / tp
    return heads


def mixer_tensors(layer: Layer, model: Model, workload: Workload, columns: Columns, at: Local) -> Tensors:
    """Saved tensors of the layer's mixer, its input and norm output included."""
    out: Tensors = {}
    mixer = layer.mixer
    if mixer is None:
        return out
    # The norm before multi-head latent attention is a module of its own, else it is fused into the projection.
    latent, grouped = isinstance(mixer, LatentAttention), isinstance(mixer, GroupedQueryAttention)
    entry = at.goes("attn_norm") if latent else at.goes("qkv_linear") if grouped else ()
    add(out, entry, at.element * model.hidden * model.hyper_connections * at.owned)
    normalised = at.goes("qkv_linear") if latent or grouped else ()
    add(out, (*(("layernorm",) if latent else ()), *normalised), at.linear_input * model.hidden * at.owned)
    if isinstance(mixer, GroupedQueryAttention):
        _grouped(out, mixer, at)
        _scores(out, mixer.heads, workload, columns, at)
    elif isinstance(mixer, LatentAttention):
        _latent(out, mixer, at)
        _scores(out, mixer.heads, workload, columns, at)
    elif isinstance(mixer, CompressedAttention):
        _compressed(out, mixer, at)
    elif isinstance(mixer, Mamba):
        _mamba(out, mixer, at)
    else:
        _delta(out, mixer, at)
    if not isinstance(mixer, Mamba | DeltaNet):
        _indexer(out, mixer.indexer, at)
    return out


def _projection_input(out: Tensors, width: Array, at: Local) -> None:
    """Attention output: kept by attention and, as the same tensor, by the projection; a copy when it is quantised."""
    add(out, at.goes("core_attn" if at.quantised else "attn_proj"), at.element * width)
    if at.quantised:
        add(out, at.goes("attn_proj"), at.linear_input * width)


def _grouped(out: Tensors, mixer: GroupedQueryAttention, at: Local) -> None:
    queries = mixer.heads / at.tp * at.tokens
    keys = local_kv_heads(mixer.kv_heads, at.tp) * at.tokens
    kept = at.element * (queries * mixer.head_dim + keys * (mixer.head_dim + mixer.v_head_dim))
    add(out, at.goes("core_attn"), kept)
    if mixer.qk_norm != "none":
        add(out, (), at.element * mixer.head_dim * (queries + keys))
    if mixer.output_gate:
        add(out, (), 2 * at.element * queries * mixer.v_head_dim)
    if mixer.query_rank is not None:
        add(out, (), 2 * at.element * mixer.query_rank * at.owned)
    _projection_input(out, queries * mixer.v_head_dim, at)


def _latent(out: Tensors, mixer: LatentAttention, at: Local) -> None:
    queries = mixer.heads / at.tp * at.tokens
    qk_dim = mixer.qk_nope_dim + mixer.qk_rope_dim
    down = 2 * (mixer.q_rank or 0) + 2 * mixer.kv_rank + mixer.qk_rope_dim
    add(out, (), at.element * down * at.owned)
    add(out, ("mla_up_proj", *at.goes("core_attn")), at.element * queries * (2 * qk_dim + mixer.v_head_dim))
    _projection_input(out, queries * mixer.v_head_dim, at)


def _compressed(out: Tensors, mixer: CompressedAttention, at: Local) -> None:
    queries = mixer.heads / at.tp * at.tokens
    add(out, (), at.element * (2 * mixer.q_rank + 2 * mixer.head_dim + mixer.o_rank * mixer.o_groups) * at.owned)
    add(out, ("mla_up_proj", *at.goes("core_attn")), at.element * queries * mixer.head_dim)
    add(out, ("core_attn",), 4.0 * queries)
    _projection_input(out, queries * mixer.head_dim, at)


def _mamba(out: Tensors, mixer: Mamba, at: Local) -> None:
    """The fused scan keeps the projected zxbcdt and its output, the gated norm its output (mamba_ssm ssd_combined)."""
    inner = mixer.heads * mixer.head_dim
    projected = 2 * inner + 2 * mixer.groups * mixer.state + mixer.heads
    add(out, (), (at.element * (projected + inner) + at.linear_input * inner) / at.tp * at.tokens)


def _delta(out: Tensors, mixer: DeltaNet, at: Local) -> None:
    """Projections, convolution outputs, q, k, v of the kernel, its output and the gated norm's output."""
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    mixed = 2 * keys + values
    projected = mixed + values + 2 * mixer.value_heads
    width = at.element * (projected + 2 * mixed + values) + at.linear_input * values + 8.0 * mixer.value_heads
    add(out, (), width / at.tp * at.tokens)


def _indexer(out: Tensors, indexer: SparseIndexer | None, at: Local) -> None:
    if indexer is None:
        return
    width = at.element * (indexer.heads + 1) * indexer.head_dim + 4.0 * indexer.topk
    add(out, (), width * at.tokens)


def _scores(out: Tensors, heads: int, workload: Workload, columns: Columns, at: Local) -> None:
    """Log-sum-exp of fused attention, or the score matrices of unfused attention (arXiv:2205.05198, section 4.1)."""
    rows = heads / at.tp * at.tokens
    if workload.attention_impl == "fused":
        add(out, ("core_attn",), 4.0 * rows)
        return
    per_score = at.element + ((1.0 + at.element) if workload.attention_dropout else 0.0)
    add(out, ("core_attn",), per_score * rows * workload.seq_len)


def mixer_transient(layer: Layer, model: Model, columns: Columns, at: Local) -> Array:
    """Bytes that the mixer's backward allocates: gradients of q, k, v and of the output, fp32 query accumulation.

    Context parallelism adds its exchange buffers.
    """
    if layer.mixer is None:
        return np.zeros_like(at.owned)
    incoming: Array = at.element * model.hidden * at.owned
    width = _backward_width(layer.mixer, at) + _exchange_width(layer.mixer, columns, at)
    return incoming + width / at.tp * at.tokens


def _exchange_width(mixer: Mixer, columns: Columns, at: Local) -> Array | float:
    """Bytes per local token, over all tensor ranks, of context-parallel buffers in attention's backward.

    p2p: two receive buffers of keys and values and two of their gradients; all-gather: keys, values and their
    gradients of the whole sequence; a2a: q, k, v, output and their gradients once more, heads split instead of tokens
    (TE:transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py).
    """
    if isinstance(mixer, GroupedQueryAttention):
        queries = mixer.heads * (mixer.head_dim + mixer.v_head_dim)
        keys: Array | int = np.maximum(mixer.kv_heads, at.tp) * (mixer.head_dim + mixer.v_head_dim)
    elif isinstance(mixer, LatentAttention):
        queries = mixer.heads * (mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim)
        keys = queries
    else:
        return 0.0
    ring = 4 * keys
    exchanged = 2 * (queries + keys)
    gathered = 2 * columns.cp * keys
    by_kind = np.select(
        [columns.cp_comm == CpComm.p2p, columns.cp_comm == CpComm.all_gather, columns.cp_comm == CpComm.a2a],
        [ring, gathered, exchanged],
        ring + exchanged,
    )
    width: Array = np.where(columns.cp > 1, at.element * by_kind, 0.0)
    return width


def _backward_width(mixer: Mixer, at: Local) -> Array | float:
    """Bytes per token, over all tensor ranks, of the backward of a mixer; recurrences rebuild chunk states."""
    if isinstance(mixer, GroupedQueryAttention):
        keys = np.maximum(mixer.kv_heads, at.tp) * (mixer.head_dim + mixer.v_head_dim)
        queries = mixer.heads * (mixer.head_dim + mixer.v_head_dim)
        return at.element * (queries + keys) + 4.0 * mixer.heads * mixer.head_dim
    if isinstance(mixer, LatentAttention):
        qk_dim = mixer.qk_nope_dim + mixer.qk_rope_dim
        return mixer.heads * (at.element * (2 * qk_dim + 2 * mixer.v_head_dim) + 4.0 * qk_dim)
    if isinstance(mixer, CompressedAttention):
        return mixer.heads * mixer.head_dim * (2 * at.element + 4.0)
    if isinstance(mixer, Mamba):
        inner = mixer.heads * mixer.head_dim
        projected = 2 * inner + 2 * mixer.groups * mixer.state + mixer.heads
        return at.element * (projected + 2 * inner) + 8.0 * inner * mixer.state / mixer.chunk
    keys_width, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    states = 4.0 * mixer.value_heads * mixer.key_dim * mixer.value_dim / DELTA_CHUNK
    return at.element * (4 * keys_width + 4 * values) + states
