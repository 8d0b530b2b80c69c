"""Page of a validation: scores per group, sweeps, rows."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Line, Table
from advisor.cli.figures import NONE, figure
from advisor.fit.record import validation_record
from advisor.fit.validate import Row, summary, sweeps, timed, weak_scaling
from advisor.fit.validation import Validation

GROUP_COLUMNS = (
    Column("runs", "name"), Column("n"), Column("skipped"), Column("error %\nmedian"), Column("p90"), Column("bias"),
    Column("inside\n80 % interval"), Column("half\nwidth %"), Column("tau"), Column("top-3\nregret %"),
    Column("memory %\nmedian"), Column("OOM said\nto fit %"), Column("running\nsaid OOM %"),
)  # fmt: skip
ROW_COLUMNS = (
    Column("id", "name"), Column("GPUs"), Column("precision", "name"), Column("predicted\ns"),
    Column("80 %\ninterval", "name"),
    Column("measured\ns"), Column("error\n%"), Column("peak GiB\npredicted"), Column("\nmeasured"),
    Column("verdict", "name"),
)  # fmt: skip
FLAG_COLUMNS = (
    Column("id", "name"), Column("predicted\ns"), Column("80 %\ninterval", "name"), Column("measured\ns"),
    Column("error\n%"), Column("flag", "text"),
)  # fmt: skip
FEW = 40


def validate_document(found: Validation, verbose: bool) -> Document:
    """Summary, sweeps and rows, flagged ones apart; of more than `FEW` rows only the worst ten unless `verbose`."""
    record = validation_record(found.rows, found.skipped, found.leave_out)
    hints = () if verbose or len(found.rows) <= FEW else ("every row: -v, or --format csv",)
    return Document(tuple(_blocks(found, verbose)), record, record["rows"], hints)


def _blocks(found: Validation, verbose: bool) -> Iterator[Block]:
    how = "by coefficients fitted on the published runs"
    if found.leave_out != "none":
        how = f"each by coefficients fitted without the runs of its {found.leave_out}"
    anchored = ", corrected by anchors" if found.anchored else ""
    yield Line(f"{len(found.rows)} runs, predicted {how}{anchored}", "heading")
    scores = summary(found.rows, [one.group for one in found.skipped])
    rows = tuple(
        (
            name, str(one.n), str(one.skipped), _pct(one.median_abs_error_pct), _pct(one.p90_abs_error_pct),
            _signed(one.bias_pct), _pct(one.interval_coverage_pct), _pct(one.interval_half_width_pct),
            figure(one.kendall_tau), _pct(one.top3_regret_pct), _pct(one.memory_median_abs_error_pct),
            _pct(one.oom_called_fits_pct), _pct(one.fits_called_oom_pct),
        )
        for name, one in scores.items()
    )  # fmt: skip
    yield Table("Error of the step time (predicted / measured - 1) and of memory", GROUP_COLUMNS, rows)
    if found_sweeps := sweeps(found.rows):
        cells = tuple(
            (one.key, str(one.n), f"{one.kendall_tau:.2f}", f"{one.top3_regret_pct:.1f}") for one in found_sweeps
        )
        head = (Column("sweep", "name"), Column("n"), Column("Kendall tau"), Column("top-3 regret %"))
        yield Table("Order inside sweeps", head, cells)
    if series := weak_scaling(found.rows):
        off = sorted(abs(one.predicted_pct - one.measured_pct) for one in series)[len(series) // 2]
        yield Line(f"weak scaling: growth of the step off by {off:.1f} points (median of {len(series)} series)")
    yield from _rows(found, verbose)
    if flagged := [row for row in found.rows if row.run.flag]:
        shown = tuple((row.run.id, *_times(row), row.run.flag) for row in flagged)
        yield Table("Flagged runs, in no score", FLAG_COLUMNS, shown)
    if found.skipped:
        lines = tuple((str(one.line), one.id, one.reason) for one in found.skipped)
        yield Table("Rows left out", (Column("line"), Column("id", "name"), Column("reason", "text")), lines)


def _rows(found: Validation, verbose: bool) -> Iterator[Block]:
    shown, title = [row for row in found.rows if not row.run.flag], "Runs"
    if not verbose and len(shown) > FEW:
        scored = [row for row in shown if timed(row.run)]
        shown, title = sorted(scored, key=_size, reverse=True)[:10], "The ten worst"
    yield Table(title, ROW_COLUMNS, tuple(map(_cells, shown)))


def _size(row: Row) -> float:
    return abs(row.error or 0.0)


def _cells(row: Row) -> tuple[str, ...]:
    run, memory = row.run, row.memory
    verdict = NONE if memory is None else memory.verdict + (" (was OOM)" if run.oom else "")
    return (
        run.id, str(run.cluster.gpus), run.workload.precision.name, *_times(row),
        NONE if memory is None else figure(memory.peak_allocated_gib), figure(run.peak_allocated_gib), verdict,
    )  # fmt: skip


def _times(row: Row) -> tuple[str, str, str, str]:
    """Predicted, its interval, measured, error in percent."""
    error = _signed(None if row.error is None else 100 * row.error)
    return figure(row.predicted_s), f"{figure(row.low_s)}-{figure(row.high_s)}", figure(row.run.step_s), error


def _pct(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.1f}"
