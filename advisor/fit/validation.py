"""One call from a file of runs to scored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import InputError
from advisor.fit.anchor import correction, read_anchors
from advisor.fit.committed import LeaveOut
from advisor.fit.runs import Skipped, published_runs, read_runs
from advisor.fit.validate import Row, corrected, groups_of, predict_rows


@dataclass(frozen=True, slots=True)
class Validation:
    """Rows with their predictions, and rows that could not be read; `leave_out` says what coefficients had not seen."""

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    leave_out: LeaveOut
    anchored: bool


def validate(
    path: Path | None = None, groups: Sequence[str] = (), leave_out: LeaveOut = "none", anchors: Sequence[Path] = ()
) -> Validation:
    """Predicts every run of a file (None = the published ones), of the named groups only where there are any.

    With `anchors`, files of measured runs correct the predictions; a row is never its own anchor. InputError for files
    that cannot be read and for groups that no row has.
    """
    runs, skipped = published_runs() if path is None else read_runs(path)
    if groups:
        known = sorted({name for run in runs for name in groups_of(run)} | {one.group for one in skipped})
        unknown = [name for name in groups if name not in known]
        if unknown:
            raise InputError(f"no row has the group {unknown[0]!r}", f"groups: {', '.join(known)}")
        runs = [run for run in runs if not set(groups).isdisjoint(groups_of(run))]
        skipped = [one for one in skipped if one.group in groups]
    rows = predict_rows(runs, leave_out)
    if anchors:
        found = read_anchors(anchors, leave_out)
        rows = corrected(rows, lambda run: correction(run, found, run.id))
    return Validation(tuple(rows), tuple(skipped), leave_out, bool(anchors))
