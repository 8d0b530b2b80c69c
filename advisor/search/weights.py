"""What a decoder layer, the logits and a prediction module weigh when layers are dealt over pipeline ranks.

The unit is forward multiply-adds per token. Only ratios matter: recompute, backward and data parallelism scale every
entry alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.cost.flops import layer_work, module_layers
from advisor.spec.model import Model
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Weights in multiply-adds per token: one per decoder layer, the loss with all logits, all prediction modules."""

    layers: tuple[float, ...]
    loss: float
    modules: float


def stage_weights(model: Model, workload: Workload, depth: int) -> StageWeights:
    """Weights of every part that a pipeline stage may hold; `depth` prediction modules are trained.

    The logits of prediction modules are computed with the loss, wherever the modules are
    (ML:megatron/core/models/gpt/gpt_model.py, _postprocess).
    """
    kinds = [layer_work(layer, model.hidden, workload.seq_len).macs() for layer in model.kinds]
    module = 2.0 * model.hidden**2 + sum(kinds[kind] for kind in module_layers(model))
    logits = float(model.hidden) * model.vocab_size * (1 + depth)
    return StageWeights(tuple(kinds[kind] for kind in model.pattern), logits, depth * module)
