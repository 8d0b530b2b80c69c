"""Choices within a row: which knobs make sense for a group of rows, as independent axes.

Axes: dispatcher with CUDA graph, context-parallel exchange, recompute rung, what overlaps the dispatch, and where
optimizer and parameters live. The first entry of every axis is the base, so an axis lists what may change. Fields that
the user pins keep their value everywhere. FSDP, optimizer offload and optimizer instances are alternatives of one axis:
each replaces the plain distributed optimizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from advisor.rules import rule_of
from advisor.rules.recompute import has_latent, idle_modules
from advisor.rules.rule import Case, partial_columns
from advisor.spec.hardware import Cluster
from advisor.spec.layout import RECOMPUTE_MODULES, Array, Columns, CpComm, CudaGraph, Dispatcher, Fsdp, Knobs
from advisor.spec.model import Model
from advisor.spec.workload import Workload

RUNGS: tuple[tuple[str, ...], ...] = (
    (),
    ("core_attn",),
    ("core_attn", "moe_act"),
    ("core_attn", "moe_act", "layernorm"),
    ("core_attn", "mla_up_proj"),
    ("core_attn", "moe_act", "layernorm", "mla_up_proj"),
    ("core_attn", "mla_up_proj", "mlp"),
    ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "shared_experts"),
    ("core_attn", "moe", "layernorm", "mla_up_proj", "mlp"),
)
"""Recompute sets from cheap to dear, before modules that the model lacks are left out; full recompute is the last."""


@dataclass(frozen=True, slots=True, order=True)
class Traits:
    """What decides which knobs a row can have: which parallelisms it uses, and which groups fit where.

    `dispatched`: tokens leave their rank; `overlappable`: the schedule can overlap experts of neighbouring
    microbatches; `a2a`: heads divide over the context group; `sharded`: there is data parallelism; `halved`: optimizer
    shards span domains and could be kept in two instances.
    """

    dispatched: bool
    overlappable: bool
    cp: bool
    a2a: bool
    sharded: bool
    pipelined: bool
    halved: bool
    buffered: bool


def row_traits(model: Model, cluster: Cluster, workload: Workload, columns: Columns) -> Array:
    """Traits of every row as bits of an integer, the first field in the lowest bit (rows,)."""
    x, domain = columns, cluster.used_per_domain

    def fine(name: str, **knobs: int) -> Array:
        changed: dict[str, Any] = {field: np.array([value]) for field, value in knobs.items()}
        mask: Array = ~rule_of(name).broken(Case(model, cluster, workload, dataclasses.replace(x, **changed)))
        return mask

    dispatched = x.ep * x.etp > 1 if model.is_moe else np.zeros(x.tp.shape, dtype=np.bool_)
    overlap = (x.ep > 1) & ((x.pp == 1) | (x.vpp > 1)) & ((x.pp > 1) | (workload.mtp_depth == 0))
    halves = (x.dp * x.cp % 2 == 0) & (x.dp * x.cp >= 4) & (x.dp * x.cp * x.tp > domain)
    flags = (
        dispatched,
        overlap,
        x.cp > 1,
        (x.cp > 1) & fine("cp-a2a-heads", cp_comm=CpComm.a2a),
        x.dp * x.cp > 1,
        x.pp > 1,
        halves & (x.edp % 2 == 0) if model.is_moe else halves,
        (x.tp > 1) & x.sp & (not model.is_moe),
    )
    bits = np.zeros(x.tp.shape, dtype=np.int64)
    for i, flag in enumerate(flags):
        bits = bits + (np.asarray(flag).astype(np.int64) << i)
    return bits


def traits_of(bits: int) -> Traits:
    """The traits that an entry of `row_traits` stands for."""
    return Traits(*(bool(bits >> i & 1) for i in range(len(dataclasses.fields(Traits)))))


def recompute_ladder(model: Model, workload: Workload) -> tuple[dict[str, Any], ...]:
    """At most ten recompute choices for a kind of model, as `Knobs` fields: nothing first, everything last."""
    useless = {*idle_modules(model)}
    if not model.is_moe:
        useless.add("moe_act")
    if not has_latent(model):
        useless.add("mla_up_proj")
    if workload.attention_impl == "fused":
        useless.add("core_attn")
    if workload.precision.name == "fp8-delayed":
        useless |= {"moe_act", "layernorm"}
    rungs = dict.fromkeys(tuple(module for module in rung if module not in useless) for rung in RUNGS)
    ordered = (tuple(module for module in RECOMPUTE_MODULES if module in rung) for rung in rungs)
    selective: list[dict[str, Any]] = [{"recompute": rung, "full_uniform": 0, "full_block": 0} for rung in ordered]
    return (*selective, {"recompute": (), "full_uniform": 1, "full_block": 0})


FLEX = (Dispatcher.deepep, Dispatcher.hybridep)
GATES = ("deepep-runs-on-gpu", "rack-needs-hybridep", "deepep-without-padding", "hybridep-runs-on-gpu")
EXCHANGES = (CpComm.p2p, CpComm.all_gather, CpComm.a2a)
CARRIES = ("cp-window-needs-all-keys", "cp-sinks-need-a2a", "cp-indexer-needs-all-gather")


@cache
def _probe(name: str, *values: int, **fixed: int) -> Columns:
    """A table with one row per value of a knob, for rules that read little else."""
    return partial_columns({name: np.array(values), **{field: np.array([one]) for field, one in fixed.items()}})


def _fine(case: Case, names: Sequence[str]) -> list[bool]:
    """Which rows of the case break none of these rules."""
    broken = np.zeros(case.columns.shape, dtype=np.bool_)
    for name in names:
        broken = broken | rule_of(name).broken(case)
    return [not one for one in broken]


def _dispatchers(model: Model, cluster: Cluster, workload: Workload, traits: Traits) -> list[dict[str, Any]]:
    if not model.is_moe:
        return [{"dispatcher": Dispatcher.none}]
    found: list[dict[str, Any]] = [{"dispatcher": Dispatcher.alltoall}]
    if traits.dispatched:
        runs = _fine(Case(model, cluster, workload, _probe("dispatcher", *FLEX)), GATES)
        found += [{"dispatcher": one} for one, works in zip(FLEX, runs, strict=True) if works]
    return found


def _overlaps(model: Model, workload: Workload, traits: Traits) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"ep_overlap": False, "delay_wgrad": False, "shared_expert_overlap": False}]
    shared = model.moe is not None and model.moe.shared_ffn > 0
    if shared and traits.dispatched:
        found.append({"ep_overlap": False, "delay_wgrad": False, "shared_expert_overlap": True})
    sixteen_bit = workload.precision.name != "fp32"
    if traits.dispatched and traits.overlappable and sixteen_bit and workload.mtp_depth <= 1:
        found.append({"ep_overlap": True, "delay_wgrad": True, "shared_expert_overlap": False})
    return found


def _captured(
    model: Model, workload: Workload, dispatchers: Sequence[dict[str, Any]], pinned: CudaGraph | None
) -> list[dict[str, Any]]:
    """Dispatchers with the CUDA graphs each can run in, one axis: most pairs with a whole iteration are illegal.

    A graph of the whole iteration needs static shapes: no experts, padded experts, or HybridEP with a rank budget. The
    budget drops no token while routing is balanced; for dropless routing it would change the mathematics, so that the
    choice is left to whoever pins it.
    """
    static = not model.is_moe or workload.pad_to_capacity or pinned is not None
    budgeted = {Dispatcher.hybridep} if workload.routing == "balanced" else set()
    return [
        {**one, "cuda_graph": graph}
        for graph in (CudaGraph if pinned is None else (pinned,))
        for one in dispatchers
        if graph != CudaGraph.full_iteration or static or one["dispatcher"] in budgeted
    ]


def _states(workload: Workload, traits: Traits) -> list[dict[str, Any]]:
    plain = {"fsdp": Fsdp.none, "optimizer_offload": 0.0, "optimizer_instances": 1}
    found: list[dict[str, Any]] = [plain]
    if traits.halved:
        found.append({**plain, "optimizer_instances": 2})
    if workload.optimizer == "adam":
        found.append({**plain, "optimizer_offload": 1.0})
    if traits.sharded and not traits.pipelined and workload.optimizer in {"adam", "sgd"}:
        found.append({**plain, "fsdp": Fsdp.optim_grads_params})
    return found


def _exchanges(model: Model, cluster: Cluster, workload: Workload, traits: Traits) -> list[dict[str, Any]]:
    if not traits.cp:
        return [{"cp_comm": CpComm.p2p}]
    works = _fine(Case(model, cluster, workload, _probe("cp_comm", *EXCHANGES, cp=2)), CARRIES)
    found = [one for one, fine in zip(EXCHANGES, works, strict=True) if fine and (one != CpComm.a2a or traits.a2a)]
    return [{"cp_comm": one} for one in found or [CpComm.p2p]]


def knob_axes(  # noqa: PLR0917
    model: Model,
    cluster: Cluster,
    workload: Workload,
    fixed: Mapping[str, Any],
    extra: Mapping[str, Any],
    traits: Traits,
) -> list[list[Knobs]]:
    """Axes of knob choices for rows with these traits; the first entry of each axis is the same base.

    `fixed` pins fields of `Knobs` (other keys are ignored); `extra` opens a field that changes the mathematics to
    another value (or several, as a tuple): an axis of its own.
    """
    training = workload.mode == "train"
    fields = {field.name for field in dataclasses.fields(Knobs)}
    pinned = {name: value for name, value in fixed.items() if name in fields}
    dispatchers = _dispatchers(model, cluster, workload, traits)
    if "dispatcher" in pinned:
        dispatchers = [{"dispatcher": pinned["dispatcher"]}]
    choices = [
        _captured(model, workload, dispatchers, pinned.get("cuda_graph")) if training else dispatchers,
        _exchanges(model, cluster, workload, traits),
    ]
    if training:
        choices += [[*recompute_ladder(model, workload)], _overlaps(model, workload, traits), _states(workload, traits)]
    first = {name: value for axis in choices for name, value in axis[0].items()}
    base = Knobs(**{"tp_overlap": training and traits.buffered, **first, **pinned})
    for name, value in extra.items():
        values = value if isinstance(value, tuple) else (value,)
        choices.append([{name: getattr(base, name)}, *({name: one} for one in values)])
    return [_axis(base, axis, pinned) for axis in choices]


def _axis(base: Knobs, choices: Iterable[Mapping[str, Any]], pinned: Mapping[str, Any]) -> list[Knobs]:
    """The base and every choice that leaves pinned fields alone, without repeats."""
    fitting: Sequence[Mapping[str, Any]] = [
        one for one in choices if all(pinned.get(name, value) == value for name, value in one.items())
    ]
    return list(dict.fromkeys([base, *(dataclasses.replace(base, **one) for one in fitting)]))
