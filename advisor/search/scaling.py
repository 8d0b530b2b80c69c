"""The best layout per GPU count: efficiency, where the layout changes, and which term of the step grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from advisor.errors import InputError
from advisor.search.dials import knob_words, shown_word
from advisor.search.offers import search_allowed
from advisor.search.options import PlanOptions
from advisor.search.plan import plan_settings
from advisor.search.request import Request, resolve
from advisor.search.sources import Setting
from advisor.search.values import whole
from advisor.spec.plan import Candidate, ScalingPoint

COMPARED = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")
RANKED = 10
"""Candidates of a count that measured runs may reorder."""
Corrected = Callable[[Request, Sequence[Candidate]], Sequence[Candidate]]


def scaling_curve(
    model: str | Path,
    gpus: Sequence[int],
    batch_rule: Literal["fixed", "scaled"],
    options: PlanOptions,
    corrected: Corrected | None = None,
) -> tuple[Request, tuple[ScalingPoint, ...]]:
    """The request at the smallest count, and one point per count in ascending order.

    `corrected` ranks the first candidates of each count anew, by what was measured of jobs like them.
    """
    counts = sorted({whole("gpus", count, 1, 10_000_000) for count in gpus})
    if len(counts) < 2:
        raise InputError("a scaling curve needs at least two GPU counts", "for example 64,128,256")
    if batch_rule not in {"fixed", "scaled"}:
        raise InputError(f"batch_rule={batch_rule!r} does not exist", "fixed or scaled")
    settings = plan_settings(model, counts[0], options)
    first = resolve(settings)
    points: list[ScalingPoint] = []
    for count in counts:
        gbs, note = first.gbs, f"fixed at that of {counts[0]} GPUs"
        if batch_rule == "scaled":
            gbs, note = max(1, first.gbs * count // counts[0]), f"in proportion to that of {counts[0]} GPUs"
        own = {**settings, "gpus": Setting(count, settings["gpus"].origin), "gbs": Setting(gbs, batch_rule, note)}
        points.append(_point(resolve(own), points, corrected))
    counted = first.with_setting("gpus", Setting(counts, settings["gpus"].origin))
    return counted, tuple(points)


def _point(request: Request, before: Sequence[ScalingPoint], corrected: Corrected | None) -> ScalingPoint:
    found = search_allowed(request)
    candidate = found.winner()
    if corrected is not None:
        candidate = next(iter(corrected(found.request, found.leading(RANKED))), None)
    fitting = [point.candidate for point in before if point.candidate is not None]
    grown, share = _grown(fitting[-1], candidate) if fitting and candidate else ("", None)
    return ScalingPoint(
        gpus=request.cluster.gpus,
        gbs=found.request.gbs,
        searched=found.searched,
        feasible=found.feasible,
        candidate=candidate,
        efficiency=_efficiency(fitting[0] if fitting else candidate, candidate),
        changed=_changed(fitting[-1], candidate) if fitting and candidate else (),
        grown_term=grown,
        grown_share=share,
    )


def _efficiency(first: Candidate | None, own: Candidate | None) -> float | None:
    if first is None or own is None or first.step is None or own.step is None:
        return None
    return own.step.tokens_per_s_per_gpu / first.step.tokens_per_s_per_gpu


def _changed(before: Candidate, after: Candidate) -> tuple[str, ...]:
    """The layout fields and knobs that differ, as "tp 2 -> 4"."""
    pairs = [(name, getattr(before.layout, name), getattr(after.layout, name)) for name in COMPARED]
    turned = zip(knob_words(before.knobs).items(), knob_words(after.knobs).values(), strict=True)
    pairs += [(name, shown_word(old), shown_word(new)) for (name, old), new in turned]
    return tuple(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


def _grown(before: Candidate, after: Candidate) -> tuple[str, float | None]:
    """The step term whose share grew most, and by how much; nothing when every share shrank."""
    if before.step is None or after.step is None:
        return "", None
    growth = {
        name: term.value / after.step.step_s - before.step.terms[name].value / before.step.step_s
        for name, term in after.step.terms.items()
        if name in before.step.terms
    }
    name = max(growth, key=lambda one: (growth[one], one), default="")
    return (name, growth[name]) if name and growth[name] > 0 else ("", None)
