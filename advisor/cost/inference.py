"""What one pipeline stage holds when it serves or only stores the model: weights, key-value cache, one layer at work.

`workload.batch` requests of `workload.context` tokens each are cached per model replica (data-parallel rank).
"""

from __future__ import annotations

import numpy as np

from advisor.cost.activations import layer_activations
from advisor.cost.buffers import workspace_bytes
from advisor.cost.mixers import local_kv_heads
from advisor.cost.moments import StageMemory
from advisor.cost.params import padded_vocab, stage_params
from advisor.cost.stages import Stage
from advisor.cost.states import stored_weight_bytes
from advisor.cost.tensors import local
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mamba,
    Model,
)
from advisor.spec.workload import Workload


def cache_bytes(layer: Layer, workload: Workload, columns: Columns) -> Array:
    """Bytes that one layer caches for all requests of a replica: keys and values, or the recurrent state."""
    mixer = layer.mixer
    batch = workload.batch or 0
    context = workload.context or workload.seq_len
    element = 4.0 if workload.precision.name == "fp32" else 2.0
    tokens = batch * context / columns.cp
    if isinstance(mixer, GroupedQueryAttention):
        held = tokens if mixer.window is None else np.minimum(tokens, batch * mixer.window)
        width = 0 if mixer.shares_kv else mixer.head_dim + mixer.v_head_dim
        return element * held * local_kv_heads(mixer.kv_heads, columns.tp) * width
    if isinstance(mixer, LatentAttention):
        return element * tokens * (mixer.kv_rank + mixer.qk_rope_dim)
    if isinstance(mixer, CompressedAttention):
        kept = tokens / mixer.ratio if mixer.ratio else 0.0
        return element * (np.minimum(tokens, batch * mixer.window) + kept) * mixer.head_dim
    if isinstance(mixer, Mamba):
        inner = mixer.heads * mixer.head_dim
        return batch * (4.0 * inner * mixer.state + element * inner * mixer.conv) / columns.tp
    if isinstance(mixer, DeltaNet):
        return batch * 4.0 * mixer.value_heads * mixer.key_dim * mixer.value_dim / columns.tp
    return np.zeros(1)


def serving_stage(model: Model, cluster: Cluster, workload: Workload, columns: Columns, stage: Stage) -> StageMemory:
    """Terms of pipeline stage `stage` when serving (one prefill of `seq_len` x mbs tokens at a time) or only stored."""
    params = stage_params(model, workload, columns, stage)
    plain, linear = stored_weight_bytes(workload, cluster)
    vocabulary = params.embedding + params.head
    weights = plain * vocabulary + linear * (params.dense - vocabulary + params.expert)
    terms: dict[str, Array] = {"activations": np.zeros(1)}
    if workload.mode == "inference":
        at = local(workload, columns)
        cache = working = dispatch = np.zeros(1)
        for kind, count in zip(model.kinds, stage.layers, strict=True):
            one = layer_activations(kind, model, workload, columns)
            present = np.minimum(count, 1)
            cache = cache + count * cache_bytes(kind, workload, columns)
            working = np.maximum(working, present * one.full)
            dispatch = np.maximum(dispatch, present * one.dispatch)
        logits = stage.loss * 4.0 * padded_vocab(model, workload, columns) / columns.tp * (workload.batch or 1)
        terms = {
            "activations": cache,
            "working_set": working + at.element * model.hidden * at.owned + workspace_bytes(model, cluster, workload),
            "dispatch_buffers": dispatch,
            "logits": logits,
        }
    return StageMemory(
        rank=stage.rank,
        static={"weights": weights, "gradients": np.zeros(1), "optimizer": np.zeros(1)},
        moments={"serving": terms},
        graph_inputs=np.zeros(1),
        states=None,
        on_host=np.zeros(1),
    )
