"""The JSON form of an improvement (presets/schemas/improve.schema.json)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from advisor.check.subject.edits import written
from advisor.cli.improved import Change, Improved
from advisor.configure.resolved import Field
from advisor.report.record import SCHEMA_VERSION, candidate_record, finding_record, in_gib, number, request_record


def record(answer: Improved) -> dict[str, Any]:
    """The whole answer: sizes in GiB, times in seconds, shares as fractions, null for what is not known."""
    subject, found = answer.subject, answer.found
    return {
        "schema_version": SCHEMA_VERSION,
        "config": subject.reading.file,
        "kind": subject.reading.kind,
        "target": subject.setup.framework,
        "request": request_record(subject.request),
        "settings": {
            name: {"value": one.value, "origin": one.origin, "note": one.note or None}
            for name, one in subject.sources.items()
        },
        "fields": [_field(one) for one in subject.fields],
        "check": {
            "verdict": subject.report.verdict,
            "findings": [
                {"rule": one.rule, "severity": one.severity, "message": one.message, "fix": one.fix, "line": one.line}
                for one in subject.report.findings
            ],
        },
        "environment": [
            {
                "name": one.name,
                "now": subject.setup.variable(one.name),
                "wanted": one.value,
                "reason": one.reason,
                "price": answer.prices[one.name].record() if one.name in answer.prices else None,
            }
            for one in subject.environment
        ],
        "measured": _measured(answer),
        "verdict": found.verdict,
        "now": candidate_record(found.now),
        "findings": [finding_record(one) for one in found.findings],
        "kept": [_change(answer, one) for one in answer.kept],
        "changed": [_change(answer, one) for one in answer.changed],
        "illegal": found.illegal,
        "pair": None if answer.pair is None else _change(answer, answer.pair),
        "best": candidate_record(found.best),
        "best_gain": number(found.best_gain),
    }


def _field(one: Field) -> dict[str, Any]:
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(one).items()}
    return {
        "field": one.path,
        **{name: plain[name] for name in ("requested", "effective", "outcome", "reason", "source")},
    }


def _measured(answer: Improved) -> dict[str, Any] | None:
    seen = answer.observed
    if seen is None:
        return None
    return {
        "files": list(seen.files),
        "step_s": None if seen.steps is None else number(seen.steps.median_s),
        "reports": 0 if seen.steps is None else seen.steps.reports,
        "peak_allocated_gib": None if seen.peak is None else in_gib(seen.peak.allocated_bytes),
    }


def _change(answer: Improved, one: Change) -> dict[str, Any]:
    priced = one.priced
    step, memory = priced.candidate.step, priced.candidate.memory
    dials = zip(priced.names, priced.before, priced.after, strict=True)
    return {
        "number": one.number,
        "dials": [{"name": name, "before": before, "after": after} for name, before, after in dials],
        "verdict": priced.verdict,
        "gain": number(priced.gain),
        "low": number(priced.low),
        "high": number(priced.high),
        "interval_kind": priced.kind,
        "step_s": None if step is None else number(step.step_s),
        "tokens_per_s_per_gpu": None if step is None else number(step.tokens_per_s_per_gpu),
        "peak_device_gib": in_gib(memory.peak_device_bytes),
        "headroom_gib": in_gib(memory.budget_bytes - memory.peak_device_bytes),
        "freed_gib": in_gib(priced.freed_bytes),
        "risks": list(priced.risks),
        "restores": list(priced.restores),
        "mathematics": priced.mathematics or None,
        "edits": [
            {"write": written(answer.subject, edit), "where": edit.where or None, "remove": edit.drop}
            for edit in one.edits
        ],
    }
