"""The JSON form of an analysis, fixed by presets/schemas/trace.schema.json; times are seconds, null is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.trace.analysis import Analysis, Figures, KindFigures, Rank
from advisor.trace.classes import ClassUse
from advisor.trace.compare import Change
from advisor.trace.skew import Skew
from advisor.trace.verdict import KindVerdict, Promise

SCHEMA_VERSION = 1


def hidden_share(figures: Figures | KindFigures) -> float | None:
    """Hidden / all communication; None, never 0 or NaN, where there is none."""
    return figures.hidden_s / figures.communication_s if figures.communication_s > 0 else None


def figures_record(figures: Figures) -> dict[str, Any]:
    """One window or a mean of windows."""
    return {
        "name": figures.name,
        "step_s": figures.step_s,
        "compute_s": figures.compute_s,
        "communication_s": figures.communication_s,
        "hidden_s": figures.hidden_s,
        "exposed_s": figures.exposed_s,
        "hidden_share": hidden_share(figures),
        "copies_s": figures.copies_s,
        "idle_s": figures.idle_s,
        "host_bound_s": figures.host_bound_s,
        "kinds": {name: _kind(kind) for name, kind in figures.kinds.items()},
    }


def _kind(kind: KindFigures) -> dict[str, Any]:
    return {
        "communication_s": kind.communication_s,
        "hidden_s": kind.hidden_s,
        "exposed_s": kind.exposed_s,
        "hidden_share": hidden_share(kind),
        "calls": kind.calls,
    }


def _uses(uses: Mapping[str, ClassUse]) -> list[dict[str, Any]]:
    return [
        {"name": name, "role": use.role, "calls": use.calls, "kernel_s": use.kernel_ns / 1e9}
        for name, use in uses.items()
    ]


def rank_record(rank: Rank) -> dict[str, Any]:
    """One rank with its windows."""
    return {
        "rank": rank.rank,
        "files": [str(part.path) for part in rank.parts],
        "source": rank.source,
        "front_end": rank.front_end,
        "backend": rank.backend or None,
        "world_size": rank.world_size,
        "steps": [figures_record(step) for step in rank.steps],
        "mean": figures_record(rank.mean),
        "classes": _uses(rank.classes),
        "unknown_kernels": _uses(rank.unknown),
        "findings": list(rank.findings),
    }


def _skew(skew: Skew) -> dict[str, Any]:
    return {
        "aligned": skew.aligned,
        "slowest_rank": skew.slowest,
        "ranks": [
            {
                "rank": number,
                "clock_offset_s": one.offset_s,
                "spread_s": one.spread_s,
                "matched_collectives": one.matched,
                "waited_s": one.waited_s,
                "last": one.last,
            }
            for number, one in skew.ranks.items()
        ],
    }


def analysis_record(analysis: Analysis) -> dict[str, Any]:
    """The whole analysis."""
    return {
        "schema_version": SCHEMA_VERSION,
        "selection": analysis.selection,
        "mean": figures_record(analysis.mean),
        "ranks": [rank_record(rank) for rank in analysis.ranks],
        "skew": _skew(analysis.skew),
        "findings": list(analysis.findings),
    }


def verdicts_record(promise: Promise, found: list[KindVerdict], measured_step_s: float) -> dict[str, Any]:
    """A plan's promise beside the measured mean step."""
    return {
        "plan": str(promise.path),
        "candidate": promise.rank,
        "predicted_step_s": promise.step_s,
        "measured_step_s": measured_step_s,
        "kinds": [
            {
                "kind": one.kind,
                "predicted_hidden_s": one.predicted_hidden_s,
                "predicted_exposed_s": one.predicted_exposed_s,
                "predicted_hidden_share": one.predicted_share,
                "measured_hidden_s": one.measured_hidden_s,
                "measured_exposed_s": one.measured_exposed_s,
                "measured_hidden_share": one.measured_share,
                "verdict": one.verdict,
                "reason": one.reason,
            }
            for one in found
        ],
    }


def changes_record(found: list[Change]) -> list[dict[str, Any]]:
    """Two analyses term by term."""
    return [{"name": one.name, "here_s": one.here_s, "other_s": one.other_s, "ratio": one.ratio} for one in found]
