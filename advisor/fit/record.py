"""A validation as JSON: rows, summary per group, sweeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from advisor.fit.runs import Skipped
from advisor.fit.validate import Growth, Row, kendall_tau, summary, sweeps, weak_scaling


def row_record(row: Row) -> dict[str, Any]:
    """One run: what was predicted and measured; null where nothing was."""
    run, memory = row.run, row.memory
    return {
        "id": run.id,
        "group": run.group,
        "model": run.model_name,
        "system": run.cluster.system.name,
        "gpus": run.cluster.gpus,
        "precision": run.workload.precision.name,
        "moe": run.model.is_moe,
        "routing": run.workload.routing,
        "predicted_step_s": row.predicted_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "measured_step_s": run.step_s,
        "error_pct": None if row.error is None else 100 * row.error,
        "predicted_peak_allocated_gib": None if memory is None else memory.peak_allocated_gib,
        "predicted_peak_device_gib": None if memory is None else memory.peak_device_gib,
        "measured_peak_allocated_gib": run.peak_allocated_gib,
        "verdict": None if memory is None else memory.verdict,
        "measured_oom": run.oom,
        "flag": run.flag,
        "assumed": list(run.assumed),
        "skipped": None,
    }


def skipped_record(one: Skipped) -> dict[str, Any]:
    """A row that could not be read, with the reason; the same keys."""
    numbers = ("predicted_step_s", "low_s", "high_s", "measured_step_s", "error_pct", "predicted_peak_allocated_gib",
               "predicted_peak_device_gib", "measured_peak_allocated_gib", "verdict", "measured_oom")  # fmt: skip
    stated = {"id": one.id, "group": one.group, "model": one.model, "system": None, "gpus": None, "precision": None,
              "moe": None, "routing": None}  # fmt: skip
    reason = f"line {one.line}: {one.reason}"
    return {**stated, **dict.fromkeys(numbers), "flag": "", "assumed": [], "skipped": reason}


def validation_record(rows: Sequence[Row], skipped: Sequence[Skipped], leave_out: str) -> dict[str, Any]:
    """Everything that `advisor validate` found; percentages are null where a group has nothing to score."""
    scores = summary(rows, [one.group for one in skipped])
    return {
        "schema_version": 1,
        "leave_out": leave_out,
        "rows": [*map(row_record, rows), *map(skipped_record, skipped)],
        "summary": {group: dataclasses.asdict(found) for group, found in scores.items()},
        "sweeps": [dataclasses.asdict(one) for one in sweeps(rows)],
        "weak_scaling": weak_record(weak_scaling(rows)),
    }


def weak_record(series: Sequence[Growth]) -> dict[str, Any]:
    """How well growth of the step with the cluster is predicted, over series of the same layout."""
    measured = np.array([one.measured_pct for one in series])
    predicted = np.array([one.predicted_pct for one in series])
    tau = kendall_tau(predicted, measured) if len(series) > 1 else float("nan")
    return {
        "n": len(series),
        "median_abs_difference_points": float(np.median(np.abs(predicted - measured))) if series else None,
        "kendall_tau": None if np.isnan(tau) else tau,
    }
