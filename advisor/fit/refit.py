"""Refits everything that is committed from the published runs: `python -m advisor.fit.refit [PROFILES]`.

Deterministic, and independent of what is committed already: every fit begins at the starting values. Written are the
values in fitted/*.yaml, factors.json, intervals.yaml, runs/predictions.csv and pairs.yaml.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor import data, files
from advisor.cost import interval, profile
from advisor.fit import committed
from advisor.fit.calibrate import LeftOut, leave_out
from advisor.fit.dials import STACK_DIALS
from advisor.fit.intervals import interval_class, quantiles
from advisor.fit.pairs import widths
from advisor.fit.runs import Run, published_runs
from advisor.fit.validate import Row, predict_rows, summary, timed
from advisor.fit.write import write_fit

FITTED_GROUPS = ("bridge", "dgxc", "dgxc-log", "moefold-t3", "seqsel-t5", "simumax-b200")
"""Groups that the committed coefficients are fitted on: custom A100 stacks and optimisation logs are not."""
NOTE = "fit on profiles/runs (advisor/fit/calibrate.py)"
_PAIRS = re.compile(r"^  \d+: \{width: .*\}\n", re.MULTILINE)
_CLASS = re.compile(r"^  [a-z0-9-]+: \{low: .*kind: fitted\}\n", re.MULTILINE)


def refit(folder: Path, runs: Sequence[Run]) -> None:
    """Fits, with and without every model, GPU and group, and writes the files of `folder`.

    `folder` is the profiles folder in use (ADVISOR_PROFILES, or that of the checkout): what is written is read again.
    """
    chosen = [run for run in runs if run.group in FITTED_GROUPS and timed(run)]
    found = leave_out(
        chosen,
        {
            "model": lambda run: run.model_name,
            "gpu": lambda run: run.cluster.gpu.name,
            "group": lambda run: run.group,
        },
    )
    own = {name: _own(name, runs) for name in committed.stacks()}
    write_fit(found.fit, folder / "fitted", NOTE)
    record = {
        "source": "advisor/fit/refit.py on runs/published_runs.csv: factors on the starting values, dial by dial",
        **_record(found),
        "stacks": {name: _record(one) for name, one in own.items()},
    }
    files.write_text(folder / committed.FACTORS, _compact(record))
    forget()
    files.write_text(folder / committed.FACTORS, _compact({**record, "seen": seen(chosen)}))
    forget()
    rows = predict_rows(runs, "model")
    write_intervals(rows, folder / interval.QUANTILES)
    forget()
    write_predictions(predict_rows(runs, "model"), folder / "runs" / "predictions.csv")
    write_pairs(predict_rows(runs, with_memory=False), folder / "pairs.yaml")


def seen(runs: Sequence[Run]) -> dict[str, Any]:
    """The runs of a fit by group, and [median, 90th percentile] of the error in % without their model and their GPU."""
    kinds: tuple[committed.LeaveOut, ...] = ("model", "gpu")
    found = {kind: summary(predict_rows(runs, kind, with_memory=False)) for kind in kinds}
    errors = {
        kind: {
            group: [round(one.median_abs_error_pct or 0.0, 2), round(one.p90_abs_error_pct or 0.0, 2)]
            for group, one in of.items()
        }
        for kind, of in found.items()
    }
    return {"runs": {group: one.n for group, one in found["model"].items()}, "left_out_error_pct": errors}


def _own(name: str, runs: Sequence[Run]) -> LeftOut:
    members = [run for run in runs if run.group == name and timed(run)]
    return leave_out(members, {"own": committed.stack_key}, {}, STACK_DIALS)


def _record(found: LeftOut) -> dict[str, Any]:
    def short(values: Any) -> list[float]:
        return [round(float(value), 4) for value in values]

    left_out: Any = {name: {key: short(one) for key, one in of.items()} for name, of in found.factors.items()}
    keys = [dial.key for dial in found.fit.dials]
    return {"dials": keys, "factors": short(found.fit.factors), "left_out": left_out.get("own", left_out)}


def _compact(record: Mapping[str, Any]) -> str:
    """JSON with one list of numbers a line."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\[[\d.,\s-]+\]", lambda match: re.sub(r"\s+", " ", match[0]), text) + "\n"


def forget() -> None:
    """Read the files anew that were just written."""
    profile.forget()
    interval.forget()
    committed.factors.cache_clear()


def write_intervals(rows: Sequence[Row], path: Path) -> None:
    """Puts the quantiles of left-out errors into the file, in place of the fitted ones there."""
    counted = [row for row in rows if timed(row.run)]
    errors = np.array([row.error for row in counted], dtype=np.float64)
    found = quantiles([row.run for row in counted], errors)
    lines = [
        f"  {name}: {{low: {one['low']}, high: {one['high']}, n: {one['n']}, kind: fitted}}\n"
        for name, one in found.items()
    ]
    text = _CLASS.sub("", path.read_text(encoding="utf-8"))
    files.write_text(path, text.replace("classes:\n", "classes:\n" + "".join(lines)))


def write_pairs(rows: Sequence[Row], path: Path) -> None:
    """Puts the widths of the error of predicted ratios into the file, and the dials that single turns move."""
    found, seen = widths(rows)
    lines = "".join(f"  {count}: {{width: {one['width']}, n: {one['n']}}}\n" for count, one in found.items())
    text = _PAIRS.sub("", path.read_text(encoding="utf-8")).replace("turned:\n", f"turned:\n{lines}")
    files.write_text(path, re.sub(r"(?m)^seen: \[[^]]*\]", f"seen: [{', '.join(seen)}]", text))


def write_predictions(rows: Sequence[Row], path: Path) -> None:
    """One line per published run: measured, predicted without its model, interval, and what memory says."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(_prediction(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_prediction(row) for row in rows)
    files.write_text(path, text.getvalue())


def _prediction(row: Row) -> dict[str, str]:
    run = row.run
    return {
        "id": run.id,
        "group": run.group,
        "gpu": run.cluster.gpu.name,
        "precision": run.workload.precision.name,
        "class": interval_class(run),
        "counts": "yes" if timed(run) else "no",
        "measured_step_s": "" if run.step_s is None else f"{run.step_s:.4g}",
        "predicted_step_s": f"{row.predicted_s:.4g}",
        "low_s": f"{row.low_s:.4g}",
        "high_s": f"{row.high_s:.4g}",
        "error_pct": "" if row.error is None else f"{100 * row.error:.1f}",
        "predicted_peak_allocated_gib": f"{row.memory.peak_allocated_gib:.2f}" if row.memory else "",
        "verdict": row.memory.verdict if row.memory else "",
    }


def main() -> None:
    """Refit the profiles of this checkout, or of the folder given."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else data.PACKAGE_DIR.parent / "profiles"
    if not (folder / "fitted" / "default.yaml").is_file():
        sys.exit(f"error: {folder} is no folder of profiles: fitted/default.yaml is missing")
    os.environ["ADVISOR_PROFILES"] = str(folder)
    refit(folder, published_runs()[0])


if __name__ == "__main__":
    main()
