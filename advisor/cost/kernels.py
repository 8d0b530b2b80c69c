"""Seconds of the kernels of one layer for one microbatch on one rank, forward and backward.

Every kernel is timed by the sustained rate of its kind plus the bytes it moves, so that a matrix cut thin by tensor
parallelism is slower per FLOP without a table of shapes: rates of isolated shapes do not carry over to training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from advisor.cost.elementwise import NOTHING, ZERO, Elementwise, Pass, elementwise
from advisor.cost.flops import LocalGemm, layer_work, local_gemms, rank_tokens
from advisor.cost.profile import Profile
from advisor.spec.layout import Array, Columns, CudaGraph
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
from advisor.spec.precision import PRECISIONS, Precision
from advisor.spec.workload import Workload

SCORE_PASSES, TORCH_SCORE_PASSES = (5.0, 6.0), (13.0, 16.0)
"""Passes over the score matrix, forward and backward: products and one softmax kernel, or products, scaling,
mask, cast to fp32, softmax and cast back."""
HOST_FORWARD_SHARE = 0.4
"""Of the host's work for a layer: torch builds the graph in the forward pass, its engine walks it in the backward."""
UNQUANTISED_PARTS = frozenset({"router", "indexer"})


@dataclass(frozen=True, slots=True, eq=False)
class LayerKernels:
    """Kernel seconds of a layer by kind, and the forward seconds that recompute modules would repeat.

    `shared` is the part of `gemm` that a shared expert takes, `between` what runs between dispatch and combine.
    """

    gemm: Pass
    attention: Pass
    experts: Pass
    memory_bound: Pass
    recurrence: Pass
    quantise: Pass
    shared: Pass
    between: Pass
    repeats: dict[str, Array]

    @property
    def forward(self) -> Array:
        """Seconds of all forward kernels."""
        out: Array = sum(
            (getattr(self, name).forward for name in KERNEL_KINDS),
            start=ZERO,
        )
        return out

    @property
    def backward(self) -> Array:
        """Seconds of all backward kernels, without recompute."""
        out: Array = sum((getattr(self, name).backward for name in KERNEL_KINDS), start=ZERO)
        return out

    @property
    def others(self) -> Pass:
        """All kernels but those `between` dispatch and combine."""
        weights: Array = sum((getattr(self, name).weights for name in KERNEL_KINDS), start=ZERO)
        inside = self.between
        return Pass(self.forward - inside.forward, self.backward - inside.backward, weights - inside.weights)


KERNEL_KINDS = ("gemm", "attention", "experts", "memory_bound", "recurrence", "quantise")


def gemm_precision(workload: Workload, part: str) -> Precision:
    """Number format a part's matrices run in: router, indexer and logits stay in bf16 under FP8 and FP4."""
    if workload.precision.quantised and part in UNQUANTISED_PARTS:
        return PRECISIONS["bf16"]
    return workload.precision


def dense_gemm(local: LocalGemm, workload: Workload, profile: Profile) -> Pass:
    """FLOP over the sustained rate; three shapes of one product: forward, input gradient, weight gradient."""
    seconds = local.flops / profile.gemm_flops(gemm_precision(workload, local.gemm.part))
    m, k, n = local.rows, local.inputs, local.outputs
    efficiency = profile.gemm_efficiency
    forward, weights = seconds / efficiency(m, n, k), seconds / efficiency(n, k, m)
    return Pass(forward, seconds / efficiency(m, k, n) + weights, weights)


def _grouped_gemm(local: LocalGemm, experts: Array, workload: Workload, profile: Profile) -> Pass:
    """One product per local expert: slower for few tokens per expert, slowest in the weight gradient."""
    seconds = local.flops / profile.gemm_flops(workload.precision)
    m, k, n = local.rows / experts, local.inputs, local.outputs
    efficiency = profile.grouped_efficiency
    forward, weights = seconds / efficiency("fwd", m, n, k), seconds / efficiency("wgrad", m, n, k)
    return Pass(forward, seconds / efficiency("dgrad", m, k, n) + weights, weights)


def _accumulate(local: LocalGemm, experts: Array, workload: Workload, columns: Columns, profile: Profile) -> Pass:
    """Adding a weight gradient to the main gradient in every microbatch: a read and a write per weight.

    In the epilogue of the product, or as a long stream of its own. The rates of grouped weight gradients are measured
    with the fused addition, so that it costs experts nothing beside them, but for `accumulate_experts_fused` of it.
    """
    fused, routed = workload.grad_accumulation_fused, local.gemm.part == "experts"
    shown = profile.value("accumulate_experts_fused") if fused and routed else 1.0
    if shown == 0:
        return NOTHING
    share = profile.value("accumulate_share_fused" if fused else "accumulate_share")
    rate = (profile.memory_Bps if fused else profile.gpu.hbm_Bps) * share
    seconds = 2.0 * columns.grad_bytes * local.inputs * local.outputs * (experts if routed else 1.0) * shown / rate
    return Pass(ZERO, seconds, seconds)


def _quantise(local: LocalGemm, workload: Workload, profile: Profile) -> Pass:
    """Casting inputs in the forward and output gradients in the backward pass (row- and column-wise copies)."""
    if not workload.precision.quantised or local.gemm.part in UNQUANTISED_PARTS:
        return NOTHING
    per_element = profile.value("quantise_bytes") / profile.memory_Bps
    return Pass(local.rows * local.inputs * per_element, local.rows * local.outputs * per_element)


def _attention(layer: Layer, model: Model, workload: Workload, columns: Columns, profile: Profile) -> Pass:
    """Softmax attention at the rate of its length and head size; a window with sinks saves less than its FLOP do."""
    mixer = layer.mixer
    if mixer is None or isinstance(mixer, Mamba | DeltaNet):
        return NOTHING
    work = layer_work(layer, model.hidden, workload.seq_len)
    macs = work.score_macs
    slowdown = 1.0
    head_dim = _head_dim(mixer)
    if isinstance(mixer, GroupedQueryAttention) and mixer.sinks:
        full = replace(layer, mixer=replace(mixer, window=None))
        macs = layer_work(full, model.hidden, workload.seq_len).score_macs
        slowdown = profile.value("attention_sink_factor")
    own = workload.seq_len * columns.mbs / (columns.cp * columns.tp)
    blocks = mixer.heads / (columns.tp * columns.cp) * columns.mbs
    rate = profile.attention_flops(np.asarray(float(workload.seq_len)), head_dim, blocks)
    seconds = 2.0 * macs * own * slowdown * profile.value("attention_time_factor") / rate
    backward = seconds * profile.value("attention_backward_ratio")
    if workload.attention_impl == "unfused":
        heads = mixer.heads / columns.tp
        scores = workload.seq_len**2 * columns.mbs * heads / columns.cp
        extra = scores * workload.precision.activation_bytes / profile.memory_Bps
        passes = SCORE_PASSES if workload.softmax_fused else TORCH_SCORE_PASSES
        return Pass(seconds + passes[0] * extra, backward + passes[1] * extra)
    return Pass(seconds, backward)


def _head_dim(mixer: GroupedQueryAttention | LatentAttention | CompressedAttention) -> float:
    """Mean of the query-key and the value dimension."""
    if isinstance(mixer, LatentAttention):
        return (mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim) / 2
    if isinstance(mixer, GroupedQueryAttention):
        return (mixer.head_dim + mixer.v_head_dim) / 2
    return float(mixer.head_dim)


def _recurrence(layer: Layer, model: Model, workload: Workload, columns: Columns, profile: Profile) -> Pass:
    """Scan of a state-space or delta-net mixer as a share of the bf16 peak."""
    if not isinstance(layer.mixer, Mamba | DeltaNet):
        return NOTHING
    work = layer_work(layer, model.hidden, workload.seq_len)
    own = workload.seq_len * columns.mbs / (columns.cp * columns.tp)
    rate = profile.recurrence_flops("mamba" if isinstance(layer.mixer, Mamba) else "delta_net")
    seconds = 2.0 * work.recurrence_macs * own / rate
    return Pass(seconds, profile.value("recurrence_backward_ratio") * seconds)


def _seconds(moved: Pass, profile: Profile) -> Pass:
    """Seconds of memory-bound work; a stack without fused kernels moves a multiple of what is counted."""
    rate = profile.memory_Bps / profile.value("unfused_factor")
    return Pass(moved.forward / rate, moved.backward / rate)


def layer_kernels(layer: Layer, model: Model, workload: Workload, columns: Columns, profile: Profile) -> LayerKernels:
    """Kernel seconds of one layer kind for one microbatch on a rank."""
    gemm, experts, quantise, shared = NOTHING, NOTHING, NOTHING, NOTHING
    parts: dict[str, Array] = {}
    gap_s = profile.value("layer_gap_s")
    memory_bound = Pass(np.asarray(gap_s / 3), np.asarray(gap_s * 2 / 3))
    local_experts = np.asarray(1.0)
    if isinstance(layer.mlp, ExpertMlp):
        local_experts = layer.mlp.experts / columns.ep
        per_expert = profile.value("per_expert_s") * local_experts
        experts = Pass(per_expert / 3, per_expert * 2 / 3)
        routing_s = profile.value("expert_layer_gap_s")
        memory_bound = memory_bound + Pass(np.asarray(routing_s / 3), np.asarray(routing_s * 2 / 3))
    for local in local_gemms(layer, model, workload, columns):
        cast = _quantise(local, workload, profile)
        quantise = quantise + cast
        if local.gemm.part == "experts":
            one = _grouped_gemm(local, local_experts, workload, profile)
            experts = experts + one
        else:
            one = dense_gemm(local, workload, profile)
            gemm = gemm + one
            shared = shared + one if local.gemm.part == "shared" else shared
        memory_bound = memory_bound + _accumulate(local, local_experts, workload, columns, profile)
        parts[local.gemm.part] = parts.get(local.gemm.part, ZERO) + one.forward + cast.forward
    moved = elementwise(layer, model, workload, columns)
    attention = _attention(layer, model, workload, columns, profile)
    return LayerKernels(
        gemm=gemm,
        attention=attention,
        experts=experts,
        memory_bound=memory_bound + _seconds(moved.norms + moved.mixer + moved.activation + moved.routing, profile),
        recurrence=_recurrence(layer, model, workload, columns, profile),
        quantise=quantise,
        shared=shared,
        between=experts + _seconds(moved.activation, profile) if isinstance(layer.mlp, ExpertMlp) else NOTHING,
        repeats=_repeats(layer, parts, attention, moved, profile),
    )


def _repeats(
    layer: Layer, parts: dict[str, Array], attention: Pass, moved: Elementwise, profile: Profile
) -> dict[str, Array]:
    """Forward seconds that each recompute module repeats in the backward pass (communication is counted elsewhere)."""
    norm = _seconds(moved.norms, profile).forward / max(layer.norms, 1) * 0.4
    activation = _seconds(moved.activation, profile).forward
    routing = _seconds(moved.routing, profile).forward
    routed = isinstance(layer.mlp, ExpertMlp)
    separate_norms = (1 if routed else 0) + (1 if isinstance(layer.mixer, LatentAttention) else 0)
    mlp_parts = ("experts", "shared", "latent", "router")
    whole_moe = sum((parts.get(part, ZERO) for part in mlp_parts), start=ZERO) + activation + routing
    return {
        "core_attn": attention.forward,
        "moe_act": activation if routed else ZERO,
        "layernorm": norm * separate_norms,
        "mla_up_proj": parts.get("latent_up", ZERO) + _seconds(moved.mixer, profile).forward
        if isinstance(layer.mixer, LatentAttention)
        else ZERO,
        "mlp": parts.get("mlp", ZERO) + activation if isinstance(layer.mlp, DenseMlp) else ZERO,
        "moe": whole_moe if routed else ZERO,
        "shared_experts": parts.get("shared", ZERO),
    }


def host_s(layer: Layer, repeated: Array, columns: Columns, profile: Profile) -> Array:
    """Seconds the host needs to launch one layer's forward and backward, and the forward again where it is `repeated`.

    Graphs of attention, router and preprocessing leave a share of it, a graph of the whole iteration leaves none.
    `repeated` is the share of layers that are recomputed as a whole.
    """
    eager = profile.value("host_moe_layer_s" if isinstance(layer.mlp, ExpertMlp) else "host_dense_layer_s")
    left = np.where(
        columns.cuda_graph == CudaGraph.full_iteration,
        0.0,
        np.where(columns.cuda_graph == CudaGraph.scoped, profile.value("host_scoped_share"), 1.0),
    )
    out: Array = eager * (1.0 + HOST_FORWARD_SHARE * repeated) * left
    return out


def sync_s(layer: Layer, workload: Workload, columns: Columns, profile: Profile) -> Array:
    """Seconds in which the GPU waits because the host must read the token counts of a layer before it goes on.

    Neither with a graph of the whole iteration nor when every expert gets a fixed number of tokens. Experts in FP8
    or FP4 have several more kernels to launch behind it, for casts and padding.
    """
    if not isinstance(layer.mlp, ExpertMlp) or workload.pad_to_capacity:
        return ZERO
    waits = profile.value("host_sync_quantised_s" if workload.precision.quantised else "host_sync_s")
    return np.where(columns.cuda_graph == CudaGraph.full_iteration, 0.0, waits)


def head_kernels(model: Model, workload: Workload, padded_vocab: Array, columns: Columns, profile: Profile) -> Pass:
    """Logits and loss of one microbatch on a rank: bf16 product, fp32 softmax and its gradient in memory passes.

    Fused cross entropy moves about 10 B forward and 6 B backward per logit of 16 bit, unfused 16 and 14 (counted from
    ML:megatron/core/tensor_parallel/cross_entropy.py).
    """
    inside, _ = rank_tokens(workload, columns)
    vocab = padded_vocab / columns.tp
    precision = PRECISIONS["bf16"] if workload.precision.quantised else workload.precision
    seconds = 2.0 * inside * model.hidden * vocab / profile.gemm_flops(precision)
    forward_bytes, backward_bytes = (10.0, 6.0) if workload.cross_entropy_fused else (16.0, 14.0)
    wider = precision.activation_bytes / 2
    logits = inside * vocab * wider * profile.value("unfused_factor") / profile.memory_Bps
    weight = model.hidden * vocab / profile.memory_Bps
    return Pass(
        seconds + (forward_bytes * logits + precision.activation_bytes * weight),
        2 * seconds + backward_bytes * logits + (precision.activation_bytes + 2 * columns.grad_bytes) * weight,
    )
