"""What a decoder layer, the logits and a prediction module weigh when layers are dealt over pipeline ranks.

The unit is forward multiply-adds per token. Only ratios matter: recompute, backward and data parallelism scale every
entry alike. Formulae: ML:megatron/training/training.py@d98e8a64, lines 802-1385 (model FLOPs), causal half included.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.spec.model import (
    CompressedAttention,
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


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Weights in multiply-adds per token: one per decoder layer, the loss with its logits, all prediction modules."""

    layers: tuple[float, ...]
    loss: float
    modules: float


def keys_per_query(seq_len: int, window: int | None) -> float:
    """Mean number of keys that a causal query sees, with an optional sliding window of `window` keys."""
    if window is None or window >= seq_len:
        return seq_len / 2
    return window - window * (window - 1) / (2 * seq_len)


def _mixer(mixer: Mixer, hidden: int, seq_len: int) -> float:
    if isinstance(mixer, GroupedQueryAttention):
        query, value = mixer.heads * mixer.head_dim, mixer.heads * mixer.v_head_dim
        width = hidden if mixer.query_rank is None else mixer.query_rank
        q_proj = width * query * (2 if mixer.output_gate else 1) + (0 if width == hidden else hidden * width)
        kv_proj = 0 if mixer.shares_kv else hidden * mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
        return q_proj + kv_proj + value * hidden + keys_per_query(seq_len, mixer.window) * (query + value)
    if isinstance(mixer, LatentAttention):
        qk, a = mixer.qk_nope_dim + mixer.qk_rope_dim, mixer.heads
        q_proj = hidden * a * qk if mixer.q_rank is None else mixer.q_rank * (hidden + a * qk)
        kv_proj = hidden * (mixer.kv_rank + mixer.qk_rope_dim) + mixer.kv_rank * a * (
            mixer.qk_nope_dim + mixer.v_head_dim
        )
        keys = seq_len / 2 if mixer.indexer is None else min(seq_len / 2, mixer.indexer.topk)
        return q_proj + kv_proj + a * mixer.v_head_dim * hidden + keys * a * (qk + mixer.v_head_dim)
    if isinstance(mixer, CompressedAttention):
        query = mixer.heads * mixer.head_dim
        far = seq_len / (2 * mixer.ratio) if mixer.ratio else 0.0
        far = far if mixer.indexer is None else min(far, mixer.indexer.topk)
        keys = keys_per_query(seq_len, mixer.window) + far
        projections = mixer.q_rank * (hidden + query) + 2 * hidden * mixer.head_dim
        return projections + query * mixer.o_rank + mixer.o_groups * mixer.o_rank * hidden + 2 * keys * query
    if isinstance(mixer, Mamba):
        inner, states = mixer.heads * mixer.head_dim, mixer.groups * mixer.state
        return hidden * (2 * inner + 2 * states + mixer.heads) + 3.5 * inner * mixer.state + inner * hidden
    keys_width, values_width = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    projections = hidden * (2 * keys_width + 2 * values_width + 2 * mixer.value_heads) + values_width * hidden
    return projections + 3 * values_width * mixer.key_dim


def _mlp(mlp: DenseMlp | ExpertMlp, hidden: int) -> float:
    projections = 3 if mlp.gated else 2
    if isinstance(mlp, DenseMlp):
        return projections * hidden * mlp.ffn
    width = hidden if mlp.latent is None else mlp.latent
    outer = 0 if mlp.latent is None else 2 * hidden * mlp.latent
    return projections * (width * mlp.ffn * mlp.topk + hidden * mlp.shared_ffn) + outer + hidden * mlp.experts


def _layer(layer: Layer, hidden: int, seq_len: int) -> float:
    mixer = 0.0 if layer.mixer is None else _mixer(layer.mixer, hidden, seq_len)
    return mixer + (0.0 if layer.mlp is None else _mlp(layer.mlp, hidden))


def stage_weights(model: Model, workload: Workload, depth: int) -> StageWeights:
    """Weights of every part that a pipeline stage may hold; `depth` prediction modules are trained."""
    kinds = [_layer(layer, model.hidden, workload.seq_len) for layer in model.kinds]
    logits = float(model.hidden * model.vocab_size)
    modules = 0.0
    if depth and model.mtp is not None:
        layers = sum(kinds[kind] for kind in model.mtp.layers)
        modules = depth * (layers + 2 * model.hidden**2 + logits)
    elif depth:
        modules = depth * (kinds[model.pattern[-1]] + 2 * model.hidden**2 + logits)
    return StageWeights(tuple(kinds[kind] for kind in model.pattern), logits, modules)
