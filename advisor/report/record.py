"""The JSON form of answers: plain mappings with sizes in GiB and times in seconds, null for what is not known.

The form is fixed by presets/schemas/*.schema.json; `SCHEMA_VERSION` grows when a field changes its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advisor.search.dials import knob_words
from advisor.search.request import Request
from advisor.search.stages import layout_string
from advisor.spec.plan import Candidate, Dial, Finding, MemoryEstimate, Offer, Reason, ScalingPoint, StepEstimate, Term
from advisor.units import gib

if TYPE_CHECKING:
    from advisor.fit.references import Measured
    from advisor.report.answers import Estimate, Explanation, Plan, Scaling
    from advisor.search.routing import Imbalance

SCHEMA_VERSION = 1


def number(value: float | None) -> float | None:
    """A finite number, or None."""
    return None if value is None or not math.isfinite(value) else float(value)


def in_gib(n_bytes: float | None) -> float | None:
    """Bytes as GiB, or None."""
    return None if n_bytes is None else number(gib(float(n_bytes)))


def _terms(terms: Mapping[str, Term], scale: float = 1.0) -> dict[str, Any]:
    return {name: {"value": number(term.value / scale), "kind": term.kind} for name, term in terms.items()}


def _layout(candidate: Candidate) -> dict[str, Any]:
    layout = candidate.layout
    names = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "edp", "mbs", "gbs", "num_microbatches")
    found = {name: getattr(layout, name) for name in names}
    found["pipeline_layout"] = layout_string(layout.split, candidate.mtp_depth) if layout.pp > 1 else None
    return found


def _memory(memory: MemoryEstimate) -> dict[str, Any]:
    return {
        "peak_allocated_gib": in_gib(memory.peak_allocated_bytes),
        "peak_device_gib": in_gib(memory.peak_device_bytes),
        "budget_gib": in_gib(memory.budget_bytes),
        "headroom_gib": in_gib(memory.budget_bytes - memory.peak_device_bytes),
        "worst_stage": memory.worst_stage,
        "worst_moment": memory.worst_moment,
        "terms_gib": _terms(memory.terms, scale=2.0**30),
        "host_gib": in_gib(memory.host_bytes),
        "padded_vocab": memory.padded_vocab,
        "stages_gib": [_stage(stage) for stage in memory.stages],
    }


def _stage(stage: Mapping[str, float]) -> dict[str, Any]:
    """Peak of one representative stage per moment, and which pipeline rank it is."""
    return {name: int(value) if name == "rank" else in_gib(value) for name, value in stage.items()}


def _step(step: StepEstimate) -> dict[str, Any]:
    return {
        "step_s": number(step.step_s),
        "low_s": number(step.low_s),
        "high_s": number(step.high_s),
        "interval_level": step.interval_level,
        "terms_s": _terms(step.terms),
        "exposed_s": {name: number(value) for name, value in step.exposed_s.items()},
        "hidden_s": {name: number(value) for name, value in step.hidden_s.items()},
        "bubble_s": number(step.bubble_s),
    }


def finding_record(finding: Finding) -> dict[str, str]:
    """JSON form of one finding."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.message,
        "fix": finding.fix,
    }


def candidate_record(candidate: Candidate | None) -> dict[str, Any] | None:
    """JSON form of one candidate; `step` and the rates are null outside training."""
    if candidate is None:
        return None
    step = candidate.step
    return {
        "rank": candidate.rank,
        "layout": _layout(candidate),
        "knobs": knob_words(candidate.knobs),
        "memory": _memory(candidate.memory),
        "step": None if step is None else _step(step),
        "tokens_per_s_per_gpu": None if step is None else number(step.tokens_per_s_per_gpu),
        "tflops_per_gpu": None if step is None else number(step.tflops_per_gpu),
        "mfu": None if step is None else number(step.mfu),
        "mfu_bf16": None if step is None else number(step.mfu_bf16),
        "findings": [finding_record(finding) for finding in candidate.findings],
    }


def request_record(request: Request) -> dict[str, Any]:
    """The request as resolved: values by name, with `origins` and `notes` beside them."""
    found: dict[str, Any] = {name: _plain(setting.value) for name, setting in request.settings.items()}
    found["origins"] = {name: setting.origin for name, setting in request.settings.items()}
    found["notes"] = {name: setting.note for name, setting in request.settings.items() if setting.note}
    return found


def _plain(value: object) -> Any:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_plain(entry) for entry in value]
    return str(value)


def _offer(offer: Offer) -> dict[str, Any]:
    return {
        "allow": offer.allow,
        "title": offer.title,
        "gain": number(offer.gain),
        "freed_gib": in_gib(offer.freed_bytes),
        "candidate": candidate_record(offer.candidate),
    }


def imbalance_record(found: Imbalance | None) -> dict[str, Any] | None:
    """JSON form of what router statistics cost a layout, and of what would help."""
    if found is None:
        return None
    stats = found.stats
    return {
        "source": stats.source,
        "form": stats.form,
        "layers": len(stats.layers),
        "first_layer": stats.first,
        "experts": stats.loads[0].size,
        "ep": found.ep,
        "hottest_share": number(found.hottest),
        "worst_share": number(found.worst),
        "worst_layer": found.worst_layer,
        "worst_rank": found.worst_rank,
        "slowdown": number(found.slowdown),
        "extra_gib": in_gib(found.extra_bytes),
        "changes": [
            {
                "name": one.name,
                "value": one.value,
                "hottest_share": number(one.hottest),
                "dropped_share": number(one.dropped),
                "verdict": one.verdict,
                "gain": number(one.gain),
                "freed_gib": in_gib(one.freed_bytes),
            }
            for one in found.changes
        ],
    }


def measured_record(found: Measured | None) -> dict[str, Any] | None:
    """JSON form of a measured rate beside the dense peak and public figures."""
    if found is None:
        return None
    return {
        "tflops_per_gpu": number(found.tflops),
        "mfu": number(found.mfu),
        "dense_peak_tflops": number(found.peak_tflops),
        "published": [
            {
                "tflops_per_gpu": number(one.tflops),
                "software": one.software,
                "precision": one.precision,
                "gpus": one.gpus,
                "source": one.source,
            }
            for one in found.published
        ],
        "findings": [finding_record(finding) for finding in found.findings],
    }


def plan_record(plan: Plan) -> dict[str, Any]:
    """JSON form of a plan, as in presets/schemas/plan.schema.json."""
    return {
        "schema_version": SCHEMA_VERSION,
        "request": request_record(plan.request),
        "searched": plan.searched,
        "feasible": plan.feasible,
        "rejected": dict(plan.rejected),
        "candidates": [candidate_record(candidate) for candidate in plan.candidates],
        "baseline": candidate_record(plan.baseline),
        "baseline_name": plan.baseline_name or None,
        "pareto": [candidate_record(candidate) for candidate in plan.pareto],
        "families": [candidate_record(candidate) for candidate in plan.families],
        "offers": [_offer(offer) for offer in plan.offers],
        "router": imbalance_record(plan.imbalance),
        "measured": measured_record(plan.measured),
    }


def estimate_record(estimate: Estimate) -> dict[str, Any]:
    """JSON form of an estimate, as in presets/schemas/estimate.schema.json."""
    return {
        "schema_version": SCHEMA_VERSION,
        "request": request_record(estimate.request),
        "verdict": estimate.verdict,
        "candidate": candidate_record(estimate.candidate),
        "findings": [finding_record(finding) for finding in estimate.findings],
        "router": imbalance_record(estimate.imbalance),
        "measured": measured_record(estimate.measured),
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "of": reason.of,
        "name": reason.name,
        "message": reason.message,
        "value": number(reason.value),
        "reference": number(reason.reference),
        "unit": reason.unit,
        "fix": reason.fix,
    }


def _dial(dial: Dial) -> dict[str, Any]:
    return {
        "name": dial.name,
        "before": dial.before,
        "after": dial.after,
        "verdict": dial.verdict,
        "gain": number(dial.gain),
        "freed_gib": in_gib(dial.freed_bytes),
        "allow": dial.allow or None,
    }


def explanation_record(found: Explanation) -> dict[str, Any]:
    """JSON form of an explanation: the estimate record with the reasons and the ways out added."""
    return {
        **estimate_record(found.estimate),
        "reasons": [_reason(reason) for reason in found.reasons],
        "nearest": candidate_record(found.nearest),
        "changes": list(found.changes),
        "dials": [_dial(dial) for dial in found.dials],
        "best": candidate_record(found.best),
    }


def _point(point: ScalingPoint) -> dict[str, Any]:
    return {
        "gpus": point.gpus,
        "gbs": point.gbs,
        "searched": point.searched,
        "feasible": point.feasible,
        "candidate": candidate_record(point.candidate),
        "efficiency": number(point.efficiency),
        "changed": list(point.changed),
        "grown_term": point.grown_term or None,
        "grown_share": number(point.grown_share),
    }


def scaling_record(scaling: Scaling) -> dict[str, Any]:
    """JSON form of a scaling curve."""
    return {
        "schema_version": SCHEMA_VERSION,
        "request": request_record(scaling.request),
        "batch_rule": scaling.batch_rule,
        "points": [_point(point) for point in scaling.points],
    }
