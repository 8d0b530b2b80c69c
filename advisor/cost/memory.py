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

from advisor.cost.arrays import Entry, add_up, largest
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
from advisor.spec.layout import Array, Columns, CudaGraph, Fold
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
        return np.broadcast_to(largest(peaks), self.columns.shape)

    @cached_property
    def outside(self) -> dict[str, Array]:
        """Device memory outside of the allocator that depends on no stage and no moment."""
        return {
            "context": np.asarray(memory_facts()["context_bytes"].value),
            "nccl": nccl_bytes(self.model, self.workload, self.columns),
            "ep_buffers": ep_buffer_bytes(self.model, self.cluster, self.workload, self.columns),
        }

    @cached_property
    def device_bytes(self) -> Array:
        """Most memory in use on the fullest rank's GPU, with what lies outside of the allocator."""
        beside = self.outside["context"] + self.outside["nccl"] + self.outside["ep_buffers"]
        factor = 1.0 + _dynamic_share(self.columns)
        peaks = [
            _dynamic(part.moments) * factor + (_sum(part.static) + (beside + part.graph_inputs)) for part in self.parts
        ]
        return np.broadcast_to(largest(peaks), self.columns.shape)

    @cached_property
    def host_bytes(self) -> Array:
        """Host memory per node."""
        sizes = [
            host_bytes(self.cluster, self.workload, self.columns, part.states, part.on_host) for part in self.parts
        ]
        return np.broadcast_to(largest([np.zeros(1), *sizes]), self.columns.shape)

    @cached_property
    def floor_bytes(self) -> Array:
        """What weights, gradients, optimizer and activations need: less than the device bytes, and of fewer axes."""
        return largest([base + _most_kept(part) for base, part in zip(self._static, self.parts, strict=True)])

    @cached_property
    def _static(self) -> list[Array]:
        return [_sum(part.static) for part in self.parts]

    def over_floor(self, budget_bytes: float) -> Iterator[tuple[str, Array]]:
        """What breaks a budget before any moment is looked at: term names with masks of the entries over it by then.

        Terms are added up as listed in `TERMS`, up to activations; the first mask that is true for an entry names the
        term that broke its budget. Masks broadcast with the table and are smaller than it where the term does not need
        all axes.
        """
        names = [name for name in STATIC if name in self.parts[0].static]
        for count, last in enumerate(names, 1):
            held = [_sum({name: part.static[name] for name in names[:count]}) for part in self.parts]
            yield last, largest(held) > budget_bytes
        yield "activations", self.floor_bytes > budget_bytes

    def over_moments(self, budget_bytes: float) -> Iterator[tuple[str, Array]]:
        """As `over_floor` for entries below it, moment after moment; what none breaks lies outside of the allocator."""
        for moment, name in BREAKING.items():
            if moment in self.parts[0].moments:
                held = [base + _sum(part.moments[moment]) for base, part in zip(self._static, self.parts, strict=True)]
                yield name, largest(held) > budget_bytes

    def fold(self, fold: Fold) -> MemoryColumns:
        """The same peaks of a table with some cells laid out as rows."""
        parts = tuple(part.fold(fold) for part in self.parts)
        return MemoryColumns(self.model, self.cluster, self.workload, self.columns.fold(fold), parts)

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
    return largest([_sum({**shared, "rest": largest(sums)}) for shared, sums in groups.values()])


def _sum(terms: Mapping[str, Array]) -> Array:
    return add_up(terms.values())


def _most_kept(part: StageMemory) -> Array:
    return largest([terms["activations"] for terms in part.moments.values() if "activations" in terms])


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


def _estimate(sizes: MemoryColumns, index: int) -> MemoryEstimate:
    """Terms of one entry, read out of the arrays that its peak was added up from."""
    columns, value = sizes.columns, Entry(index, sizes.columns.shape)
    facts = memory_facts()
    share = facts["fragmentation_share"].value
    graph = value(_dynamic_share(columns)) - share
    beside = {name: value(term) for name, term in sizes.outside.items()}
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
