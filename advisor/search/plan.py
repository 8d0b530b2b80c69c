"""A whole plan: the ranked search, the vendor's recipe beside it, what more could be allowed, and the fewest GPUs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from advisor.cost.params import total_params
from advisor.errors import InputError
from advisor.rules import job_findings
from advisor.search.baseline import vendor_baseline
from advisor.search.offers import offers, search_allowed
from advisor.search.options import PlanOptions
from advisor.search.request import Request, resolve
from advisor.search.solve import Found, Ranking, ranking
from advisor.search.sources import Setting, merge
from advisor.spec.hardware import System
from advisor.spec.plan import Candidate, Finding, Offer

FEWEST_PARAM_BYTES = 2.0
MOST_GPUS = 1 << 14
MOST_MFU = 0.8
STEPS_PER_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """Everything a plan says; `findings` are what no layout of the job can repair."""

    request: Request
    ranking: Ranking
    baseline: Candidate | None
    baseline_name: str
    offers: tuple[Offer, ...]
    findings: tuple[Finding, ...] = ()


def plan_settings(model: str | Path, gpus: object, options: PlanOptions) -> dict[str, Setting]:
    """The settings of a plan with their origins, from the call, the environment and the files."""
    given: dict[str, object] = dict(options)
    given_by = str(given.pop("given_by", "argument"))
    given.update(model=str(model), gpus=gpus)
    allowed = frozenset({"model", "gpus", *PlanOptions.__annotations__} - {"given_by"})
    return merge(given, allowed, given_by)


def find_plan(model: str | Path, gpus: int | Literal["auto"], options: PlanOptions) -> FoundPlan:
    """The plan for a fixed number of GPUs, or with gpus "auto" for the fewest that fit or reach the target."""
    settings = plan_settings(model, gpus, options)
    if str(settings["gpus"].value).lower() == "auto":
        found = _fewest(settings)
    else:
        if "target_tokens_per_s" in settings:
            raise InputError("a throughput target needs gpus=auto", "leave out target_tokens_per_s, or gpus=auto")
        found = search_allowed(resolve(settings))
    baseline, name = vendor_baseline(found.request)
    request = found.request
    broken = job_findings(request.model, request.cluster, request.workload)
    return FoundPlan(request, ranking(found), baseline, name, offers(found), broken)


def _counts(system: System, fewest: int) -> Iterator[int]:
    """GPU counts from `fewest` up: powers of two inside a node, then whole nodes, up to eight steps per doubling."""
    node = system.gpus_per_node
    inside = [1 << bit for bit in range(node.bit_length()) if (1 << bit) < node]
    yield from (count for count in inside if count >= fewest)
    nodes = 1
    while nodes * node <= MOST_GPUS:
        if nodes * node >= fewest:
            yield nodes * node
        nodes += max(1, (1 << (nodes.bit_length() - 1)) // STEPS_PER_DOUBLING)


def _fewest(settings: Mapping[str, Setting]) -> Found:
    """The search at the smallest count that has a layout within the budget and, if asked, reaches the target rate.

    A count is skipped when weights alone (2 bytes per parameter, spread over all GPUs) cannot fit, or when even 80 % of
    the peak of all GPUs would not reach the target. The search gives up, with an empty answer, when four
    times the GPUs brought nothing, neither a smaller need nor a higher rate, and at once where no layout can be legal.
    """
    node = resolve({**settings, "gpus": Setting(_one_node(settings), "auto")})
    hopeless = bool(job_findings(node.model, node.cluster, node.workload))
    target = node.target_tokens_per_s
    floor = math.ceil(total_params(node.model) * FEWEST_PARAM_BYTES / node.budget_bytes)
    tried: list[tuple[int, Found]] = []
    for count in _counts(node.cluster.system, floor):
        if target is not None and tried and _most(tried[-1][1]) * count < target:
            continue
        note = "the fewest that fit" if target is None else "the fewest that reach the target"
        found = search_allowed(resolve({**settings, "gpus": Setting(count, "auto", note)}))
        if len(found.best) and (target is None or _rate(found) >= target):
            return found
        tried.append((count, found))
        if hopeless or any(count >= 4 * before and not _progress(old, found) for before, old in tried):
            break
    if not tried:
        raise InputError(f"{node.model.name} does not fit {MOST_GPUS} GPUs of {node.cluster.system.name}")
    last = tried[-1][1]
    given_up = Setting(tried[-1][0], "auto", "no number of GPUs is enough; this is the last one tried")
    request = last.request.with_setting("gpus", given_up)
    none = np.zeros(0, dtype=np.int64)
    return dataclasses.replace(last, request=request, best=last.best.take(none), front=last.front.take(none))


def _progress(before: Found, after: Found) -> bool:
    """Whether more GPUs gave a higher rate, or brought a layout nearer to fitting, by 2 % at least.

    While no layout is legal (pinned sizes want more GPUs) there is nothing to compare, and the search goes on.
    """
    if len(after.best) and len(before.best):
        return _rate(after) > 1.02 * _rate(before)
    if len(after.best) or not len(before.nearest_miss) or not len(after.nearest_miss):
        return True
    return bool(after.nearest_miss.device_bytes.min() < 0.98 * before.nearest_miss.device_bytes.min())


def _one_node(settings: Mapping[str, Setting]) -> int:
    from advisor.search.request import DEFAULTS
    from advisor.spec.load.system import load_system

    name = settings["system"].value if "system" in settings else DEFAULTS["system"]
    return load_system(str(name)).gpus_per_node


def _most(found: Found) -> float:
    """Tokens per second and GPU at `MOST_MFU`, infinite as long as nothing fits that tells the work per token."""
    winner = found.winner()
    if winner is None or winner.step is None or winner.step.mfu <= 0:
        return math.inf
    return winner.step.tokens_per_s_per_gpu * MOST_MFU / winner.step.mfu


def _rate(found: Found) -> float:
    """Tokens per second of the whole cluster with the best layout."""
    if not len(found.best) or found.best.step_s[0] <= 0:
        return 0.0
    return float(found.request.gbs * found.request.workload.seq_len / found.best.step_s[0])
