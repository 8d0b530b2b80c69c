"""Seconds of a training step: kernels, traffic that shows, pipeline, optimizer and host, added up over columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from advisor.cost.arrays import Entry, add_up, largest
from advisor.cost.buckets import bucket_shift, moved
from advisor.cost.elementwise import ZERO
from advisor.cost.flops import Gemm, LocalGemm, model_flops_per_token, module_layers, rank_tokens
from advisor.cost.hiding import (
    PARALLELISMS,
    Exchange,
    head_traffic,
    layer_traffic,
    optimizer_s,
    p2p_s,
    step_tail,
    straggler_s,
)
from advisor.cost.interval import interval
from advisor.cost.kernels import dense_gemm, head_kernels, host_s, layer_kernels, sync_s
from advisor.cost.offload import offload_exchange, offloads
from advisor.cost.params import padded_vocab, stage_params
from advisor.cost.pipeline import chunk_passes, fill_and_drain_s, p2p_exposed, steady_s
from advisor.cost.placement import spans
from advisor.cost.profile import Profile
from advisor.cost.recompute import recompute_s, whole_layers
from advisor.cost.router import Loads, module_loads, routed, whole_loads
from advisor.cost.setting import Setting
from advisor.cost.stages import Stage, paced_stages
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns
from advisor.spec.model import Layer, Model
from advisor.spec.plan import Kind, StepEstimate, Term
from advisor.spec.workload import Workload

STEP_TERMS = (
    "compute_gemm", "compute_attention", "compute_experts", "compute_memory_bound", "compute_recurrence",
    "compute_head", "recompute", "quantise", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "exposed_dp",
    "exposed_offload", "bubble", "optimizer", "host",
)  # fmt: skip
INTERVAL_LEVEL = 0.8

Seconds = dict[str, Array]
"""Named seconds; names are `STEP_TERMS`, and "hidden_<parallelism>" for traffic that does not show.

"hidden_forward" is the forward pass of a layer, there only where activations are offloaded beside it.
"""


def total(seconds: Seconds) -> Array:
    """Sum of the terms that show."""
    return add_up(value for name, value in seconds.items() if not name.startswith("hidden"))


def _sum(parts: Sequence[tuple[Array | float, Seconds]]) -> Seconds:
    """Weighted sum of named seconds."""
    out: Seconds = {}
    for weight, seconds in parts:
        for name, value in seconds.items():
            out[name] = out[name] + weight * value if name in out else weight * value
    return out


def _traffic(exchanges: dict[str, Exchange]) -> Seconds:
    out: Seconds = {}
    for name, exchange in exchanges.items():
        out[f"exposed_{name}"] = exchange.exposed
        out[f"hidden_{name}"] = exchange.hidden
    return out


def layer_seconds(layer: Layer, job: Setting) -> Seconds:
    """One microbatch of one layer kind, forward and backward.

    Launching from the host runs ahead of the GPU; what it lags behind shows, layer by layer. Waiting for token counts
    runs beside the transfers of the dispatch.
    """
    kernels = layer_kernels(layer, job.model, job.workload, job.columns, job.profile)
    traffic = layer_traffic(layer, job, kernels)
    seconds: Seconds = {
        "compute_gemm": kernels.gemm.both,
        "compute_attention": kernels.attention.both,
        "compute_experts": kernels.experts.both,
        "compute_memory_bound": kernels.memory_bound.both,
        "compute_recurrence": kernels.recurrence.both,
        "quantise": kernels.quantise.both,
        "recompute": recompute_s(job.model, job.columns, kernels, traffic),
        **_traffic(traffic),
    }
    waits = np.maximum(sync_s(layer, job.workload, job.columns, job.profile) - traffic["ep"].forward_exposed, 0.0)
    launches = host_s(layer, whole_layers(job.model, job.columns), job.columns, job.profile)
    seconds["host"] = waits + np.maximum(launches - total(seconds) - waits, 0.0)
    if offloads(job.columns):
        seconds["hidden_forward"] = add_up([kernels.forward, *(one.forward_exposed for one in traffic.values())])
    return seconds


def _loaded(job: Setting, kinds: Sequence[Seconds], loads: Sequence[Loads | None]) -> tuple[Seconds, ...]:
    """One microbatch of every layer kind under what router statistics put on its experts; `kinds` where they say none.

    `loads` is empty without statistics.
    """
    changed = [
        kind if load is None else layer_seconds(layer, job.loaded(load.time))
        for layer, kind, load in zip(job.model.kinds, kinds, loads or [None] * len(kinds), strict=True)
    ]
    return tuple(changed)


def _head(job: Setting) -> Seconds:
    """Logits and loss of one microbatch on the last stage."""
    kernels = head_kernels(job.model, job.workload, job.padded_vocab, job.columns, job.profile)
    return {"compute_head": kernels.both, **_traffic(head_traffic(job))}


def _module(job: Setting, kinds: Sequence[Seconds], head: Seconds) -> Seconds:
    """One prediction module: its layers, the 2h x h projection of two streams, and its own logits and loss."""
    inside, _ = rank_tokens(job.workload, job.columns)
    hidden = job.model.hidden
    projection = LocalGemm(
        Gemm("mlp", 2 * hidden, hidden, "column"), inside, np.asarray(2.0 * hidden), hidden / job.columns.tp
    )
    own = {"compute_gemm": dense_gemm(projection, job.workload, job.profile).both}
    return _sum([*((1.0, kinds[kind]) for kind in module_layers(job.model)), (1.0, own), (1.0, head)])


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """A step before its stages are reduced to the slowest: microbatch seconds per layer kind, logits and module.

    `kinds` belong to one representative stage each, `copies` are its copies to the host and back in every microbatch,
    `tails` its seconds once per step, `once` those of the whole pipeline.
    """

    head: Seconds
    module: Seconds
    stages: tuple[Stage, ...]
    kinds: tuple[tuple[Seconds, ...], ...]
    copies: tuple[Seconds, ...]
    tails: tuple[Seconds, ...]
    once: Seconds

    def of(self, slot: int) -> list[tuple[Array, Seconds]]:
        """What stage number `slot` holds: (count, seconds of one)."""
        stage = self.stages[slot]
        return [
            *zip(stage.layers, self.kinds[slot], strict=True), (stage.loss, self.head), (stage.modules, self.module),
            (np.ones(1), self.copies[slot]),
        ]  # fmt: skip


def _copies(stage: Stage, kinds: Sequence[Seconds], job: Setting) -> Seconds:
    """Copies of activations of one microbatch of a stage; none in a table that offloads nothing."""
    if not offloads(job.columns):
        return {}
    forward = [kind["hidden_forward"] for kind in kinds]
    return _traffic({"offload": offload_exchange(stage, forward, [total(kind) for kind in kinds], job)})


def _tail(stage: Stage, job: Setting, shift: Exchange | None) -> Seconds:
    """Seconds of a rank once per step; `shift` is what another bucket size than the framework's own adds."""
    held = stage_params(job.model, job.workload, job.columns, stage)
    tail = step_tail(held, job)
    tail = tail if shift is None else moved(tail, shift)
    return {**_traffic({"dp": tail}), "optimizer": optimizer_s(held, job)}


def _parts(job: Setting) -> _Parts:
    depth = job.workload.mtp_depth
    router = routed(job.workload)
    plain = tuple(layer_seconds(layer, job) for layer in job.model.kinds)
    kinds = _loaded(job, plain, () if router is None else whole_loads(router, job.model, job.columns))
    head = _head(job)
    inside = _loaded(job, plain, () if router is None else module_loads(router, job.model, job.columns))
    module = _module(job, inside, head) if depth else {}
    stages = paced_stages(job.model, job.columns, depth, router)
    everything = sum((count * total(kind) for count, kind in zip(job.model.count, kinds, strict=True)), start=ZERO)
    everything = everything + total(head) + depth * total(module)
    messages, behind = p2p_exposed(job.columns, job.profile.value("pp_exposed_overlap"))
    message = p2p_s(job)
    once: Seconds = {
        "bubble": fill_and_drain_s(everything / job.columns.pp, job.columns, job.profile.value("bubble_factor")),
        "host": job.profile.value("step_constant_s")
        + job.profile.value("chunk_overhead_s") * chunk_passes(job.columns),
        "exposed_dp": straggler_s(job.columns.num_microbatches * everything / job.columns.pp, job),
        "exposed_pp": messages * message,
        "hidden_pp": behind * message,
    }
    own = tuple(_loaded(job, plain, stage.loads) for stage in stages)
    copies = tuple(_copies(stage, one, job) for stage, one in zip(stages, own, strict=True))
    shift = None if job.workload.bucket_size is None else bucket_shift(job)
    return _Parts(head, module, stages, own, copies, tuple(_tail(stage, job, shift) for stage in stages), once)


def setting_of(model: Model, cluster: Cluster, workload: Workload, columns: Columns, profile: Profile) -> Setting:
    """The arguments bundled with what several formulae need: padded vocabulary and where groups lie."""
    vocab, own = padded_vocab(model, workload, columns), profile.under(workload.precision)
    return Setting(model, cluster, workload, columns, own, spans(cluster, columns, workload.ep_domain), vocab)


def step_seconds(job: Setting) -> Array:
    """Seconds of one step for every entry of the table of `job`, in its full broadcast shape."""
    return _seconds(job, _parts(job))


def _seconds(job: Setting, parts: _Parts) -> Array:
    totals = {id(kind): total(kind) for kinds in parts.kinds for kind in kinds}
    head, module, copies = total(parts.head), total(parts.module), [total(one) for one in parts.copies]
    slowest_s = largest(
        add_up([
            steady_s(_weighted(stage, [totals[id(kind)] for kind in kinds], [head, module, copied]), job.columns),
            total(tail),
        ])
        for stage, kinds, copied, tail in zip(parts.stages, parts.kinds, copies, parts.tails, strict=True)
    )  # fmt: skip
    return np.broadcast_to(add_up([slowest_s, total(parts.once)]), job.columns.shape)


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """Step seconds of a table of layouts: `step_s` has its full broadcast shape, `detail` explains one entry."""

    step_s: Array
    detail: Callable[[int], StepEstimate]


def step(model: Model, cluster: Cluster, workload: Workload, columns: Columns, profile: Profile) -> StepColumns:
    """Seconds of one training step for every entry of the table.

    step = m x slowest stage + its share of the data-parallel tail and the optimizer + filling and draining + p2p +
    a constant. `step_s` is float64 of shape `columns.shape`; `detail(i)` takes a flat index into it.
    """
    job = setting_of(model, cluster, workload, columns, profile)
    parts = _parts(job)
    return StepColumns(_seconds(job, parts), partial(_estimate, job, parts))


def _weighted(stage: Stage, kinds: Sequence[Array], once: Sequence[Array]) -> Array:
    """One microbatch of a stage; `once` are logits and loss, a prediction module, and copies to the host."""
    head, module, copied = once
    held = [stage.loss * head, stage.modules * module, copied]
    return add_up([*held, *(count * kind for count, kind in zip(stage.layers, kinds, strict=True))])


def _estimate(job: Setting, parts: _Parts, index: int) -> StepEstimate:
    """Entry `index` (flat) with its terms, read out of the parts at the slowest stage."""
    at = Entry(index, job.columns.shape)

    def read(seconds: Seconds) -> dict[str, Any]:
        return {name: at(value) for name, value in seconds.items()}

    candidates = []
    for slot, tail in enumerate(parts.tails):
        one = _sum([(at(count), read(seconds)) for count, seconds in parts.of(slot)])
        candidates.append(_sum([(at(job.columns.num_microbatches), one), (1.0, read(tail))]))
    worst = int(np.argmax([float(total(one)[0]) for one in candidates]))
    values: dict[str, Any] = _sum([(1.0, candidates[worst]), (1.0, read(parts.once))])
    terms = {name: Term(float(values.get(name, 0.0)), _kind(name, job)) for name in STEP_TERMS}
    step_s = sum(term.value for term in terms.values())
    row = replace(job.columns, cuda_graph=np.array([at(job.columns.cuda_graph)]))
    low, high = interval(job.workload, job.model, job.cluster, row, job.profile)
    tokens = at(job.columns.gbs) * job.workload.seq_len
    flops = tokens * at(model_flops_per_token(job.model, job.workload, job.padded_vocab))
    per_gpu = flops / step_s / job.cluster.gpus
    peaks = job.cluster.gpu.peak_tflops
    running = peaks.get(job.workload.precision.gemm, peaks["bf16"])
    return StepEstimate(
        step_s=step_s,
        low_s=step_s * low,
        high_s=step_s * high,
        interval_level=INTERVAL_LEVEL,
        terms=MappingProxyType(terms),
        exposed_s=MappingProxyType({name: values.get(f"exposed_{name}", 0.0) for name in PARALLELISMS}),
        hidden_s=MappingProxyType({name: values.get(f"hidden_{name}", 0.0) for name in PARALLELISMS}),
        bubble_s=values["bubble"],
        tokens_per_s_per_gpu=tokens / step_s / job.cluster.gpus,
        model_flops=flops,
        tflops_per_gpu=per_gpu / 1e12,
        mfu=per_gpu / 1e12 / running,
        mfu_bf16=per_gpu / 1e12 / peaks["bf16"],
    )


_MADE_BY: dict[str, tuple[str, ...]] = {
    "compute_attention": ("attention_time_factor", "attention_backward_ratio"),
    "compute_experts": ("grouped_fwd", "per_expert_s"),
    "compute_memory_bound": ("memory_share", "layer_gap_s"),
    "compute_recurrence": ("mamba_peak_share",),
    "quantise": ("quantise_bytes",),
    "exposed_tp": ("tp_exposed", "collective_wait_s"),
    "exposed_cp": ("cp_exposed",),
    "exposed_ep": ("ep_volume_factor",),
    "exposed_pp": ("p2p_latency_s", "pp_exposed_overlap"),
    "exposed_dp": ("dp_exposed",),
    "exposed_offload": ("host_copy_share",),
    "bubble": ("bubble_factor",),
    "optimizer": ("optimizer_bytes_per_param",),
    "host": ("host_moe_layer_s",),
}
_TRUST: tuple[Kind, ...] = ("assumed", "fitted", "measured", "datasheet")


def _kind(name: str, job: Setting) -> Kind:
    """Kind of a term: the least certain of the coefficients that make it, GEMM rates where there are none."""
    names = _MADE_BY.get(name)
    kinds = [job.profile.gemm_rate(job.workload.precision).kind] if names is None else []
    kinds += [job.profile.kind(coefficient) for coefficient in names or ()]
    return min(kinds, key=_TRUST.index)
