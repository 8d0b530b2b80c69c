"""Peak memory of a rank: named terms per pipeline stage and per moment of a step, as columns.

`allocated` is what torch's max_memory_allocated would report and holds no fitted constant; `device` adds what lives
outside of the caching allocator. The peak is the maximum over representative stages and over moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from advisor.cost.buffers import (
    ep_buffer_bytes,
    host_bytes,
    nccl_bytes,
)
from advisor.cost.facts import memory_facts
from advisor.cost.inference import serving_stage
from advisor.cost.moments import StageMemory, training_stage
from advisor.cost.params import padded_vocab
from advisor.cost.router import routed
from advisor.cost.stages import representative_stages, stage_of_rank
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns, CudaGraph
from advisor.spec.model import Model
from advisor.spec.plan import Kind, MemoryEstimate, Term
from advisor.spec.workload import Workload

TERMS = (
    "weights", "gradients", "optimizer", "activations", "logits", "working_set", "dispatch_buffers", "optimizer_step",
    "param_gather", "p2p_buffers", "context", "nccl", "ep_buffers", "cuda_graph_pool", "fragmentation",
)  # fmt: skip
STATIC = ("weights", "gradients", "optimizer")
BREAKING = {
    "loss": "logits",
    "forward_backward": "working_set",
    "vocabulary_gradients": "working_set",
    "optimizer_step": "optimizer_step",
    "param_gather": "param_gather",
    "serving": "working_set",
}
"""The term that a moment is named by when activations alone would have fitted."""


@dataclass(frozen=True, eq=False)
class MemoryColumns:
    """Peaks in bytes over the full table (knob axes first, rows last), each added up when it is first asked for."""

    model: Model
    cluster: Cluster
    workload: Workload
    columns: Columns
    parts: tuple[StageMemory, ...]

    @cached_property
    def allocated_bytes(self) -> Array:
        """Most memory that the allocator of the fullest rank has handed out."""
        peaks = [_sum(part.static) + _dynamic(part.moments) for part in self.parts]
        return np.broadcast_to(_max(peaks), self.columns.shape)

    @cached_property
    def device_bytes(self) -> Array:
        """Most memory in use on the fullest rank's GPU, with what lies outside of the allocator."""
        beside = _beside(self.model, self.cluster, self.workload, self.columns)
        factor = 1.0 + _dynamic_share(self.columns)
        peaks = [
            _dynamic(part.moments) * factor + (_sum(part.static) + (beside + part.graph_inputs)) for part in self.parts
        ]
        return np.broadcast_to(_max(peaks), self.columns.shape)

    @cached_property
    def host_bytes(self) -> Array:
        """Host memory per node."""
        sizes = [host_bytes(self.cluster, self.workload, self.columns, part.states) for part in self.parts]
        return np.broadcast_to(_max([np.zeros(1), *sizes]), self.columns.shape)

    def breaking(self, budget_bytes: float) -> Iterator[tuple[str, Array]]:
        """What breaks a budget: term names with masks of the entries over it by then, in a fixed order.

        Terms are added up as listed in `TERMS`, moments after the static terms; the first mask that is true for an
        entry names the term that broke its budget. An entry over budget in no mask is broken by what lies outside of
        the allocator. Masks broadcast with the table and are smaller than it where the term does not need all axes.
        """
        names = [name for name in STATIC if name in self.parts[0].static]
        for count, last in enumerate(names, 1):
            held = [_sum({name: part.static[name] for name in names[:count]}) for part in self.parts]
            yield last, _max(held) > budget_bytes
        static = [_sum(part.static) for part in self.parts]
        kept = [
            base + _max([terms["activations"] for terms in part.moments.values() if "activations" in terms])
            for base, part in zip(static, self.parts, strict=True)
        ]
        yield "activations", _max(kept) > budget_bytes
        for moment, name in BREAKING.items():
            if moment in self.parts[0].moments:
                held = [base + _sum(part.moments[moment]) for base, part in zip(static, self.parts, strict=True)]
                yield name, _max(held) > budget_bytes

    def detail(self, index: int) -> MemoryEstimate:
        """Named terms of entry `index` (flat index into the full table) at its worst stage and moment."""
        return _estimate(self, index)


def memory(
    model: Model, cluster: Cluster, workload: Workload, columns: Columns, *, rank: int | None = None
) -> MemoryColumns:
    """Peak allocated, device and host bytes of every entry of the table; arrays of shape `columns.shape`.

    With `rank` the peak of that pipeline rank alone (-1 = the last, which is the one that writes Megatron's logs).
    """
    return MemoryColumns(model, cluster, workload, columns, tuple(_stages(model, cluster, workload, columns, rank)))


def _stages(
    model: Model, cluster: Cluster, workload: Workload, columns: Columns, rank: int | None
) -> list[StageMemory]:
    if rank is None:
        stages = representative_stages(model, columns, workload.mtp_depth, routed(workload))
    else:
        last = max(split.pp for split in columns.splits) - 1
        number = last if rank < 0 else rank
        stages = (stage_of_rank(model, columns, workload.mtp_depth, number, routed(workload)),)
    build = training_stage if workload.mode == "train" else serving_stage
    return [build(model, cluster, workload, columns, stage) for stage in stages]


def _beside(model: Model, cluster: Cluster, workload: Workload, columns: Columns) -> Array:
    """Device memory that depends on no stage and no moment."""
    context = memory_facts()["context_bytes"].value
    return context + nccl_bytes(model, workload, columns) + ep_buffer_bytes(model, cluster, workload, columns)


def _dynamic_share(columns: Columns) -> Array:
    """Fragmentation and full-iteration graph pool, as a share of what is allocated and freed within a step."""
    facts = memory_facts()
    pool = np.where(columns.cuda_graph == CudaGraph.full_iteration, facts["full_graph_share"].value, 0.0)
    return facts["fragmentation_share"].value + pool


def _dynamic(moments: Mapping[str, Mapping[str, Array]]) -> Array:
    """The largest sum of terms of any moment; buffers that moments share are added to the largest of the rest.

    Shared buffers vary along other knob axes than activations do, so most sums and maxima stay small this way.
    """
    groups: dict[tuple[int, ...], tuple[dict[str, Array], list[Array]]] = {}
    for terms in moments.values():
        shared = {name: terms[name] for name in ("p2p_buffers", "param_gather") if name in terms}
        rest = {name: term for name, term in terms.items() if name not in shared}
        _, sums = groups.setdefault(tuple(id(term) for term in shared.values()), (shared, []))
        sums.append(_sum(rest))
    return _max([_sum({**shared, "rest": _max(sums)}) for shared, sums in groups.values()])


def _sum(terms: Mapping[str, Array]) -> Array:
    """Sum of terms, smallest shape first so that broadcasting happens once."""
    total: Array = np.zeros(1)
    for term in sorted(terms.values(), key=np.size):
        total = total + term
    return total


def _max(values: list[Array]) -> Array:
    """Largest of the values, smallest shape first; an array that is ours already takes the next maximum in place."""
    highest, *rest = sorted(values, key=np.size)
    ours = False
    for value in rest:
        fits = ours and np.broadcast_shapes(highest.shape, value.shape) == highest.shape
        highest = np.maximum(highest, value, out=highest if fits else None)
        ours = True
    return highest


def _kinds() -> dict[str, Kind]:
    """Kind of every term: formulae of sizes are as good as a datasheet; the rest says what its facts are."""
    facts = memory_facts()
    kinds: dict[str, Kind] = dict.fromkeys(TERMS, "datasheet")
    kinds.update(
        context=facts["context_bytes"].kind,
        nccl=facts["nccl_communicator_bytes"].kind,
        ep_buffers=facts["deepep_buffer_bytes"].kind,
        cuda_graph_pool=facts["full_graph_share"].kind,
        fragmentation=facts["fragmentation_share"].kind,
    )
    return kinds


class _Entry:
    """Reads entry `index` (flat) out of arrays that broadcast to `shape`."""

    def __init__(self, index: int, shape: tuple[int, ...]) -> None:
        self.at = [int(one) for one in np.unravel_index(index, shape)]

    def __call__(self, values: Array) -> float:
        array = np.asarray(values)
        own = self.at[len(self.at) - array.ndim :]
        return float(array[tuple(at if size > 1 else 0 for at, size in zip(own, array.shape, strict=True))])


def _estimate(sizes: MemoryColumns, index: int) -> MemoryEstimate:
    """Terms of one entry, read out of the arrays that its peak was added up from."""
    columns, value = sizes.columns, _Entry(index, sizes.columns.shape)
    facts = memory_facts()
    share = facts["fragmentation_share"].value
    graph = value(_dynamic_share(columns)) - share
    beside = {
        "context": facts["context_bytes"].value,
        "nccl": value(nccl_bytes(sizes.model, sizes.workload, columns)),
        "ep_buffers": value(ep_buffer_bytes(sizes.model, sizes.cluster, sizes.workload, columns)),
    }
    best: tuple[float, int, str, dict[str, float]] | None = None
    table: dict[int, MappingProxyType[str, float]] = {}
    for part in sizes.parts:
        rank = int(value(part.rank))
        static = {name: value(term) for name, term in part.static.items()}
        shown: dict[str, float] = {"rank": float(rank)}
        for moment, terms in part.moments.items():
            dynamic = {name: value(term) for name, term in terms.items()}
            changing = sum(dynamic.values())
            every = {**static, **dynamic, **beside}
            every["cuda_graph_pool"] = graph * changing + value(part.graph_inputs)
            every["fragmentation"] = share * changing
            peak = sum(every.values())
            shown[moment] = peak
            if best is None or peak > best[0]:
                best = (peak, rank, moment, every)
        table.setdefault(rank, MappingProxyType(shown))
    if best is None:
        raise ValueError("a layout without stages")
    kinds = _kinds()
    return MemoryEstimate(
        peak_allocated_bytes=value(sizes.allocated_bytes),
        peak_device_bytes=best[0],
        budget_bytes=sizes.cluster.usable_bytes,
        worst_stage=best[1],
        worst_moment=best[2],
        terms=MappingProxyType({name: Term(best[3].get(name, 0.0), kinds[name]) for name in TERMS}),
        host_bytes=value(sizes.host_bytes),
        padded_vocab=int(value(padded_vocab(sizes.model, sizes.workload, columns))),
        stages=tuple(table.values()),
    )
