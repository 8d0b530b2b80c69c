"""What one pipeline stage holds in training: static terms, and the terms of each moment of a step.

Moments: `forward_backward` (all in-flight activations and one layer's backward pass), `loss` (the last stage between
output layer and cross entropy), `vocabulary_gradients` (the embedding's gradient at the end of a backward pass),
`optimizer_step`, `param_gather`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from advisor.cost.activations import LayerActivations, layer_activations
from advisor.cost.buffers import p2p_bytes, workspace_bytes
from advisor.cost.offload import Away, away, offloads
from advisor.cost.params import padded_vocab, stage_params
from advisor.cost.placeholders import placeholder_bytes
from advisor.cost.router import Loads, module_loads, routed
from advisor.cost.stages import Stage
from advisor.cost.states import States, states
from advisor.cost.tensors import Local, local
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns, CudaGraph, Fold
from advisor.spec.model import Layer, Model
from advisor.spec.workload import Workload

LOSS_BYTES = 6.0
"""bf16 logits and their fp32 copy, which becomes the saved softmax in place; backward again holds both sizes
(ML:megatron/core/tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py: the same for both)."""
SOFTMAX_BYTES = 4.0
"""What a prediction module keeps of its logits. Transformer Engine keeps logits alone, in their own type, and writes
their gradient over them (TE:transformer_engine/pytorch/triton/cross_entropy.py)."""
GATHERED_LOSS_BYTES = 14.0
"""Plain torch cross entropy on gathered logits: bf16 logits, fp32 copy, log-softmax, fp32 gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """Bytes of one stage.

    `graph_inputs` are static inputs of captured graphs; `states` is None when serving; `on_host` are activations in
    host memory.
    """

    rank: Array
    static: dict[str, Array]
    moments: dict[str, dict[str, Array]]
    graph_inputs: Array
    states: States | None
    on_host: Array

    def fold(self, fold: Fold) -> StageMemory:
        """The same stage of a table with some cells laid out as rows."""
        return StageMemory(
            rank=fold(self.rank),
            static={name: fold(term) for name, term in self.static.items()},
            moments={
                moment: {name: fold(term) for name, term in terms.items()} for moment, terms in self.moments.items()
            },
            graph_inputs=fold(self.graph_inputs),
            states=None if self.states is None else self.states.fold(fold),
            on_host=fold(self.on_host),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Activations:
    """Activations of a stage: kept in all, kept after one microbatch is gone, and the largest layer's backward.

    `kept` is what waits on the GPU for its backward pass, `running` that with a layer on its way from or to the host,
    `on_host` what waits there.
    """

    kept: Array
    kept_after_one: Array
    backward: Array
    dispatch: Array
    entries: Array
    running: Array
    on_host: Array


def training_stage(model: Model, cluster: Cluster, workload: Workload, columns: Columns, stage: Stage) -> StageMemory:
    """Terms of pipeline stage `stage` in training."""
    at = local(workload, columns)
    params = stage_params(model, workload, columns, stage)
    state = states(model, cluster, workload, columns, stage, params=params)
    placeholders = placeholder_bytes(model, workload, columns, stage) + workspace_bytes(model, cluster, workload)
    acts = _activations(model, workload, columns, stage, at)
    p2p = p2p_bytes(model, workload, columns)
    # The embedding is no fused linear layer: its gradient is a dense tensor of the parameter's type.
    embedding_grad = at.element * params.embedding
    moments = {
        "forward_backward": {
            "activations": acts.running,
            "working_set": acts.backward + placeholders,
            "dispatch_buffers": acts.dispatch,
            "p2p_buffers": p2p,
            "param_gather": state.gather,
        },
        "loss": {
            "activations": acts.kept,
            "logits": _logits(model, workload, columns, stage, at),
            "working_set": placeholders,
            "p2p_buffers": p2p,
            "param_gather": state.gather,
        },
        "vocabulary_gradients": {
            "activations": acts.kept_after_one,
            "working_set": placeholders + embedding_grad,
            "p2p_buffers": p2p,
            "param_gather": state.gather,
        },
        "optimizer_step": {"optimizer_step": state.step, "working_set": placeholders},
        "param_gather": {"param_gather": state.gather, "working_set": placeholders},
    }
    return StageMemory(
        rank=stage.rank,
        static={"weights": state.weights, "gradients": state.gradients, "optimizer": state.optimizer},
        moments=moments,
        graph_inputs=np.where(columns.cuda_graph == CudaGraph.scoped, acts.entries, 0.0),
        states=state,
        on_host=acts.on_host,
    )


def _logits(model: Model, workload: Workload, columns: Columns, stage: Stage, at: Local) -> Array:
    """Last stage around the loss: final norm, output layer and cross entropy, prediction modules' saved softmax too.

    Either the cross entropy is the peak, or the output layer's backward with the weight-gradient placeholder. The loss
    of prediction modules is computed here wherever they stand (core 0.16.1, models/gpt/gpt_model.py, _postprocess).
    """
    vocab = padded_vocab(model, workload, columns)
    hidden = at.element * model.hidden
    if workload.loss_impl == "gathered":
        return stage.loss * (GATHERED_LOSS_BYTES * vocab * at.tokens + 2 * hidden * at.owned)
    logits = vocab / at.tp * at.tokens
    in_place = workload.loss_impl == "in_place"
    cross_entropy = (at.element if in_place else LOSS_BYTES) * logits
    output_backward = at.element * (logits + vocab / at.tp * model.hidden) + hidden * at.tokens
    around = 2 * hidden * at.owned + np.where(at.sp, hidden * at.tokens, 0.0)
    modules = workload.mtp_depth * (at.element if in_place else SOFTMAX_BYTES) * logits
    return stage.loss * (np.maximum(cross_entropy, output_backward) + around + modules)


def _kept_per_layer(layer: LayerActivations, columns: Columns, checkpointed: Array) -> Array:
    """Bytes that one layer-microbatch keeps: `checkpointed` is the share of layers that keep only their input."""
    uniform = layer.entry / np.maximum(columns.full_uniform, 1)
    selective = checkpointed * layer.entry + (1.0 - checkpointed) * layer.saved
    return np.where(columns.full_uniform > 0, uniform, selective)


def _rebuilt(layer: LayerActivations, columns: Columns, layers: Array) -> Array:
    """Bytes that recomputation brings back while one group of layers runs backward."""
    group = np.where(columns.full_uniform > 0, np.minimum(columns.full_uniform, layers), 1)
    full = (columns.full_uniform > 0) | (columns.full_block > 0)
    return np.where(full, group * layer.full - layer.entry, layer.full - layer.saved)


def _activations(model: Model, workload: Workload, columns: Columns, stage: Stage, at: Local) -> _Activations:
    """Sums over layer kinds; shapes broadcast with the columns."""
    layers: Array = np.zeros(1)
    for count in stage.layers:
        layers = layers + count
    checkpointed = np.minimum(columns.full_block * columns.vpp / np.maximum(layers, 1), 1.0)
    kept = after = backward = dispatch = entries = np.zeros(1)
    per_kind = [layer_activations(kind, model, workload, columns) for kind in model.kinds]
    held, hottest = _loaded(model, workload, columns, per_kind, stage.loads)
    for own, one, count, alive in zip(held, hottest, stage.layers, stage.in_flight, strict=True):
        per_layer = _kept_per_layer(own, columns, checkpointed)
        kept = kept + alive * per_layer
        after = after + np.maximum(alive - count / columns.vpp, 0.0) * per_layer
        entries = entries + alive * one.entry
        present = np.minimum(count, 1)
        backward = np.maximum(backward, present * (_rebuilt(one, columns, layers) + one.transient))
        dispatch = np.maximum(dispatch, present * one.dispatch * (1 + columns.ep_overlap))
    gone = _away(model, columns, stage, held, checkpointed) if offloads(columns) else None
    if workload.mtp_depth:
        router = routed(workload)
        loads = () if router is None else module_loads(router, model, columns)
        inside, _ = _loaded(model, workload, columns, per_kind, loads)
        module = _module_bytes(model, columns, inside, at) * stage.modules * stage.microbatches
        kept = kept + module
    if workload.hidden_dropout:
        kept = kept + stage.embedding * model.hidden * at.owned * np.minimum(columns.pp, columns.num_microbatches)
    if gone is None:
        return _Activations(kept, after, backward, dispatch, entries, kept, np.zeros(1))
    left = kept - gone.host
    return _Activations(left, after - gone.after_one, backward, dispatch, entries, left + gone.moving, gone.host)


def _away(model: Model, columns: Columns, stage: Stage, kinds: list[LayerActivations], checkpointed: Array) -> Away:
    """What of the layers' activations is in host memory: layers recomputed as a whole have no inputs of modules."""
    kept = [_kept_per_layer(one, columns, checkpointed) for one in kinds]
    share = np.where(columns.full_uniform > 0, 0.0, 1.0 - checkpointed)
    return away(model, columns, stage, kept, [share * one.offloaded for one in kinds])


def _loaded(
    model: Model,
    workload: Workload,
    columns: Columns,
    kinds: list[LayerActivations],
    loads: tuple[Loads | None, ...],
) -> tuple[list[LayerActivations], list[LayerActivations]]:
    """Layers of every kind under router statistics: the mean layer of the fullest rank, and the hottest layer.

    `kinds` are those without statistics, which stay where `loads` is empty or says nothing.
    """

    def under(layer: Layer, load: Array) -> LayerActivations:
        return layer_activations(layer, model, replace(workload, router_skew=load), columns)

    if not loads:
        return kinds, kinds
    every = list(zip(model.kinds, kinds, loads, strict=True))
    held = [one if load is None else under(layer, load.held) for layer, one, load in every]
    return held, [one if load is None else under(layer, load.hottest) for layer, one, load in every]


def _module_bytes(model: Model, columns: Columns, per_kind: list[LayerActivations], at: Local) -> Array:
    """One prediction module: its layers, two norms with inputs, their concatenation, a final norm with its output."""
    indices = model.pattern[-1:] if model.mtp is None else model.mtp.layers
    total = 10.0 / 2 * at.element * model.hidden * at.owned
    for index in indices:
        total = total + _kept_per_layer(per_kind[index], columns, np.zeros(1))
    return total
