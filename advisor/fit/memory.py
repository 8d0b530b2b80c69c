"""Memory of measured runs: what is predicted, and whether the run is said to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from advisor.cost.memory import MemoryColumns, memory
from advisor.fit.committed import stacks
from advisor.fit.runs import Run
from advisor.spec.layout import table
from advisor.units import gib

BESIDE = ("context", "nccl", "ep_buffers", "cuda_graph_pool")


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Predicted peaks in GiB and whether they fit into what a process can allocate."""

    peak_allocated_gib: float
    peak_device_gib: float
    verdict: Literal["fits", "oom"]


def memory_verdict(run: Run) -> MemoryVerdict:
    """Peak memory of a run and its verdict; a stack of its own may have an allocator of its own."""
    found = memory(run.model, run.cluster, run.workload, table([run.layout], [run.knobs]))
    usable = run.cluster.usable_bytes
    device = float(found.device_bytes[0])
    own = stacks().get(run.group, {}).get("memory")
    if own is not None:
        device = _own_device_bytes(found, run, own)
        usable *= own["usable_share"]
    fits: Literal["fits", "oom"] = "fits" if device <= usable else "oom"
    return MemoryVerdict(gib(float(found.allocated_bytes[0])), gib(device), fits)


def _own_device_bytes(found: MemoryColumns, run: Run, own: Mapping[str, Any]) -> float:
    """Device bytes with the share lost to fragmentation and the bytes per unfused attention score of a stack."""
    beside = sum(found.detail(0).terms[name].value for name in BESIDE)
    peaks = []
    for part in found.parts:
        static = sum(float(np.ravel(value)[0]) for value in part.static.values())
        moments = [sum(float(np.ravel(value)[0]) for value in terms.values()) for terms in part.moments.values()]
        peaks.append(static + (1 + float(own["fragmentation_share"])) * max(moments))
    heads = getattr(run.model.kinds[0].mixer, "heads", 0) / run.layout.tp
    scores = run.workload.seq_len**2 * run.layout.mbs * heads if run.workload.attention_impl == "unfused" else 0.0
    return max(peaks) + beside + float(own["score_bytes"]) * scores
