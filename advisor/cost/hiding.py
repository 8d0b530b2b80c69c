"""Which traffic shows in a step and which hides behind compute, per parallelism.

Each function gives the serial seconds of its transfers and the share of them that shows. Volumes: the traffic section
of the design notes on Megatron-Core (ML:megatron/core/tensor_parallel/layers.py:666-712, .../moe/token_dispatcher.py,
TE:.../attention/dot_product_attention/context_parallel.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.cost import comm
from advisor.cost.elementwise import ZERO, Pass
from advisor.cost.flops import rank_tokens
from advisor.cost.kernels import LayerKernels
from advisor.cost.params import LayerParams, StageParams, layer_params
from advisor.cost.queues import queues
from advisor.cost.setting import Setting
from advisor.spec.layout import Array, CpComm, Fsdp
from advisor.spec.model import DeltaNet, DenseMlp, ExpertMlp, GroupedQueryAttention, LatentAttention, Layer, Mamba
from advisor.units import gbs_to_bps

HOST_ADAM_BYTES = 28.0
"""Adam in fp32 on the host: gradient, weight and two moments read, weight and two moments written."""
PARALLELISMS = ("tp", "cp", "pp", "dp", "ep")


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Serial seconds of transfers in the forward and the backward pass, and the seconds of both that show."""

    forward: Array
    backward: Array
    exposed: Array

    @property
    def hidden(self) -> Array:
        """Seconds that run beside compute; none where a coefficient shows more than the serial time."""
        out: Array = np.maximum(self.forward + self.backward - self.exposed, 0.0)
        return out

    @property
    def forward_exposed(self) -> Array:
        """Share of the exposed seconds that belongs to the forward pass: what recompute of the layer repeats."""
        both = self.forward + self.backward
        out: Array = self.exposed * self.forward / np.maximum(both, 1e-30)
        return out


def _shares(share: Array | float, forward: Array, backward: Array) -> Exchange:
    return Exchange(forward, backward, np.minimum(share, 1.0) * (forward + backward))


def _buffered(setting: Setting) -> Array:
    """Whether layers use user buffers: the first layer of latent attention that is built takes them from all others.

    Its buffers have names that Transformer Engine does not know, and megatron-core answers by switching the overlap off
    in the configuration that all layers share (ML:megatron/core/extensions/transformer_engine.py, TELinear).
    """
    return setting.columns.tp_overlap & (not setting.model.has_mla)


def _tp_share(setting: Setting) -> Array:
    """With user buffers a share; without, two of the five transfers of a region run beside gradients, if at all.

    These two, which user buffers move in bulk beside the same products, show where nothing keeps their order.
    """
    value = setting.profile.value
    plain = value("tp_exposed") if setting.workload.tp_async else 1.0
    share = np.where(_buffered(setting), value("tp_exposed_overlap"), plain)
    found = queues(setting)
    return share if found is None else np.where(found.unordered, share + 1 - value("tp_exposed"), share)


def _region(setting: Setting, width_in: float, width_out: float) -> tuple[Array, Array]:
    """Seconds of one tensor-parallel region, forward and backward.

    With SP: gather the input and scatter the output; backward one scatter and two gathers (the input is gathered again
    for the weight gradient). Without SP: one all-reduce each way. A collective starts when its last rank arrives, which
    benchmarks of collectives alone do not show; pipelined user buffers wait for a neighbour at a time.
    """
    inside, _ = rank_tokens(setting.workload, setting.columns)
    into, out = setting.element_bytes * inside * width_in, setting.element_bytes * inside * width_out
    span, sp = setting.spans.tp, setting.columns.sp
    gather_in = comm.all_gather(setting.profile, setting.cluster, into, span)
    gather_out = comm.all_gather(setting.profile, setting.cluster, out, span)
    scatter_in = comm.reduce_scatter(setting.profile, setting.cluster, into, span)
    scatter_out = comm.reduce_scatter(setting.profile, setting.cluster, out, span)
    reduce_in = comm.all_reduce(setting.profile, setting.cluster, into, span)
    reduce_out = comm.all_reduce(setting.profile, setting.cluster, out, span)
    others = np.where(_buffered(setting), 0, span.ranks - 1)
    wait = setting.profile.value("collective_wait_s") * others
    forward = np.where(sp, gather_in + scatter_out + 2 * wait, reduce_out + wait)
    backward = np.where(sp, scatter_in + gather_out + gather_in + 3 * wait, reduce_in + wait)
    return forward, backward


def tp_exchange(layer: Layer, setting: Setting) -> Exchange:
    """Tensor-parallel traffic of a layer: one region for the mixer, one for the dense or shared feed-forward part."""
    hidden = float(setting.model.hidden)
    forward, backward = ZERO, ZERO
    mixer = layer.mixer
    if mixer is not None:
        width = hidden
        if isinstance(mixer, LatentAttention):
            width = float((mixer.q_rank or hidden) + mixer.kv_rank + mixer.qk_rope_dim)
        forward, backward = _region(setting, width, hidden)
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp) or (isinstance(mlp, ExpertMlp) and mlp.shared_ffn):
        more = _region(setting, hidden, hidden)
        forward, backward = forward + more[0], backward + more[1]
    return _shares(_tp_share(setting), forward, backward)


def cp_exchange(layer: Layer, setting: Setting, kernels: LayerKernels) -> Exchange:
    """Context-parallel traffic of a mixer: ring of keys and values, blocking gather, or all-to-all of heads."""
    mixer, columns, profile, cluster = layer.mixer, setting.columns, setting.profile, setting.cluster
    if mixer is None:
        return Exchange(ZERO, ZERO, ZERO)
    inside, _ = rank_tokens(setting.workload, columns)
    queries, keys = _cp_widths(layer, setting)
    kv = setting.element_bytes * inside * keys / columns.tp
    span = setting.spans.cp
    hop = comm.send_recv(profile, cluster, kv, span)
    ring = (columns.cp - 1) * hop
    gather = comm.all_gather(profile, cluster, kv * columns.cp, span)
    scatter = comm.reduce_scatter(profile, cluster, kv * columns.cp, span)
    heads = setting.element_bytes * inside * (2 * queries + keys) / columns.tp
    swap = comm.all_to_all(profile, cluster, heads, span)
    swaps = (columns.cp_comm == CpComm.a2a) | isinstance(mixer, Mamba | DeltaNet)
    forward = np.where(swaps, swap, np.where(columns.cp_comm == CpComm.all_gather, gather, ring))
    backward = np.where(swaps, swap, np.where(columns.cp_comm == CpComm.all_gather, gather + scatter, 2 * ring))
    forward = np.where(columns.cp > 1, forward, 0.0)
    backward = np.where(columns.cp > 1, backward, 0.0)
    both = forward + backward
    blocking = swaps | (columns.cp_comm == CpComm.all_gather)
    under_chunks = np.maximum(profile.value("cp_exposed") * both, both - kernels.attention.both)
    exposed = np.where(blocking, profile.value("cp_exposed_blocking") * both, under_chunks)
    found = queues(setting)
    return Exchange(forward, backward, exposed if found is None else np.where(found.unordered, both, exposed))


def _cp_widths(layer: Layer, setting: Setting) -> tuple[float, float]:
    """Elements per token that leave a rank: queries (or outputs), and keys with values."""
    mixer = layer.mixer
    if isinstance(mixer, GroupedQueryAttention):
        return float(mixer.heads * mixer.head_dim), float(mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim))
    if isinstance(mixer, LatentAttention):
        per_head = mixer.qk_nope_dim + mixer.qk_rope_dim
        return float(mixer.heads * per_head), float(mixer.heads * (per_head + mixer.v_head_dim))
    if isinstance(mixer, Mamba):
        return float(mixer.heads * mixer.head_dim), float(2 * mixer.groups * mixer.state)
    if isinstance(mixer, DeltaNet):
        return float(mixer.value_heads * mixer.value_dim), float(2 * mixer.key_heads * mixer.key_dim)
    return float(setting.model.hidden), float(setting.model.hidden)


def ep_exchange(layer: Layer, setting: Setting, kernels: LayerKernels) -> Exchange:
    """Dispatch and combine of an expert layer, twice each; expert TP gathers and scatters the copies as well.

    Overlap of neighbouring microbatches hides what the schedule of both lets run beside each other, but for a share;
    overlap with the shared expert hides as much as that takes.
    """
    if not isinstance(layer.mlp, ExpertMlp):
        return Exchange(ZERO, ZERO, ZERO)
    columns, profile, cluster = setting.columns, setting.profile, setting.cluster
    one = comm.expert_exchange(profile, cluster, setting.model, setting.workload, columns, layer.mlp, setting.spans)
    copies = setting.element_bytes * _routed_bytes(layer.mlp, setting)
    gather = comm.all_gather(profile, cluster, copies, setting.spans.etp)
    scatter = comm.reduce_scatter(profile, cluster, copies, setting.spans.etp)
    tokens = 2 * one + gather + scatter
    shares, counts = comm.expert_messages(profile, cluster, setting.workload, columns, layer.mlp, setting.spans)
    forward, backward = tokens + shares + counts, tokens + shares
    both = forward + backward
    across = setting.spans.ep.domains > 1
    share = np.where(across, profile.value("ep_exposed_overlap_network"), profile.value("ep_exposed_overlap"))
    beside = beside_neighbour_s(tokens / 2, kernels.between, kernels.others, columns.delay_wgrad)
    overlapped = beside + share * np.maximum(both - beside, 0.0)
    shared = profile.value("ep_shared_expert_hidden") * kernels.shared.both
    beside_shared = np.maximum(both - shared, 0.0)
    plain = profile.value("ep_exposed") * np.where(columns.shared_expert_overlap, beside_shared, both)
    found = queues(setting)
    overlapped = overlapped if found is None else both - found.ep_kept * (both - overlapped)
    return Exchange(forward, backward, np.where(columns.ep_overlap, overlapped, plain))


def beside_neighbour_s(transfer: Array, experts: Pass, others: Pass, delayed: Array) -> Array:
    """Seconds that stick out of a layer whose four transfers run beside the layers of a neighbouring microbatch.

    Transfers in their order: combine backward, dispatch forward, dispatch backward, combine forward. Beside them:
    attention forward, experts backward, experts forward, attention backward, where attention stands for all `others`
    of the layer. Each pair waits for the one before. Weight gradients put off (`delayed`) run under the transfer that
    comes next (ML:megatron/core/models/common/model_chunk_schedule_plan.py:190-254).
    """
    longer = np.maximum
    plain = longer(transfer, others.forward) + longer(transfer, experts.backward)
    plain = plain + longer(transfer, experts.forward) + longer(transfer, others.backward)

    def put_off(work: Pass, forward: Array) -> Array:
        waited_for = longer(transfer, work.backward - work.weights) + transfer
        period: Array = longer(waited_for, longer(transfer, work.backward) + forward)
        return period

    late = put_off(experts, experts.forward) + put_off(others, others.forward)
    out: Array = longer(np.where(delayed, late, plain) - experts.both - others.both, 0.0)
    return out


def _routed_bytes(mlp: ExpertMlp, setting: Setting) -> Array:
    """Elements of all token copies that the ranks of an expert-TP group hold together."""
    own = setting.workload.seq_len * setting.columns.mbs / (setting.columns.cp * setting.columns.tp)
    width = float(mlp.latent or setting.model.hidden)
    out: Array = own * mlp.topk * width * setting.columns.etp
    return out


def fsdp_exchange(layer: LayerParams, setting: Setting) -> Exchange:
    """Parameter gathers before forward and backward and the gradient scatter of every microbatch (ZeRO-3).

    ZeRO-2 scatters gradients in every microbatch and gathers once per step; see `step_tail` for ZeRO-1.
    """
    columns, profile, cluster = setting.columns, setting.profile, setting.cluster
    element = setting.workload.precision.gather_bytes
    gather = comm.all_gather(profile, cluster, element * layer.dense, setting.spans.dp_cp)
    gather = gather + comm.all_gather(profile, cluster, element * layer.expert, setting.spans.edp)
    scatter = comm.reduce_scatter(profile, cluster, columns.grad_bytes * layer.dense, setting.spans.dp_cp)
    scatter = scatter + comm.reduce_scatter(profile, cluster, columns.grad_bytes * layer.expert, setting.spans.edp)
    whole = columns.fsdp == Fsdp.optim_grads_params
    forward = np.where(whole, gather, 0.0)
    backward = np.where(whole, gather + scatter, np.where(columns.fsdp == Fsdp.optim_grads, scatter, 0.0))
    return _shares(profile.value("fsdp_exposed"), forward, backward)


def layer_traffic(layer: Layer, setting: Setting, kernels: LayerKernels) -> dict[str, Exchange]:
    """Traffic of one microbatch of a layer on a rank, by parallelism."""
    return {
        "tp": tp_exchange(layer, setting),
        "cp": cp_exchange(layer, setting, kernels),
        "ep": ep_exchange(layer, setting, kernels),
        "dp": fsdp_exchange(layer_params(layer, setting.model, setting.columns), setting),
    }


def head_traffic(setting: Setting) -> dict[str, Exchange]:
    """Tensor-parallel traffic of logits and loss: gather of the hidden state, its gradient, and the softmax sums."""
    inside, _ = rank_tokens(setting.workload, setting.columns)
    n_bytes = setting.element_bytes * inside * setting.model.hidden
    span = setting.spans.tp
    gather = comm.all_gather(setting.profile, setting.cluster, n_bytes, span)
    scatter = comm.reduce_scatter(setting.profile, setting.cluster, n_bytes, span)
    sums = comm.all_reduce(setting.profile, setting.cluster, 4.0 * inside, span)
    forward = gather * setting.columns.sp + 2 * sums
    return {"tp": _shares(1.0, forward, gather * setting.columns.sp + scatter)}


def p2p_s(setting: Setting) -> Array:
    """Seconds of one message between neighbouring pipeline chunks."""
    _, outside = rank_tokens(setting.workload, setting.columns)
    n_bytes = setting.element_bytes * outside * setting.model.hidden
    return comm.send_recv(setting.profile, setting.cluster, n_bytes, setting.spans.pp)


def step_tail(held: StageParams, setting: Setting) -> Exchange:
    """Once per step: gradient scatter and parameter gather of what a pipeline rank holds (forward = gather).

    Without a distributed optimizer gradients are all-reduced. Without overlap all of it shows, and it starts late.
    """
    columns, profile, cluster = setting.columns, setting.profile, setting.cluster
    element = setting.workload.precision.gather_bytes
    gather = comm.all_gather(profile, cluster, element * held.dense, setting.spans.dp_cp)
    gather = gather + comm.all_gather(profile, cluster, element * held.expert, setting.spans.edp)
    scatter = comm.reduce_scatter(profile, cluster, columns.grad_bytes * held.dense, setting.spans.dp_cp)
    scatter = scatter + comm.reduce_scatter(profile, cluster, columns.grad_bytes * held.expert, setting.spans.edp)
    reduce = comm.all_reduce(profile, cluster, columns.grad_bytes * held.dense, setting.spans.dp_cp)
    reduce = reduce + comm.all_reduce(profile, cluster, columns.grad_bytes * held.expert, setting.spans.edp)
    streamed = columns.fsdp == Fsdp.optim_grads_params
    forward = np.where(columns.distributed_optimizer & ~streamed, gather, 0.0)
    scattered = np.where(columns.distributed_optimizer, scatter, reduce)
    backward = np.where(columns.fsdp >= Fsdp.optim_grads, 0.0, scattered)
    share = profile.value("dp_exposed")
    late = share * profile.value("dp_no_overlap_factor")
    found = queues(setting)
    beside = True if found is None else ~found.serial_data
    exposed = np.where(columns.overlap_param_gather & beside, share, late) * forward
    exposed = exposed + np.where(columns.overlap_grad_reduce & beside, share, late) * backward
    return Exchange(forward, backward, exposed)


def straggler_s(works_s: Array, setting: Setting) -> Array:
    """Seconds in which a rank that works `works_s` per step waits for the slowest of all: a share per doubling of GPUs.

    Clocks and hosts vary; whatever is synchronised runs at the pace of the slowest rank, the expected extreme of which
    grows with the logarithm of their number. Weak scaling of public runs shows it, number formats below bf16 more.
    """
    quantised = setting.workload.precision.quantised
    share = setting.profile.value("straggler_share_quantised" if quantised else "straggler_share")
    out: Array = share * np.log2(setting.cluster.gpus) * works_s
    return out


def optimizer_s(held: StageParams, setting: Setting) -> Array:
    """Seconds of the optimizer step over the local shard.

    On the GPU bytes over the memory rate. The offloaded share is updated by the CPU, which moves `HOST_ADAM_BYTES` per
    parameter through this rank's part of the host memory; gradients come and weights go over the link to the host.
    """
    columns, profile = setting.columns, setting.profile
    sharded = columns.distributed_optimizer
    dense = held.dense / np.where(sharded, columns.dp * columns.cp / columns.optimizer_instances, 1)
    expert = held.expert / np.where(sharded, columns.edp, 1)
    on_gpu = profile.value("optimizer_bytes_per_param") / profile.memory_Bps
    link = gbs_to_bps(setting.cluster.gpu.pcie_uni_gbs)
    on_host = HOST_ADAM_BYTES / profile.value("host_memory_Bps") + (columns.grad_bytes + setting.element_bytes) / link
    offloaded = columns.optimizer_offload
    out: Array = (dense + expert) * ((1 - offloaded) * on_gpu + offloaded * on_host)
    return out
