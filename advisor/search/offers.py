"""What knobs that change the mathematics would bring: a search of a short list of rows with each of them in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from advisor.search import rank
from advisor.search.dials import ALLOWANCES, Allowance
from advisor.search.merge import regroup
from advisor.search.parts import Part
from advisor.search.request import Request
from advisor.search.solve import Found, search, search_parts
from advisor.search.sources import Setting
from advisor.search.sweep import MOST_MISSES
from advisor.spec.hardware import Gpu
from advisor.spec.plan import Offer
from advisor.spec.precision import PRECISIONS, Precision

SHORT_LIST = MOST_MISSES
BATCH_GROWTH = 2


def eight_bit(gpu: Gpu) -> Precision | None:
    """The 8-bit precision that a GPU's vendor recipes use: MXFP8 where there are units for it, else current scaling."""
    for name in ("mxfp8", "fp8-current"):
        if PRECISIONS[name].gemm in gpu.peak_tflops:
            return PRECISIONS[name]
    return None


def _fp8(request: Request) -> Request | None:
    precision = eight_bit(request.cluster.gpu)
    if precision is None or request.workload.precision.quantised:
        return None
    workload = dataclasses.replace(request.workload, precision=precision)
    setting = Setting(precision.name, "allow fp8", f"faster than {request.workload.precision.name}")
    return request.with_setting("precision", setting, workload=workload)


def _token_drop(request: Request) -> Request | None:
    if not request.model.is_moe or request.workload.routing == "token-drop":
        return None
    workload = dataclasses.replace(request.workload, routing="token-drop", capacity_factor=1.0)
    return request.with_setting("routing", Setting("token-drop", "allow token-drop"), workload=workload)


def _muon(request: Request) -> Request | None:
    if request.workload.optimizer == "muon":
        return None
    workload = dataclasses.replace(request.workload, optimizer="muon")
    return request.with_setting("optimizer", Setting("muon", "allow muon"), workload=workload)


def _batch(request: Request) -> Request | None:
    gbs = request.gbs * BATCH_GROWTH
    return request.with_setting("gbs", Setting(gbs, "allow gbs", f"{BATCH_GROWTH} x {request.gbs}"), gbs=gbs)


WHOLE_REQUEST: dict[str, Callable[[Request], Request | None]] = {
    "fp8": _fp8,
    "token-drop": _token_drop,
    "gbs": _batch,
    "muon": _muon,
}


def rate(request: Request, entries: rank.Entries) -> float | None:
    """Sequences per second of the first entry, None without one or outside training."""
    if not len(entries) or entries.step_s[0] <= 0:
        return None
    return float(request.gbs / entries.step_s[0])


def search_allowed(request: Request) -> Found:
    """The search of a request, repeated with every allowed change of the whole request; a change that helps is kept.

    "Helps" is more tokens per second, or, for the objective memory, less memory; counts are those of the kept search.
    """
    found = search(request)
    for name in sorted(request.allow & WHOLE_REQUEST.keys()):
        changed = WHOLE_REQUEST[name](found.request)
        if changed is None:
            continue
        other = search(changed)
        found = other if _better(other, found) else found
    return found


def _better(one: Found, other: Found) -> bool:
    if not len(one.best) or not len(other.best):
        return len(one.best) > 0
    if one.request.objective == "memory":
        return bool(one.best.device_bytes[0] < other.best.device_bytes[0])
    return (rate(one.request, one.best) or 0.0) > (rate(other.request, other.best) or 0.0)


def _short_list(found: Found) -> tuple[Part, ...]:
    top = found.best.take(np.arange(min(SHORT_LIST, len(found.best))))
    chosen = rank.joined([top, found.nearest_miss])
    rows: dict[int, set[int]] = {}
    for number, row in zip(chosen.part.tolist(), chosen.row.tolist(), strict=True):
        rows.setdefault(number, set()).add(row)
    return regroup([found.parts[number].take(np.array(sorted(own))) for number, own in sorted(rows.items())])


def offers(found: Found) -> tuple[Offer, ...]:
    """An offer for every change that is not allowed but would bring what is asked for, the largest gain first.

    Each is searched on the best and the nearly fitting rows of `found` (`SHORT_LIST` of each), all knobs included.
    """
    parts = _short_list(found)
    made = [_offer(found, parts, one) for one in ALLOWANCES.values() if one.name not in found.request.allow]
    useful = [one for one in made if one is not None]
    by_memory = found.request.objective == "memory"

    def brings(one: Offer) -> float:
        size = one.freed_bytes if by_memory else one.gain
        return np.inf if size is None else size

    return tuple(sorted(useful, key=lambda one: (-brings(one), one.allow)))


def _changed(found: Found, parts: tuple[Part, ...], allowance: Allowance) -> tuple[Request, tuple[Part, ...]] | None:
    """The request and the rows with one change made, None where it does not apply."""
    request = found.request
    if allowance.knob:
        if allowance.knob in request.fixed:
            return None
        return request, tuple(part.with_knob(allowance.knob, allowance.value) for part in parts)
    changed = WHOLE_REQUEST[allowance.name](request)
    if changed is None:
        return None
    if changed.gbs != request.gbs:
        parts = tuple(part.with_batch(changed.gbs) for part in parts)
    return changed, parts


def _offer(found: Found, parts: tuple[Part, ...], allowance: Allowance) -> Offer | None:
    made = _changed(found, parts, allowance)
    if made is None:
        return None
    request, rows = made
    other = search_parts(request, rows, only_best=True)
    if not len(other.best):
        return None
    before, after = rate(found.request, found.best), rate(request, other.best)
    gain = None if before is None or after is None else after / before - 1
    freed = float(found.best.device_bytes[0] - other.best.device_bytes[0]) if len(found.best) else None
    candidate = other.winner() if _useful(request, gain, freed) else None
    if candidate is None:
        return None
    return Offer(allowance.name, allowance.title, gain, freed, dataclasses.replace(candidate, rank=0))


def _useful(request: Request, gain: float | None, freed: float | None) -> bool:
    """Room for the objective memory, else speed, or room at the same speed; None where nothing fits without it."""
    if request.objective == "memory":
        return freed is None or freed > 0
    return gain is None or gain > 0 or (gain > 1 / rank.EQUAL_TIME - 1 and freed is not None and freed > 0)
