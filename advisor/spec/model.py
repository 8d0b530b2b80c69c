"""A language model as its distinct kinds of layers and the order they come in.

A layer is a mixer (attention or a recurrence), a feed-forward part, or both. Hybrid models (one sub-layer per layer)
leave one of them out. Every count and cost is a sum over `Model.kinds` weighted by how often a kind occurs, so no
formula has to know a model family.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

QkNorm = Literal["none", "head", "full"]


@dataclass(frozen=True, slots=True)
class SparseIndexer:
    """Lightning indexer of sparse attention (DeepSeek V3.2, GLM-5): picks `topk` keys per query."""

    heads: int
    head_dim: int
    topk: int


@dataclass(frozen=True, slots=True)
class GroupedQueryAttention:
    """Softmax attention with `heads` queries and `kv_heads` keys and values (MHA, GQA, MQA, MFA, cross-layer KV).

    `window` limits a query to that many keys; `sinks` is the learned per-head softmax offset; `output_gate` doubles the
    query projection; `query_rank` puts the query through a low-rank bottleneck (MFA); `shares_kv` reuses the keys and
    values of the layer before (CLA), so this layer has no k and v projection.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QkNorm = "none"
    output_gate: bool = False
    window: int | None = None
    sinks: bool = False
    query_rank: int | None = None
    shares_kv: bool = False
    indexer: SparseIndexer | None = None


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): low-rank queries (`q_rank`, None = full) and low-rank keys and values."""

    heads: int
    q_rank: int | None
    kv_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_head_dim: int
    qk_norm: QkNorm = "full"
    indexer: SparseIndexer | None = None


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Compressed sparse attention (DeepSeek V4): one key-value head, low-rank queries, grouped low-rank output.

    `ratio` tokens are compressed into one key (0 = window only).
    """

    heads: int
    head_dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    rope_dim: int
    window: int
    ratio: int
    indexer: SparseIndexer | None = None


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba-2 state-space mixer: inner width `heads * head_dim`, `groups` B/C groups of `state` each."""

    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int
    chunk: int = 128
    conv_bias: bool = True
    proj_bias: bool = False


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta-net linear attention (Qwen3-Next)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Feed-forward part of width `ffn`; `gated` has three projections, else two."""

    ffn: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertMlp:
    """Mixture of experts: `experts` routed ones of width `ffn`, `topk` of them per token, and a shared expert.

    `shared_ffn` is the total width of the shared experts (0 = none); `latent` the width that routed experts work in
    when it differs from the hidden size; `groups`/`group_topk` limit the expert groups a token may reach;
    `router_bias` is the load-balancing bias (in published totals; a buffer in Megatron, so on no rank);
    `router_linear_bias` is a trained bias of the router projection.
    """

    experts: int
    topk: int
    ffn: int
    gated: bool = True
    bias: bool = False
    shared_ffn: int = 0
    shared_gate: bool = False
    latent: int | None = None
    groups: int | None = None
    group_topk: int | None = None
    score: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    router_bias: bool = False
    router_linear_bias: bool = False
    hash_routed: bool = False


Mixer = GroupedQueryAttention | LatentAttention | CompressedAttention | Mamba | DeltaNet
FeedForward = DenseMlp | ExpertMlp


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of decoder layer. `norms` counts norms of the hidden size (2 usual, 4 sandwich, 1 hybrid sub-layer)."""

    mixer: Mixer | None
    mlp: FeedForward | None
    norms: int = 2


@dataclass(frozen=True, slots=True)
class MultiTokenPrediction:
    """`depth` extra modules: each the `layers` (indices into `Model.kinds`), a 2h x h projection and 3 norms.

    `repeated` applies one module `depth` times: its weights count once, its activations and work `depth` times.
    """

    depth: int
    layers: tuple[int, ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the planner sees it. `pattern[i]` is the index into `kinds` of decoder layer i.

    `hyper_connections` is the number of residual streams (1 = plain); `position_embeddings` the length of a learned
    position table (0 = rotary or none). `vocab_size` is unpadded.
    """

    name: str
    family: str
    hidden: int
    vocab_size: int
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]
    tied_embeddings: bool
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    position_embeddings: int = 0
    head_bias: bool = False
    mtp: MultiTokenPrediction | None = None
    hyper_connections: int = 1
    max_position: int = 0
    source: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        """Decoder layers, without those of multi-token prediction."""
        return len(self.pattern)

    @property
    def count(self) -> tuple[int, ...]:
        """How many decoder layers there are of each kind."""
        return tuple(self.pattern.count(kind) for kind in range(len(self.kinds)))

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return any(isinstance(layer.mlp, ExpertMlp) for layer in self.kinds)

    @property
    def is_hybrid(self) -> bool:
        """Whether layers hold one sub-layer each, as in Megatron's hybrid (Mamba) model class."""
        return any(layer.mixer is None or layer.mlp is None for layer in self.kinds)

    @property
    def has_mla(self) -> bool:
        """Whether any layer uses multi-head latent attention."""
        return any(isinstance(layer.mixer, LatentAttention) for layer in self.kinds)

    @property
    def moe(self) -> ExpertMlp | None:
        """The widest expert part, or None for a dense model."""
        found = [layer.mlp for layer in self.kinds if isinstance(layer.mlp, ExpertMlp)]
        return max(found, key=lambda mlp: mlp.experts * mlp.ffn, default=None)
