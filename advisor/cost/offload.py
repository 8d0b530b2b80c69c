"""Activations that wait in host memory for their backward pass: which ones, how many bytes, and which copies show.

Two ways, never both. By layers (`offload_layers`): the first k of L layers of the decoder hand over all that they keep;
layer i must have left before layer L - k + i runs, so that L - k layers are resident at any time
(TE:transformer_engine/pytorch/cpu_offload.py, DefaultOffloadSynchronizer; before 2.10 one more while a layer runs).
By modules (`offload_modules`): every layer but the last hands over the inputs of some modules, and gets them back a
layer ahead (ML:megatron/core/pipeline_parallel/fine_grained_activation_offload.py, megatron-core 0.19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.cost.activations import layer_activations
from advisor.cost.arrays import add_up, largest
from advisor.cost.hiding import Exchange
from advisor.cost.recompute import whole_layers
from advisor.cost.setting import Setting
from advisor.cost.stages import Stage
from advisor.spec.layout import Array, Columns
from advisor.spec.model import Model


@dataclass(frozen=True, slots=True, eq=False)
class Away:
    """Bytes of a stage that are in host memory while the loss is computed, and those of one layer on their way.

    `after_one` is what is still there once a microbatch has run backward.
    """

    host: Array
    after_one: Array
    moving: Array


def offloads(columns: Columns) -> bool:
    """Whether any entry of the table keeps activations in host memory."""
    return bool(np.any(columns.offload_layers) or np.any(columns.offload_modules))


def first_layers(model: Model, columns: Columns) -> tuple[Array, ...]:
    """Of the first `offload_layers` layers, how many are of each kind.

    Hybrid stacks enter no offload context of Transformer Engine (ML:megatron/core/models/hybrid), so theirs stay.
    """
    layers = np.asarray(model.pattern)
    within = np.arange(model.num_layers + 1)[:, None] > np.arange(model.num_layers)
    wanted = np.where(model.is_hybrid, 0, np.minimum(columns.offload_layers, model.num_layers))
    return tuple((within & (layers == kind)).sum(axis=1)[wanted] for kind in range(len(model.kinds)))


def away(model: Model, columns: Columns, stage: Stage, kept: Sequence[Array], inputs: Sequence[Array]) -> Away:
    """What a stage has in host memory.

    A layer-microbatch of every kind keeps `kept` bytes for its backward pass, of which `inputs` are those of offloaded
    modules. Layers go without a pipeline only, so those of one microbatch are there at a time.
    """
    gone = [
        np.where(columns.pp == 1, np.minimum(first, alive), 0.0)
        for first, alive in zip(first_layers(model, columns), stage.in_flight, strict=True)
    ]
    rows = list(zip(stage.layers, stage.in_flight, gone, kept, inputs, strict=True))
    last = largest([np.minimum(count, 1) * own for count, _, _, _, own in rows])
    after = [np.maximum(alive - count / columns.vpp, 0.0) * own for count, alive, _, _, own in rows]
    by_modules = np.maximum(add_up([(alive - first) * own for _, alive, first, _, own in rows]) - last, 0.0)
    host = add_up([by_modules, *(first * own for _, _, first, own, _ in rows)])
    one_layer = largest([np.minimum(first, 1) * own for _, _, first, own, _ in rows])
    return Away(
        host=host,
        after_one=np.maximum(add_up(after) - last, 0.0),
        moving=np.minimum(one_layer + last, host),
    )


def offload_exchange(stage: Stage, forward: Sequence[Array], both: Sequence[Array], setting: Setting) -> Exchange:
    """Copies of one microbatch to the host in the forward pass and back in the backward pass, on streams of their own.

    `forward` and `both` are the seconds of one layer of every kind without copies. A copy hides under the layers that
    run between the one that is done with it and the one that waits for it: all but the first and the last of the pass;
    none where one layer alone stays resident, which Transformer Engine warns of.
    """
    model, columns = setting.model, setting.columns
    kinds = [layer_activations(kind, model, setting.workload, columns) for kind in model.kinds]
    gone = first_layers(model, columns)
    share = 1.0 - whole_layers(model, columns)
    n_bytes = add_up([
        *(np.where(columns.pp == 1, count, 0) * one.saved for count, one in zip(gone, kinds, strict=True)),
        *(count * share * one.offloaded for count, one in zip(stage.layers, kinds, strict=True)),
    ])  # fmt: skip
    one_way = n_bytes / (setting.cluster.gpu.host_Bps * setting.profile.value("host_copy_share"))
    layers = add_up([np.asarray(count, dtype=np.float64) for count in stage.layers])
    ends = np.where(columns.offload_layers > 0, 2.0, 1.0)
    window = np.maximum(layers - ends, 0.0) / np.maximum(layers, 1.0)
    window = np.where(columns.offload_layers == model.num_layers - 1, 0.0, window)
    forward_s = add_up([count * one for count, one in zip(stage.layers, forward, strict=True)])
    backward_s = add_up([count * one for count, one in zip(stage.layers, both, strict=True)]) - forward_s
    exposed = np.maximum(one_way - window * forward_s, 0.0) + np.maximum(one_way - window * backward_s, 0.0)
    return Exchange(one_way, one_way, exposed)
