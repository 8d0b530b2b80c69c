"""Bytes that one decoder layer keeps for its backward pass, tensor by tensor, and what recomputation drops of them.

Every saved tensor is listed once with the recompute modules that drop it; a layer's saved bytes are the sum over the
tensors that no active module drops. Which tensors are saved follows the autograd functions of Transformer Engine and
Megatron-Core: a linear layer keeps its input (quantised under fp8), a norm its input, attention q, k, v, its output
and the log-sum-exp, SwiGLU the fc1 output, a grouped linear its permuted input (TE:transformer_engine/pytorch/module/
layernorm_linear.py, ML:megatron/core/fusions/fused_bias_swiglu.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from advisor.cost.mixers import mixer_tensors, mixer_transient
from advisor.cost.router import load_factor
from advisor.cost.tensors import AWAY, Local, Tensors, add, local
from advisor.spec.layout import OFFLOAD_MODULES, Array, Columns, CudaGraph, Dispatcher
from advisor.spec.model import DenseMlp, ExpertMlp, Layer, Model
from advisor.spec.workload import Workload

ROUTER_BYTES = 13.0
"""Per token and expert: fp32 logits and probabilities, the int32 top-k map and the boolean routing map."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerActivations:
    """Bytes of one layer and one microbatch; all arrays broadcast with the columns.

    `saved` is what selective recomputation leaves, `full` without any recomputation, `entry` the layer input alone
    (what full recomputation keeps), `transient` what its backward pass allocates on top of the saved tensors
    and `dispatch` the token buffers of the dispatcher at that time. `offloaded` of the `saved` bytes are inputs of the
    modules that `offload_modules` names, a single zero in a table without any.
    """

    saved: Array
    full: Array
    entry: Array
    transient: Array
    dispatch: Array
    offloaded: Array


def dense_tensors(mlp: DenseMlp, model: Model, at: Local) -> Tensors:
    """Saved tensors of a dense feed-forward part; its norm is fused into fc1, so `mlp` recomputation drops both."""
    out: Tensors = {}
    width = mlp.ffn / at.tp * at.tokens
    add(out, (), at.element * model.hidden * model.hyper_connections * at.owned)
    add(out, ("mlp",), at.linear_input * model.hidden * at.owned)
    add(out, ("mlp",), at.element * (2 if mlp.gated else 1) * width)
    add(out, ("mlp",), at.linear_input * width)
    return out


def expert_rows(mlp: ExpertMlp, workload: Workload, at: Local) -> Array:
    """Token copies that the fullest rank's experts process, for tensor-parallel experts per full row.

    Tokens are split over the tensor ranks before dispatch (Megatron requires sequence parallelism with experts); each
    of the `etp` ranks that share an expert holds the rows of all of them.
    """
    return at.owned * mlp.topk * at.etp * load_factor(workload)


def expert_tensors(mlp: ExpertMlp, model: Model, workload: Workload, at: Local) -> Tensors:
    """Saved tensors of a mixture-of-experts part; the norm before it is a module of its own."""
    out: Tensors = {}
    rows = expert_rows(mlp, workload, at)
    fc1 = 2 if mlp.gated else 1
    add(out, at.goes("mlp_norm"), at.element * model.hidden * model.hyper_connections * at.owned)
    add(out, ("layernorm",), at.element * model.hidden * at.owned)
    add(out, ("moe",), ROUTER_BYTES * mlp.experts * at.owned)
    if mlp.latent is not None:
        add(out, ("moe",), at.element * 2 * mlp.latent * at.owned)
    permuted = rows * (at.linear_input * (mlp.latent or model.hidden) + 4)
    add(out, ("moe", *at.goes("expert_fc1")), permuted)
    add(out, ("moe", *at.goes("moe_act")), rows * at.element * fc1 * mlp.ffn / at.etp)
    add(out, ("moe", "moe_act"), rows * at.linear_input * mlp.ffn / at.etp)
    if not workload.expert_activation_fused:
        # Weighting by the routing probability keeps the activation output; a gated one its factor as well.
        add(out, ("moe", "moe_act"), rows * at.element * fc1 * mlp.ffn / at.etp)
    if mlp.shared_ffn:
        width = mlp.shared_ffn / at.tp * at.tokens
        add(out, ("moe", "shared_experts"), width * (at.element * fc1 + at.linear_input))
        if at.quantised:
            add(out, ("moe", "shared_experts"), at.linear_input * model.hidden * at.owned)
    return out


def dense_transient(ffn: float, gated: bool, hidden: int, at: Local, fused_wgrad: bool) -> Array:
    """Peak extra bytes in the backward pass of fc2, activation and fc1.

    At the activation's backward the incoming gradient and the fc1 output gradient exist beside everything saved; at
    fc1's backward the activation output is gone and the full-sequence input and its gradient exist.
    """
    fc1 = (2 if gated else 1) * ffn / at.tp
    wgrad = 0.0 if fused_wgrad else at.element * fc1 * hidden
    incoming = at.element * hidden * at.owned
    at_activation = incoming + at.element * fc1 * at.tokens
    gathered = np.where(at.sp, at.linear_input, 0) * hidden * at.tokens
    at_fc1 = incoming + gathered + at.element * hidden * at.tokens - at.linear_input * ffn / at.tp * at.tokens + wgrad
    peak: Array = np.maximum(at_activation, at_fc1)
    return peak


def dispatch_bytes(mlp: ExpertMlp, model: Model, workload: Workload, columns: Columns, at: Local) -> Array:
    """Token buffers alive at the fullest moment of one layer's dispatch or combine, in bytes.

    all-to-all: the permuted copy and the exchanged copy; all-gather: every rank's tokens, once gathered and once as
    gradient to scatter (ML:megatron/core/transformer/moe/token_dispatcher.py); DeepEP: one received copy per distinct
    rank that a token goes to; HybridEP receives into registered buffers outside of torch (see `ep_buffer_bytes`).
    """
    width = at.element * (mlp.latent or model.hidden)
    rows = expert_rows(mlp, workload, at)
    ranks = columns.ep * at.etp
    distinct = ranks * (1 - (1 - 1 / ranks) ** mlp.topk)
    everybody = at.owned * ranks * (2 * width + 8 * mlp.experts)
    received = np.where(columns.dispatcher == Dispatcher.deepep, at.owned * distinct * width, 0.0)
    exchanged = np.where(ranks > 1, 2 * rows, rows) * width
    flex = columns.dispatcher >= Dispatcher.deepep
    return np.where(columns.dispatcher == Dispatcher.allgather, everybody, np.where(flex, received, exchanged))


def _mlp(layer: Layer, model: Model, workload: Workload, columns: Columns, at: Local) -> tuple[Tensors, Array, Array]:
    zero = np.zeros_like(at.owned)
    if isinstance(layer.mlp, DenseMlp):
        transient = dense_transient(layer.mlp.ffn, layer.mlp.gated, model.hidden, at, workload.grad_accumulation_fused)
        return dense_tensors(layer.mlp, model, at), transient, zero
    if isinstance(layer.mlp, ExpertMlp):
        mlp = layer.mlp
        dispatch = dispatch_bytes(mlp, model, workload, columns, at)
        fc1 = at.element * (2 if mlp.gated else 1) * mlp.ffn / at.etp
        transient = expert_rows(mlp, workload, at) * fc1 + at.element * model.hidden * at.owned
        return expert_tensors(mlp, model, workload, at), transient, dispatch
    return {}, zero, zero


def _total(tensors: Tensors, keep: Callable[[tuple[str, ...]], Array | float], zero: Array) -> Array:
    total = zero
    for modules, size in tensors.items():
        total = total + size * keep(modules)
    return total


def layer_activations(layer: Layer, model: Model, workload: Workload, columns: Columns) -> LayerActivations:
    """Activation bytes of one layer of this kind for one microbatch on one rank."""
    at = local(workload, columns)
    zero = np.zeros_like(at.owned)
    tensors, mlp_transient, dispatch = _mlp(layer, model, workload, columns, at)
    mixer = mixer_tensors(layer, model, workload, columns, at)
    for modules, size in mixer.items():
        add(tensors, modules, size)
    if workload.norm_impl == "unfused":
        # A norm in plain torch keeps its input in fp32 and the normalised fp32 value beside what the fused one keeps.
        add(tensors, (), 8.0 * model.hidden * layer.norms * at.owned)
    if workload.hidden_dropout:
        add(tensors, (), float(model.hidden) * ((layer.mixer is not None) + (layer.mlp is not None)) * at.owned)

    def keep(modules: tuple[str, ...]) -> Array | float:
        dropped: Array | bool = False
        for module in modules:
            dropped = dropped | (False if module.startswith(AWAY) else getattr(columns, f"rc_{module}"))
        return 1.0 - np.asarray(dropped, dtype=np.float64)

    full = _total(tensors, lambda _: 1.0, zero)
    mixer_part = _total(mixer, lambda _: 1.0, zero)
    # While the mixer runs backward, what the feed-forward part had saved is already free.
    behind = mixer_transient(layer, model, columns, at) - (full - mixer_part)
    return LayerActivations(
        saved=_total(tensors, keep, zero),
        full=full,
        entry=at.element * model.hidden * model.hyper_connections * at.owned,
        transient=np.maximum(np.maximum(mlp_transient, behind), 0.0),
        dispatch=dispatch,
        offloaded=_total(_marked(tensors), lambda modules: keep(modules) * _goes(modules, columns), np.zeros(1)),
    )


def _marked(tensors: Tensors) -> Tensors:
    return {modules: size for modules, size in tensors.items() if modules and modules[-1].startswith(AWAY)}


def _goes(modules: tuple[str, ...], columns: Columns) -> Array:
    """1 where the module that a tensor is marked with is offloaded, else 0: norms in a scoped CUDA graph stay.

    Source: ML:megatron/core/transformer/transformer_layer.py, _set_offload_modules (megatron-core 0.19.2).
    """
    module = modules[-1].removeprefix(AWAY)
    stays = (columns.cuda_graph == CudaGraph.scoped) & module.endswith("_norm")
    return (columns.offload_modules >> OFFLOAD_MODULES.index(module)) & np.where(stays, 0, 1)
