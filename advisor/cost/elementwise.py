"""Bytes of memory-bound work of a layer: norms, residuals, rotary embedding, activation, routing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from advisor.cost.flops import rank_tokens, routed_rows
from advisor.spec.layout import Array, Columns, Dispatcher
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mamba,
    Model,
)
from advisor.spec.workload import Workload

ZERO = np.zeros(())


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Seconds or bytes of the forward and of the backward pass; arrays that broadcast with the columns.

    `weights` is the part of the backward pass that makes weight gradients, which nothing but the optimizer waits for.
    """

    forward: Array
    backward: Array
    weights: Array = field(default_factory=lambda: ZERO)

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward, self.weights + other.weights)

    @property
    def both(self) -> Array:
        """Forward and backward together."""
        out: Array = self.forward + self.backward
        return out


NOTHING = Pass(ZERO, ZERO)


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise:
    """Bytes of memory-bound work of a layer per microbatch on a rank."""

    norms: Pass
    mixer: Pass
    activation: Pass
    routing: Pass


def _norms(layer: Layer, model: Model, workload: Workload, columns: Columns) -> Pass:
    """A norm reads and writes its input, the residual add reads two and writes one; the backward does as much again.

    A norm of separate torch operations (cast, square, mean, two products, cast) writes and reads its intermediates in
    fp32: 32 B per element forward and, by its autograd formulae, about 72 B backward.
    """
    _, outside = rank_tokens(workload, columns)
    width = workload.precision.activation_bytes * model.hidden * outside * model.hyper_connections
    forward, backward = (2.0, 2.0) if workload.norm_impl == "fused" else (16.0, 36.0)
    blocks = layer.norms
    return Pass(blocks * (forward + 3) * width, blocks * (backward + 4) * width)


def _mixer_bytes(layer: Layer, workload: Workload, columns: Columns) -> Pass:
    """Rotary embedding and head norms over queries and keys; convolution, gate and norm of a recurrence."""
    inside, _ = rank_tokens(workload, columns)
    mixer = layer.mixer
    local = workload.precision.activation_bytes * inside / columns.tp
    if isinstance(mixer, GroupedQueryAttention):
        width = float(mixer.heads * mixer.head_dim + mixer.kv_heads * mixer.head_dim)
        passes = 2.0 if mixer.qk_norm == "none" else 4.0
        return Pass(passes * width * local, 1.25 * passes * width * local)
    if isinstance(mixer, LatentAttention):
        heads = mixer.heads * (2 * (mixer.qk_nope_dim + mixer.qk_rope_dim) + mixer.v_head_dim)
        return Pass(2.0 * heads * local, 2.5 * heads * local)
    if isinstance(mixer, CompressedAttention):
        return Pass(4.0 * mixer.heads * mixer.head_dim * local, 5.0 * mixer.heads * mixer.head_dim * local)
    if isinstance(mixer, Mamba):
        inner = mixer.heads * mixer.head_dim
        width = 4.0 * inner + 4.0 * mixer.groups * mixer.state
        return Pass(2 * width * local, 3 * width * local)
    if isinstance(mixer, DeltaNet):
        width = 4.0 * mixer.key_heads * mixer.key_dim + 4.0 * mixer.value_heads * mixer.value_dim
        return Pass(2 * width * local, 3 * width * local)
    return NOTHING


def _activation_bytes(layer: Layer, model: Model, workload: Workload, columns: Columns) -> Pass:
    """Gated units read two and write one; backward reads three and writes two (one of each without a gate).

    Biases of experts are added outside the product (both matrices, read and write) and summed up in the backward pass.
    """
    inside, _ = rank_tokens(workload, columns)
    mlp = layer.mlp
    if mlp is None:
        return NOTHING
    forward, backward = (3.0, 5.0) if mlp.gated else (2.0, 3.0)
    local = workload.precision.activation_bytes * inside / columns.tp
    if isinstance(mlp, DenseMlp):
        return Pass(forward * mlp.ffn * local, backward * mlp.ffn * local)
    rows = workload.precision.activation_bytes * routed_rows(mlp, workload, columns)
    added = (2.0 * mlp.ffn / columns.etp + (mlp.latent or model.hidden)) * rows * mlp.bias
    width = mlp.ffn / columns.etp * rows + mlp.shared_ffn * local
    return Pass(forward * width + 2.0 * added, backward * width + added)


def _routing_bytes(layer: Layer, model: Model, workload: Workload, columns: Columns) -> Pass:
    """Bytes of bringing token copies into the order of experts and back, and of router scores in fp32.

    all-to-all: one read and topk copies written, the reverse after the combine, and a sort by expert of what arrives
    where a rank holds several. Flex dispatchers send distinct tokens and copy on arrival; HybridEP does it on the way
    (ML:megatron/core/transformer/moe/token_dispatcher.py).
    """
    if not isinstance(layer.mlp, ExpertMlp):
        return NOTHING
    _, outside = rank_tokens(workload, columns)
    own = workload.seq_len * columns.mbs / (columns.cp * columns.tp)
    width = workload.precision.activation_bytes * (layer.mlp.latent or model.hidden)
    received = routed_rows(layer.mlp, workload, columns) * width
    permute = 2 * (layer.mlp.topk + 1) * own * width
    resort = np.where((columns.ep > 1) & (columns.ep < layer.mlp.experts), 4.0, 0.0) * received
    plain = columns.dispatcher <= Dispatcher.alltoall
    passes = np.where(columns.dispatcher == Dispatcher.hybridep, 2.0, 3.3)
    moved = np.where(plain, permute + resort, passes * received) + 13.0 * layer.mlp.experts * outside
    return Pass(moved, moved)


def elementwise(layer: Layer, model: Model, workload: Workload, columns: Columns) -> Elementwise:
    """Bytes of memory-bound work by what does it."""
    return Elementwise(
        _norms(layer, model, workload, columns),
        _mixer_bytes(layer, workload, columns),
        _activation_bytes(layer, model, workload, columns),
        _routing_bytes(layer, model, workload, columns),
    )
