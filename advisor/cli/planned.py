"""Joins a diagnosis with the plan of the job: what the plan predicted, and which single change helps most."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.cli.figures import figure
from advisor.configure.chosen import chosen_of
from advisor.diagnose.diagnosis import Diagnosis
from advisor.search.options import EstimateOptions
from advisor.spec.load.plan_file import entry_of, read_record
from advisor.spec.plan import Dial, MemoryEstimate
from advisor.units import gib

MOST_DIALS = 4
OF_MEMORY = {"cuda_oom", "cuda_oom_fragmentation"}
# A plan's split is balanced anew for every change, so the one that it printed is left out.
LEFT_OUT = {"pipeline_layout", "num_microbatches", "dp", "edp"}


def with_advice(found: Diagnosis, path: str) -> Diagnosis:
    """The diagnosis with advice from the plan in the JSON file `path`. Raises InputError for a file that is no plan."""
    record = read_record(Path(path))
    memory = chosen_of(record, path).candidate.memory
    if found.cause_id in OF_MEMORY:
        advice = tuple(_memory_advice(record["request"], entry_of(record, 1, path), memory))
    elif found.cause_id == "host_oom":
        advice = (f"the plan keeps {figure(gib(memory.host_bytes))} GiB of host memory on every node",)
    else:
        advice = ()
    return dataclasses.replace(found, advice=advice)


def options_of(request: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `advisor.api.why` for the layout that the plan chose."""
    known = set(EstimateOptions.__annotations__) | set(EstimateOptions.__mro__[0].__annotations__)
    origins = request.get("origins", {})
    settings = {name: value for name, value in request.items() if origins.get(name) not in {None, "default"}}
    chosen = {**settings, **candidate["layout"], **candidate.get("knobs", {})}
    return {
        name: value
        for name, value in chosen.items()
        if name in known and name not in LEFT_OUT and value not in (None, [])
    }  # fmt: skip


def _memory_advice(request: Mapping[str, Any], candidate: Mapping[str, Any], memory: MemoryEstimate) -> Iterator[str]:
    from advisor.api import why

    peak, budget = gib(memory.peak_device_bytes), gib(memory.budget_bytes)
    yield f"the plan predicted a peak of {figure(peak)} GiB of {figure(budget)} GiB, on stage {memory.worst_stage}"
    answer = why(request["model"], int(request["gpus"]), **options_of(request, candidate))
    dials = [dial for dial in answer.dials if dial.verdict == "fits" and (dial.freed_bytes or 0) > 0 and not dial.allow]
    for dial in sorted(dials, key=lambda one: -(one.freed_bytes or 0))[:MOST_DIALS]:
        yield _words(dial, peak)


def _words(dial: Dial, peak_gib: float) -> str:
    freed = gib(dial.freed_bytes or 0)
    price = "" if dial.gain is None else f", {dial.gain:+.1%} tokens/s"
    left = max(peak_gib - freed, 0.0)
    change = f"{dial.name} {dial.before} -> {dial.after}"
    return f"{change}: frees {figure(freed)} GiB, predicted peak {figure(left)} GiB{price}"
