"""Parameter counts: exact totals of a model, and what one rank of a layout holds.

One walk over the parts of a layer yields plain integers in four classes (`Counts`); totals add them up and per-rank
counts divide them. The classes follow Megatron built with the Transformer Engine layers that GPU jobs use: norms,
router, latent projections and the down-projections of latent attention are whole on every tensor-parallel rank
(ML:megatron/core/transformer/multi_latent_attention.py@d98e8a64, lines 526-574; core/transformer/moe/router.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.cost.stages import Stage
from advisor.spec.layout import Array, Columns
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mamba,
    Mixer,
    Model,
    SparseIndexer,
)
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Counts:
    """Whole-model parameter counts of a part, by how Megatron spreads them.

    `sharded` is divided by tp; `replicated` is whole on every rank; `expert` is divided by etp * ep;
    `expert_replicated` (biases of the experts' second matrix) by ep only.
    """

    sharded: int = 0
    replicated: int = 0
    expert: int = 0
    expert_replicated: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.sharded + other.sharded,
            self.replicated + other.replicated,
            self.expert + other.expert,
            self.expert_replicated + other.expert_replicated,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.sharded + self.replicated + self.expert + self.expert_replicated


@dataclass(frozen=True, slots=True, eq=False)
class LayerParams:
    """Parameters of one layer on one rank, int64 columns: `sharded` and `replicated` over tp, and routed `expert`."""

    sharded: Array
    replicated: Array
    expert: Array

    @property
    def dense(self) -> Array:
        """Everything that is not a routed expert."""
        return self.sharded + self.replicated


@dataclass(frozen=True, slots=True, eq=False)
class StageParams:
    """Parameters of one pipeline rank, int64 columns.

    `dense` is everything that is not a routed expert; `embedding` (with the copy that prediction modules need) and
    `head` are the vocabulary parts of it.
    """

    dense: Array
    expert: Array
    embedding: Array
    head: Array

    @property
    def total(self) -> Array:
        """All parameters of the rank."""
        return self.dense + self.expert


def ceil_div(numerator: Array | int, denominator: Array) -> Array:
    """Integer division that rounds up; rows that do not divide are illegal and only need a sane value."""
    quotient: Array = -(-numerator // denominator)
    return quotient


def _indexer(indexer: SparseIndexer, hidden: int, query_width: int) -> Counts:
    """Queries from the low-rank query, one key head with a layer norm, and a weight per index head."""
    width = indexer.heads * indexer.head_dim
    return Counts(replicated=query_width * width + hidden * (indexer.head_dim + indexer.heads) + 2 * indexer.head_dim)


def _grouped_query(mixer: GroupedQueryAttention, hidden: int) -> Counts:
    q = mixer.heads * mixer.head_dim
    k = 0 if mixer.shares_kv else mixer.kv_heads * mixer.head_dim
    v = 0 if mixer.shares_kv else mixer.kv_heads * mixer.v_head_dim
    out = mixer.heads * mixer.v_head_dim
    q_out = q * (2 if mixer.output_gate else 1)
    sharded = hidden * (k + v) + out * hidden
    replicated = 0
    if mixer.query_rank is None:
        sharded += hidden * q_out
    else:
        replicated += hidden * mixer.query_rank + mixer.query_rank
        sharded += mixer.query_rank * q_out
    if mixer.qkv_bias:
        sharded += q_out + k + v
    if mixer.out_bias:
        replicated += hidden
    if mixer.sinks:
        sharded += mixer.heads
    if mixer.qk_norm == "head":
        replicated += 2 * mixer.head_dim
    elif mixer.qk_norm == "full":
        # A norm over the whole projection; each rank is taken to scale the heads it holds (assumed: the module is
        # Megatron-Bridge's, megatron-core has only the norm per head).
        sharded += q + k
    counts = Counts(sharded=sharded, replicated=replicated)
    return counts if mixer.indexer is None else counts + _indexer(mixer.indexer, hidden, hidden)


def _latent(mixer: LatentAttention, hidden: int) -> Counts:
    query = mixer.heads * (mixer.qk_nope_dim + mixer.qk_rope_dim)
    sharded = mixer.kv_rank * mixer.heads * (mixer.qk_nope_dim + mixer.v_head_dim)
    sharded += mixer.heads * mixer.v_head_dim * hidden
    replicated = hidden * (mixer.kv_rank + mixer.qk_rope_dim)
    normed = mixer.kv_rank
    if mixer.q_rank is None:
        sharded += hidden * query
    else:
        sharded += mixer.q_rank * query
        replicated += hidden * mixer.q_rank
        normed += mixer.q_rank
    if mixer.qk_norm != "none":
        replicated += normed
    counts = Counts(sharded=sharded, replicated=replicated)
    return counts if mixer.indexer is None else counts + _indexer(mixer.indexer, hidden, mixer.q_rank or hidden)


def _compressed(mixer: CompressedAttention, hidden: int) -> Counts:
    """Compressed attention of DeepSeek V4 as transformers 5.24.0 builds it (models/deepseek_v4).

    No megatron-core release has it; it is taken to be split like latent attention (assumed).
    """
    width = mixer.heads * mixer.head_dim
    sharded = mixer.q_rank * width + mixer.heads
    sharded += width * mixer.o_rank + mixer.o_groups * mixer.o_rank * hidden
    replicated = hidden * (mixer.q_rank + mixer.head_dim) + mixer.q_rank + mixer.head_dim
    if mixer.ratio:
        # Two overlapping halves per compressed key where an indexer picks keys, one where all keys are read.
        replicated += _compressor(hidden, mixer.head_dim, mixer.ratio, halves=1 if mixer.indexer is None else 2)
    if mixer.indexer is not None:
        index = mixer.indexer
        replicated += _compressor(hidden, index.head_dim, mixer.ratio, halves=2)
        replicated += mixer.q_rank * index.heads * index.head_dim + hidden * index.heads
    return Counts(sharded=sharded, replicated=replicated)


def _compressor(hidden: int, head_dim: int, ratio: int, halves: int) -> int:
    """Key-value and gate projections, a bias per position of the compressed window, and a norm."""
    return halves * head_dim * (2 * hidden + ratio) + head_dim


def _mamba(mixer: Mamba, hidden: int) -> Counts:
    """Mamba-2; every part is split over tp by heads and groups (ML:megatron/core/ssm/mamba_mixer.py, 251-367)."""
    inner, mixed = mixer.heads * mixer.head_dim, 2 * mixer.groups * mixer.state
    sharded = hidden * (2 * inner + mixed + mixer.heads) + inner * hidden
    sharded += (inner + mixed) * (mixer.conv + mixer.conv_bias) + 3 * mixer.heads + inner
    if not mixer.proj_bias:
        return Counts(sharded=sharded)
    return Counts(sharded=sharded + 2 * inner + mixed + mixer.heads, replicated=hidden)


def _delta_net(mixer: DeltaNet, hidden: int) -> Counts:
    """Gated delta-net; only the output norm, shared by all heads, is whole on every rank."""
    k, v = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    sharded = hidden * (2 * k + 2 * v + 2 * mixer.value_heads) + v * hidden
    sharded += (2 * k + v) * mixer.conv + 2 * mixer.value_heads
    return Counts(sharded=sharded, replicated=mixer.value_dim)


def _mixer(mixer: Mixer | None, hidden: int) -> Counts:
    if mixer is None:
        return Counts()
    if isinstance(mixer, GroupedQueryAttention):
        return _grouped_query(mixer, hidden)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden)
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, hidden)
    return _mamba(mixer, hidden) if isinstance(mixer, Mamba) else _delta_net(mixer, hidden)


def _two_matrices(hidden: int, ffn: int, gated: bool, bias: bool) -> tuple[int, int]:
    """A feed-forward part as (split over tensor parallelism, whole on every rank): only the output bias is whole."""
    inner = (2 if gated else 1) * ffn
    return hidden * (inner + ffn) + (inner if bias else 0), hidden if bias else 0


def _feed_forward(mlp: FeedForward | None, hidden: int, routed: int | None = None) -> Counts:
    """Counts of a feed-forward part; `routed` overrides the number of routed experts (active parameters)."""
    if mlp is None:
        return Counts()
    if isinstance(mlp, DenseMlp):
        return Counts(*_two_matrices(hidden, mlp.ffn, mlp.gated, mlp.bias))
    width = hidden if mlp.latent is None else mlp.latent
    split, whole = _two_matrices(width, mlp.ffn, mlp.gated, mlp.bias)
    experts = mlp.experts if routed is None else routed
    shared, shared_whole = _two_matrices(hidden, mlp.shared_ffn, mlp.gated, mlp.bias) if mlp.shared_ffn else (0, 0)
    replicated = hidden * mlp.experts + shared_whole
    replicated += mlp.experts if mlp.router_linear_bias else 0
    replicated += hidden if mlp.shared_gate and mlp.shared_ffn else 0
    replicated += 0 if mlp.latent is None else 2 * hidden * mlp.latent
    return Counts(sharded=shared, replicated=replicated, expert=experts * split, expert_replicated=experts * whole)


def _norm(model: Model) -> int:
    return model.hidden * (2 if model.norm_bias else 1)


def _hyper_connection(model: Model) -> int:
    """Mixing weights of one sub-layer over `n` residual streams (transformers 5.24.0, models/deepseek_v4)."""
    n = model.hyper_connections
    return (2 + n) * n * (n * model.hidden + 1) + 3 if n > 1 else 0


def _hyper_head(model: Model) -> int:
    n = model.hyper_connections
    return n * n * model.hidden + n + 1 if n > 1 else 0


@lru_cache(maxsize=4096)
def _layer(layer: Layer, model: Model, active: bool) -> Counts:
    routed = layer.mlp.topk if active and isinstance(layer.mlp, ExpertMlp) else None
    around = Counts(replicated=layer.norms * _norm(model) + 2 * _hyper_connection(model))
    return _mixer(layer.mixer, model.hidden) + _feed_forward(layer.mlp, model.hidden, routed) + around


def layer_counts(layer: Layer, model: Model) -> Counts:
    """Whole-model counts of one layer of `model`, by how they are spread over ranks."""
    return _layer(layer, model, False)


def _mtp_layers(model: Model) -> tuple[Layer, ...]:
    """Layers of one prediction module: those that the model names, else one like its last decoder layer."""
    indices = model.pattern[-1:] if model.mtp is None else model.mtp.layers
    return tuple(model.kinds[i] for i in indices)


@lru_cache(maxsize=256)
def mtp_module_counts(model: Model) -> Counts:
    """Whole-model counts of one prediction module: its layers, a 2h x h projection and three norms."""
    counts = Counts(sharded=2 * model.hidden * model.hidden, replicated=3 * _norm(model))
    for layer in _mtp_layers(model):
        counts = counts + layer_counts(layer, model)
    return counts


def _around_layers(model: Model) -> int:
    """Final norm, output head and its bias, stream merge: what total and active counts share beside the embedding."""
    head = 0 if model.tied_embeddings else model.vocab_size * model.hidden
    return head + (model.vocab_size if model.head_bias else 0) + _norm(model) + _hyper_head(model)


def _embedding(model: Model) -> int:
    return (model.vocab_size + model.position_embeddings) * model.hidden


def router_bias_params(model: Model) -> int:
    """Load-balancing biases of the routers: in a published checkpoint, but buffers in Megatron and on no rank here."""
    pairs = zip(model.kinds, model.count, strict=True)
    return sum(n * kind.mlp.experts for kind, n in pairs if isinstance(kind.mlp, ExpertMlp) and kind.mlp.router_bias)


def trained_params(model: Model) -> int:
    """Parameters that an optimizer sees: the sum over all ranks of one replica, vocabulary unpadded, without MTP."""
    layers = sum(n * layer_counts(kind, model).total for kind, n in zip(model.kinds, model.count, strict=True))
    return layers + _around_layers(model) + _embedding(model)


def total_params(model: Model) -> int:
    """Parameters as a model is published: unpadded vocabulary, balancing biases counted, no prediction modules."""
    return trained_params(model) + router_bias_params(model)


def active_params(model: Model, with_embedding: bool) -> int:
    """Parameters that one token meets: `topk` routed experts of each layer; the input embedding only if asked."""
    layers = sum(n * _layer(kind, model, True).total for kind, n in zip(model.kinds, model.count, strict=True))
    return layers + _around_layers(model) + (_embedding(model) if with_embedding else 0)


def mtp_params(model: Model) -> int:
    """Extra parameters of all prediction modules that the model names (0 without)."""
    if model.mtp is None:
        return 0
    return (1 if model.mtp.repeated else model.mtp.depth) * mtp_module_counts(model).total


def padded_vocab(model: Model, workload: Workload, columns: Columns) -> Array:
    """Vocabulary rows that Megatron allocates: the next multiple of `vocab_divisor` * tp (shape of `columns.tp`)."""
    multiple = workload.vocab_divisor * columns.tp
    padded: Array = ceil_div(model.vocab_size, multiple) * multiple
    return padded


def _on_rank(counts: Counts, columns: Columns) -> LayerParams:
    expert = ceil_div(counts.expert, columns.etp * columns.ep)
    return LayerParams(
        sharded=ceil_div(counts.sharded, columns.tp),
        replicated=np.asarray(counts.replicated, dtype=np.int64),
        expert=expert + ceil_div(counts.expert_replicated, columns.ep),
    )


def layer_params(layer: Layer, model: Model, columns: Columns) -> LayerParams:
    """Parameters of one `layer` on one rank of each row."""
    return _on_rank(layer_counts(layer, model), columns)


def mtp_module_params(model: Model, columns: Columns) -> LayerParams:
    """Parameters of one prediction module on one rank of each row, without its copy of the embedding."""
    return _on_rank(mtp_module_counts(model), columns)


def stage_params(model: Model, workload: Workload, columns: Columns, stage: Stage) -> StageParams:
    """Parameters of the pipeline rank `stage` of each row, vocabulary padded.

    Prediction modules bring their own copy of the embedding where the rank has none; the output head reuses the
    embedding only when both lie in one model chunk, that is without pipelining
    (core 0.16.1, models/gpt/gpt_model.py, lines 149 and 249).
    """
    vocab = ceil_div(padded_vocab(model, workload, columns), columns.tp)
    has_embedding = np.maximum(stage.embedding, np.minimum(stage.modules, 1))
    embedding = has_embedding * (vocab * model.hidden + model.position_embeddings * model.hidden)
    own_head = stage.loss * (1 - stage.embedding * model.tied_embeddings)
    head = own_head * vocab * model.hidden + stage.loss * vocab * model.head_bias
    dense = embedding + head + stage.final_norm * _norm(model) + stage.loss * _hyper_head(model)
    expert = np.zeros_like(columns.tp)
    for kind, count in zip(model.kinds, stage.layers, strict=True):
        one = layer_params(kind, model, columns)
        dense, expert = dense + count * one.dense, expert + count * one.expert
    module = mtp_module_params(model, columns)
    repeated = model.mtp is not None and model.mtp.repeated
    modules = np.minimum(stage.modules, 1) if repeated else stage.modules
    return StageParams(
        dense=dense + modules * module.dense,
        expert=expert + modules * module.expert,
        embedding=embedding,
        head=head,
    )
