"""Work of a model: its matrix multiplications by part, the FLOP convention, and what one rank computes.

Every layer is a list of `Gemm`s plus the work of its scores and recurrence. Model FLOPs (for TFLOP/s and MFU), the
share of a rank and the kernels that are timed all come from this one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from advisor.cost.router import load_factor
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

Part = Literal[
    "attention", "latent_up", "indexer", "recurrence", "mlp", "experts", "shared", "latent", "router"
]  # fmt: skip
Split = Literal["column", "row", "tokens"]


@dataclass(frozen=True, slots=True)
class Gemm:
    """One weight matrix of `inputs` x `outputs` that every token passes `uses` times.

    `split` says what tensor parallelism cuts: the outputs ("column"), the inputs ("row") or, with sequence
    parallelism, only the tokens ("tokens": the weight is replicated).
    """

    part: Part
    inputs: int
    outputs: int
    split: Split
    uses: float = 1.0

    @property
    def macs(self) -> float:
        """Multiply-adds per token, forward."""
        return float(self.inputs) * self.outputs * self.uses


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Forward work of one layer per token, unsharded: matrices, score multiply-adds, recurrence multiply-adds.

    `small_macs` are multiply-adds of norms of a bottleneck, which Megatron counts for latent attention.
    """

    gemms: tuple[Gemm, ...]
    score_macs: float
    recurrence_macs: float
    small_macs: float

    def macs(self, counted: bool = False) -> float:
        """Multiply-adds per token; `counted` follows the convention that leaves the router out."""
        products = sum(gemm.macs for gemm in self.gemms if not (counted and gemm.part == "router"))
        return products + self.score_macs + self.recurrence_macs + (self.small_macs if counted else 0.0)


def mean_context(seq_len: int, window: int | None) -> float:
    """Keys a query looks at on average: half the sequence, or W - W (W - 1) / (2 s) within a window of W.

    Source: the causal half of ML:megatron/training/training.py and the window of MB:utils/flop_utils.py (commits in
    README); both neglect the diagonal.
    """
    if window is None or window >= seq_len:
        return seq_len / 2
    return window - window * (window - 1) / (2 * seq_len)


def _indexer(indexer: SparseIndexer, inputs: int, hidden: int) -> tuple[Gemm, ...]:
    width = indexer.heads * indexer.head_dim
    return (
        Gemm("indexer", inputs, width, "tokens"),
        Gemm("indexer", hidden, indexer.head_dim + indexer.heads, "tokens"),
    )


def _grouped(mixer: GroupedQueryAttention, hidden: int, seq_len: int) -> LayerWork:
    queries = mixer.heads * mixer.head_dim * (2 if mixer.output_gate else 1)
    keys = 0 if mixer.shares_kv else mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
    gemms: list[Gemm] = []
    if mixer.query_rank is None:
        gemms.append(Gemm("attention", hidden, queries + keys, "column"))
    else:
        gemms.append(Gemm("attention", hidden, mixer.query_rank + keys, "tokens"))
        gemms.append(Gemm("attention", mixer.query_rank, queries, "column"))
    gemms.append(Gemm("attention", mixer.heads * mixer.v_head_dim, hidden, "row"))
    context = mean_context(seq_len, mixer.window)
    scores = mixer.heads * (mixer.head_dim + mixer.v_head_dim) * context
    if mixer.indexer is not None:
        gemms.extend(_indexer(mixer.indexer, hidden, hidden))
        scores = scores * mean_context(seq_len, mixer.indexer.topk) / mean_context(seq_len, None)
        scores += mixer.indexer.heads * mixer.indexer.head_dim * mean_context(seq_len, None)
    return LayerWork(tuple(gemms), scores, 0.0, 0.0)


def _latent(mixer: LatentAttention, hidden: int, seq_len: int) -> LayerWork:
    query_width = mixer.heads * (mixer.qk_nope_dim + mixer.qk_rope_dim)
    gemms: list[Gemm] = []
    small = float(mixer.kv_rank)
    if mixer.q_rank is None:
        gemms.append(Gemm("attention", hidden, query_width, "column"))
    else:
        gemms.append(Gemm("attention", hidden, mixer.q_rank, "tokens"))
        gemms.append(Gemm("latent_up", mixer.q_rank, query_width, "column"))
        small += mixer.q_rank
    gemms.append(Gemm("attention", hidden, mixer.kv_rank + mixer.qk_rope_dim, "tokens"))
    gemms.append(Gemm("latent_up", mixer.kv_rank, mixer.heads * (mixer.qk_nope_dim + mixer.v_head_dim), "column"))
    gemms.append(Gemm("attention", mixer.heads * mixer.v_head_dim, hidden, "row"))
    per_key = query_width + mixer.heads * mixer.v_head_dim
    context = mean_context(seq_len, None if mixer.indexer is None else mixer.indexer.topk)
    scores = per_key * context
    if mixer.indexer is not None:
        gemms.extend(_indexer(mixer.indexer, mixer.q_rank or hidden, hidden))
        scores += mixer.indexer.heads * mixer.indexer.head_dim * mean_context(seq_len, None)
    return LayerWork(tuple(gemms), scores, 0.0, small)


def _compressed(mixer: CompressedAttention, hidden: int, seq_len: int) -> LayerWork:
    """One shared key-value head, low-rank queries, grouped low-rank output (DeepSeek V4)."""
    width = mixer.heads * mixer.head_dim
    gemms = [
        Gemm("attention", hidden, mixer.q_rank + mixer.head_dim, "tokens"),
        Gemm("attention", mixer.q_rank, width, "column"),
        Gemm("attention", width, mixer.o_rank, "row"),
        Gemm("attention", mixer.o_rank * mixer.o_groups, hidden, "row"),
    ]
    context = mean_context(seq_len, mixer.window)
    if mixer.ratio:
        gemms.append(Gemm("attention", hidden, 2 * mixer.head_dim, "tokens"))
        compressed = seq_len / 2 / mixer.ratio
        context += compressed if mixer.indexer is None else min(compressed, mixer.indexer.topk)
    scores = 2 * width * context
    if mixer.indexer is not None:
        gemms.extend(_indexer(mixer.indexer, mixer.q_rank, hidden))
        scores += mixer.indexer.heads * mixer.indexer.head_dim * seq_len / 2 / max(mixer.ratio, 1)
    return LayerWork(tuple(gemms), scores, 0.0, 0.0)


def _mamba(mixer: Mamba, hidden: int) -> LayerWork:
    """In and out projections, and 7 FLOP per channel and state (Megatron's hybrid count)."""
    inner = mixer.heads * mixer.head_dim
    gemms = (
        Gemm("recurrence", hidden, 2 * inner + 2 * mixer.groups * mixer.state + mixer.heads, "column"),
        Gemm("recurrence", inner, hidden, "row"),
    )
    return LayerWork(gemms, 0.0, 3.5 * inner * mixer.state, 0.0)


def _delta_net(mixer: DeltaNet, hidden: int) -> LayerWork:
    """Projections, short convolution and 4 multiply-adds per entry of the state matrix (Megatron's count)."""
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    gemms = (
        Gemm("recurrence", hidden, 2 * keys + 2 * values + 2 * mixer.value_heads, "column"),
        Gemm("recurrence", values, hidden, "row"),
    )
    recurrence = mixer.conv * (2 * keys + values) + 4 * mixer.value_heads * mixer.value_dim**2
    return LayerWork(gemms, 0.0, float(recurrence), 0.0)


def _mixer_work(mixer: Mixer | None, hidden: int, seq_len: int) -> LayerWork:
    if isinstance(mixer, GroupedQueryAttention):
        return _grouped(mixer, hidden, seq_len)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden, seq_len)
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, hidden, seq_len)
    if isinstance(mixer, Mamba):
        return _mamba(mixer, hidden)
    if isinstance(mixer, DeltaNet):
        return _delta_net(mixer, hidden)
    return LayerWork((), 0.0, 0.0, 0.0)


def _mlp_gemms(mlp: FeedForward | None, hidden: int) -> tuple[Gemm, ...]:
    if mlp is None:
        return ()
    first = 2 if mlp.gated else 1
    if isinstance(mlp, DenseMlp):
        return (
            Gemm("mlp", hidden, first * mlp.ffn, "column"),
            Gemm("mlp", mlp.ffn, hidden, "row"),
        )
    width = mlp.latent or hidden
    gemms = [
        Gemm("router", hidden, mlp.experts, "tokens"),
        Gemm("experts", width, first * mlp.ffn, "column", mlp.topk),
        Gemm("experts", mlp.ffn, width, "row", mlp.topk),
    ]
    if mlp.latent:
        gemms += [Gemm("latent", hidden, mlp.latent, "tokens"), Gemm("latent", mlp.latent, hidden, "tokens")]
    if mlp.shared_ffn:
        gemms.append(Gemm("shared", hidden, first * mlp.shared_ffn, "column"))
        gemms.append(Gemm("shared", mlp.shared_ffn, hidden, "row"))
    return tuple(gemms)


@lru_cache(maxsize=4096)
def layer_work(layer: Layer, hidden: int, seq_len: int) -> LayerWork:
    """Work of one layer kind per token."""
    mixer = _mixer_work(layer.mixer, hidden, seq_len)
    return LayerWork(
        mixer.gemms + _mlp_gemms(layer.mlp, hidden), mixer.score_macs, mixer.recurrence_macs, mixer.small_macs
    )


def module_layers(model: Model) -> tuple[int, ...]:
    """Kinds of the decoder layers in one prediction module (a model without any repeats its last kind)."""
    return model.mtp.layers if model.mtp is not None else (model.pattern[-1],)


def decoder_macs(model: Model, seq_len: int) -> float:
    """Multiply-adds per token of all decoder layers as Megatron counts them (no router, no embedding, no logits)."""
    return sum(
        count * layer_work(layer, model.hidden, seq_len).macs(counted=True)
        for layer, count in zip(model.kinds, model.count, strict=True)
    )


def model_flops_per_token(model: Model, workload: Workload, padded_vocab: Array) -> Array:
    """Model FLOPs per token of forward and backward, the convention behind TFLOP/s and MFU.

    Shape of `padded_vocab`. 6 FLOP per multiply-add; causal attention counts half; recompute, router, norms and
    dispatch count nothing; a prediction module adds its layers, a 2h x h projection, 3h, and another set of logits.
    Source: ML:megatron/training/training.py:802-1385 and MB:training/utils/flop_utils.py.
    """
    hidden = float(model.hidden)
    modules = workload.mtp_depth
    per_module = 3 * hidden + 2 * hidden**2
    for kind in module_layers(model):
        per_module += layer_work(model.kinds[kind], model.hidden, workload.seq_len).macs(counted=True)
    logits = hidden * np.asarray(padded_vocab, dtype=np.float64) * (1 + modules)
    flops: Array = 6 * (decoder_macs(model, workload.seq_len) + modules * per_module + logits)
    return flops


@dataclass(frozen=True, slots=True, eq=False)
class LocalGemm:
    """A matrix multiplication as one rank runs it: `rows` tokens, `inputs` x `outputs` local; all broadcast."""

    gemm: Gemm
    rows: Array
    inputs: Array
    outputs: Array

    @property
    def flops(self) -> Array:
        """Forward FLOP on this rank."""
        out: Array = 2.0 * self.rows * self.inputs * self.outputs
        return out


def rank_tokens(workload: Workload, columns: Columns) -> tuple[Array, Array]:
    """Tokens of a microbatch on a rank: inside a tensor-parallel region, and outside it (cut again by SP)."""
    inside = workload.seq_len * columns.mbs / columns.cp
    return inside, np.where(columns.sp, inside / columns.tp, inside)


def routed_rows(mlp: ExpertMlp, workload: Workload, columns: Columns) -> Array:
    """Token copies that the experts of a rank work on in one microbatch, fullest rank.

    Each rank's tokens go to `topk` experts; a rank of EP x ETP receives as many as it sends when balanced, times the
    skew; token drop caps them at the capacity factor; expert TP gathers the copies of its ranks.
    """
    own = workload.seq_len * columns.mbs / (columns.cp * columns.tp)
    rows: Array = own * mlp.topk * load_factor(workload) * columns.etp
    return rows


def local_gemms(layer: Layer, model: Model, workload: Workload, columns: Columns) -> tuple[LocalGemm, ...]:
    """The matrix multiplications of a layer as a rank runs them in one microbatch.

    Those of "experts" are one grouped multiplication over all local experts: `rows` counts all their token copies.
    """
    inside, outside = rank_tokens(workload, columns)
    found = []
    for gemm in layer_work(layer, model.hidden, workload.seq_len).gemms:
        experts = gemm.part == "experts" and isinstance(layer.mlp, ExpertMlp)
        cut = columns.etp if experts else columns.tp
        rows = outside if gemm.split == "tokens" else inside
        if experts and isinstance(layer.mlp, ExpertMlp):
            rows = routed_rows(layer.mlp, workload, columns)
        inputs = gemm.inputs / cut if gemm.split == "row" else np.asarray(float(gemm.inputs))
        outputs = gemm.outputs / cut if gemm.split == "column" else np.asarray(float(gemm.outputs))
        found.append(LocalGemm(gemm, rows, inputs, outputs))
    return tuple(found)


def forward_flops(layer: Layer, model: Model, workload: Workload, columns: Columns) -> dict[str, Array]:
    """Forward FLOP of one microbatch of one layer on a rank, by part; "scores" is softmax attention itself.

    Context parallelism is balanced (Megatron cuts the sequence in 2 cp chunks), so scores divide by tp and cp.
    """
    parts: dict[str, Array] = {}
    for local in local_gemms(layer, model, workload, columns):
        parts[local.gemm.part] = parts.get(local.gemm.part, np.zeros(())) + local.flops
    work = layer_work(layer, model.hidden, workload.seq_len)
    own = workload.seq_len * columns.mbs / (columns.cp * columns.tp)
    parts["scores"] = 2.0 * work.score_macs * own
    parts["scan"] = 2.0 * work.recurrence_macs * own
    return parts
