"""Page of a calibration with trials: every trial before and after, what changed, and what was left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import NONE, figure
from advisor.cost.profile import load_profile
from advisor.fit.changed import before, origin
from advisor.fit.trials import TrialFit, median_pct
from advisor.trial.calibration import Fitted, TrialCalibration


def trials_document(found: TrialCalibration, written: str | None) -> Document:
    """A fit per GPU; `written` is the system file that holds it, None where none was asked for."""
    record = {
        "schema_version": 1,
        "environment": dict(found.measured.environment),
        "fits": [_fit_record(one) for one in found.fits],
        "left_out": [dataclasses.asdict(one) for one in found.measured.left],
    }
    rows = [{"gpu": one.fit.gpu.name, **row} for one in found.fits for row in _trial_rows(one)]
    hint = "--out mine.yaml writes the system with them, for advisor plan --system mine.yaml"
    if written is not None:
        hint = f"next: advisor plan --system {written} ..."
    return Document(tuple(_blocks(found)), record, rows, (hint,))


def _fit_record(one: Fitted) -> dict[str, Any]:
    fit = one.fit
    errors = {"before": fit.before, "after": fit.after, "left_out": fit.left_out}
    return {
        "gpu": fit.gpu.name,
        "system": one.system,
        "median_abs_error_pct": {name: _or_none(median_pct(values)) for name, values in errors.items()},
        "dials": list(fit.dials),
        "coefficients": {name: dataclasses.asdict(value) for name, value in fit.changed.items()},
        "trials": _trial_rows(one),
    }


def _trial_rows(one: Fitted) -> list[dict[str, Any]]:
    fit = one.fit
    return [
        {
            "name": timed.run.id,
            "model": timed.run.model.name,
            "repeats": timed.repeats,
            "proxy_layers": timed.proxy_layers,
            "measured_step_s": timed.run.step_s,
            "spread": timed.spread,
            "error_before_pct": _pct(fit.before[i]),
            "error_after_pct": _pct(fit.after[i]),
            "error_left_out_pct": _pct(fit.left_out[i]),
        }
        for i, timed in enumerate(one.trials)
    ]


def _pct(log_error: float) -> float | None:
    return _or_none(float(100 * np.expm1(log_error)))


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value


def _blocks(found: TrialCalibration) -> Iterator[Block]:
    for one in found.fits:
        fit = one.fit
        errors = [_said(median_pct(values)) for values in (fit.before, fit.after, fit.left_out)]
        yield Line(
            f"{fit.gpu.name}: {len(fit.runs)} trials, median error of the step {errors[0]} before, {errors[1]} after, "
            f"{errors[2]} for a trial that the fit has not seen",
            "heading",
        )
        if median_pct(fit.after) >= median_pct(fit.before):
            yield Line("no closer than before: measure again on a quiet machine, or more layouts", "bad")
        yield _trials(one)
        yield _coefficients(fit) if fit.changed else Line("no coefficient moves: the trials are as predicted", "dim")
    yield Facts("measured on", tuple((name, str(value), "") for name, value in found.measured.environment.items()))
    for left in found.measured.left:
        yield Line(f"left out: {left.name}: {left.reason}", "dim")


def _said(pct: float) -> str:
    return NONE if np.isnan(pct) else f"{pct:.1f} %"


def _trials(one: Fitted) -> Table:
    columns = (
        Column("trial", "name"), Column("model", "name"), Column("runs"), Column("measured s\n± %"),
        Column("error %\nbefore"), Column("after"), Column("left out"),
    )  # fmt: skip
    rows = tuple(
        (
            row["name"] if row["proxy_layers"] is None else f"{row['name']} ({row['proxy_layers']} layers)",
            row["model"], str(row["repeats"]), f"{figure(row['measured_step_s'])}\n{100 * row['spread']:.0f}",
            *(_signed(row[f"error_{when}_pct"]) for when in ("before", "after", "left_out")),
        )
        for row in _trial_rows(one)
    )  # fmt: skip
    return Table("predicted over measured step", columns, rows)


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.1f}"


def _coefficients(fit: TrialFit) -> Table:
    was = load_profile(fit.gpu)
    columns = (
        Column("coefficient", "name"), Column("was"), Column("is"), Column("bounds"), Column("started from", "text"),
    )  # fmt: skip
    rows = []
    for name, one in fit.changed.items():
        old, unit = before(was, name)
        bounds = f"{figure(one.low / unit)} - {figure(one.high / unit)}"
        rows.append((name, figure(old.value / unit), figure(one.value / unit), bounds, origin(one.source)))
    return Table("fitted", columns, tuple(rows))
