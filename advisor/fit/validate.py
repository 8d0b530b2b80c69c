"""Scores predictions against measured runs: error per group, bias, coverage of the interval, order inside sweeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.cost.interval import interval
from advisor.fit.committed import LeaveOut, left_out_key, profile_of, stack_key, stacks, sweep_of
from advisor.fit.intervals import interval_class, unstated
from advisor.fit.memory import MemoryVerdict, memory_verdict
from advisor.fit.predict import Jobs
from advisor.fit.runs import Run
from advisor.spec.layout import Array, Fsdp, table

SWEEP_SIZE = 8
"""Running rows a sweep needs before its order is scored."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run with its prediction; `error` is predicted / measured - 1 (None where nothing was measured)."""

    run: Run
    predicted_s: float
    low_s: float
    high_s: float
    memory: MemoryVerdict | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the step time."""
        return None if self.run.step_s is None else self.predicted_s / self.run.step_s - 1

    @property
    def covered(self) -> bool:
        """Whether the measured step lies in the interval."""
        return self.run.step_s is not None and self.low_s <= self.run.step_s <= self.high_s


@dataclass(frozen=True, slots=True)
class Summary:
    """Scores of one group in percent; None where nothing can be scored.

    Errors of the step: median and 90th percentile of their absolute value, median with sign. tau is the median and the
    regret the worst over the group's sweeps. Memory: median absolute error of the allocated peak, runs out of memory
    that are said to fit, running ones that are said not to.
    """

    n: int
    skipped: int
    median_abs_error_pct: float | None
    p90_abs_error_pct: float | None
    bias_pct: float | None
    interval_coverage_pct: float | None
    interval_half_width_pct: float | None
    kendall_tau: float | None
    top3_regret_pct: float | None
    memory_median_abs_error_pct: float | None
    oom_called_fits_pct: float | None
    fits_called_oom_pct: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Order inside one sweep (same model, GPUs and sequence): tau, and what our best three lose to the sweep's best."""

    key: str
    n: int
    kendall_tau: float
    top3_regret_pct: float


def predict_rows(runs: Sequence[Run], leave_out: LeaveOut = "none", with_memory: bool = True) -> list[Row]:
    """Predictions of runs; with `leave_out`, each from coefficients fitted without its model, GPU or group."""

    def key(run: Run) -> str:
        own = f"{run.group} {stack_key(run)}" if run.group in stacks() else ""
        return f"{own} {left_out_key(run, leave_out)}"

    seconds = Jobs(runs, key).seconds(lambda run: profile_of(run, leave_out))
    rows = []
    for run, predicted_s in zip(runs, seconds.tolist(), strict=True):
        columns = table([run.layout], [run.knobs])
        profile = profile_of(run)
        low, high = interval(
            run.workload, run.model, run.cluster, columns, profile,
            kind=interval_class(run), unknown=unstated(run),
        )  # fmt: skip
        found = memory_verdict(run) if with_memory else None
        rows.append(Row(run, predicted_s, predicted_s * low, predicted_s * high, found))
    return rows


def groups_of(run: Run) -> tuple[str, ...]:
    """Groups a run counts in: its own, and dense or MoE apart where a source has both."""
    if run.group in ("bridge", "dgxc"):
        return run.group, f"{run.group}-{'moe' if run.model.is_moe else 'dense'}"
    return (run.group,)


def timed(run: Run) -> bool:
    """Whether a run counts in the errors of the step: measured, without a flag, with a recipe that is known.

    Of moefold-t3 only rows with expert parallelism and without FSDP: recipes of the others are not stated.
    """
    vague = run.group == "moefold-t3" and (run.knobs.fsdp != Fsdp.none or run.layout.ep == 1)
    return run.scored and not vague


def summary(rows: Sequence[Row], skipped: Sequence[str] = ()) -> dict[str, Summary]:
    """Scores per group; `skipped` are the groups of rows that could not be read. Flagged rows count nowhere."""
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for group in groups_of(row.run):
            members[group].append(row)
    for group in skipped:
        members.setdefault(group, [])
    found = sweeps(rows)
    return {group: _summary(group, of, found, list(skipped).count(group)) for group, of in sorted(members.items())}


def _summary(group: str, rows: Sequence[Row], found: Sequence[Sweep], unread: int) -> Summary:
    counted = [row for row in rows if timed(row.run)]
    errors = 100 * np.array([row.error for row in counted], dtype=np.float64)
    widths = np.array([(row.high_s - row.low_s) / 2 / row.predicted_s for row in counted])
    own = [one for one in found if one.key.startswith(f"{group} ")]
    peaks = [
        100 * abs(row.memory.peak_allocated_gib / row.run.peak_allocated_gib - 1)
        for row in rows if row.memory is not None and row.run.peak_allocated_gib and not row.run.flag
    ]  # fmt: skip
    judged = [row for row in rows if row.memory is not None and not row.run.flag]
    failed = [row for row in judged if row.run.oom]
    ran = [row for row in judged if row.run.step_s is not None]
    return Summary(
        n=len(counted),
        skipped=unread,
        median_abs_error_pct=_quantile(np.abs(errors), 0.5),
        p90_abs_error_pct=_quantile(np.abs(errors), 0.9),
        bias_pct=_quantile(errors, 0.5),
        interval_coverage_pct=100 * sum(row.covered for row in counted) / len(counted) if counted else None,
        interval_half_width_pct=_quantile(100 * widths, 0.5),
        kendall_tau=_quantile(np.array([one.kendall_tau for one in own]), 0.5),
        top3_regret_pct=max((one.top3_regret_pct for one in own), default=None),
        memory_median_abs_error_pct=_quantile(np.array(peaks), 0.5),
        oom_called_fits_pct=_share(failed, "fits"),
        fits_called_oom_pct=_share(ran, "oom"),
    )


def _quantile(values: Array, q: float) -> float | None:
    return float(np.quantile(values, q)) if values.size else None


def _share(rows: Sequence[Row], verdict: str) -> float | None:
    wrong = sum(row.memory is not None and row.memory.verdict == verdict for row in rows)
    return 100 * wrong / len(rows) if rows else None


def kendall_tau(predicted: Array, measured: Array) -> float:
    """Kendall's tau-b of two rankings, ties counted; nan for fewer than two rows or a constant."""
    one = np.sign(predicted[:, None] - predicted[None, :])
    other = np.sign(measured[:, None] - measured[None, :])
    ties = np.sqrt((one**2).sum() * (other**2).sum())
    return float((one * other).sum() / ties) if ties else float("nan")


def sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """Sweeps with at least `SWEEP_SIZE` running rows of one source, model, cluster size and sequence length."""
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.run.scored:
            members[sweep_of(row.run)].append(row)
    found = (_sweep(key, of) for key, of in sorted(members.items()) if len(of) >= SWEEP_SIZE)
    return [one for one in found if not np.isnan(one.kendall_tau)]


def _sweep(key: str, rows: Sequence[Row]) -> Sweep:
    predicted = np.array([row.predicted_s for row in rows])
    measured = np.array([row.run.step_s for row in rows], dtype=np.float64)
    top = measured[np.argsort(predicted, kind="stable")[:3]].min()
    return Sweep(key, len(rows), kendall_tau(predicted, measured), float(100 * (top / measured.min() - 1)))


@dataclass(frozen=True, slots=True)
class Growth:
    """By how many percent one step is longer than another: the most GPUs of a series than the fewest, BF16 than FP8."""

    key: str
    measured_pct: float
    predicted_pct: float


def weak_scaling(rows: Sequence[Row]) -> list[Growth]:
    """Series of dgxc rows with the same model, release, precision and layout on several cluster sizes."""
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.run.scored and row.run.group == "dgxc":
            members[_series(row.run)].append(row)
    ends = {key: [pick(of, key=lambda row: row.run.cluster.gpus) for pick in (min, max)] for key, of in members.items()}
    return [_growth(key, *of) for key, of in sorted(ends.items()) if of[0].run.cluster.gpus < of[1].run.cluster.gpus]


def _recipe(run: Run) -> str:
    one = run.layout
    layout = f"tp{one.tp} pp{one.pp} vpp{one.vpp} cp{one.cp} mbs{one.mbs}"
    return " ".join((run.model_name, f"{run.model.num_layers} layers", run.software, layout))


def _series(run: Run) -> str:
    return f"{_recipe(run)} {run.workload.precision.name}"


def _growth(key: str, first: Row, last: Row) -> Growth:
    measured = (last.run.step_s or 0.0) / (first.run.step_s or 1.0)
    return Growth(key, 100 * (measured - 1), 100 * (last.predicted_s / first.predicted_s - 1))


def precision_gains(rows: Sequence[Row]) -> list[Growth]:
    """FP8 against BF16 in dgxc rows of the same model, release, layout, batch and number of GPUs, and only there."""
    members: dict[str, dict[bool, Row]] = defaultdict(dict)
    for row in rows:
        if row.run.scored and row.run.group == "dgxc":
            key = f"{_recipe(row.run)} {row.run.cluster.gpus} GPUs gbs{row.run.layout.gbs}"
            members[key][row.run.workload.precision.quantised] = row
    return [_growth(key, of[True], of[False]) for key, of in sorted(members.items()) if len(of) > 1]


def ordered_pairs(rows: Sequence[Row], group: str) -> tuple[int, int]:
    """(pairs whose order is right, pairs) by FLOP/s per GPU inside one model of a group, unflagged rows only."""
    right = pairs = 0
    for one, other in _pairs([row for row in rows if row.run.group == group and row.run.scored]):
        pairs += 1
        measured = (one.run.step_s or 0.0) - (other.run.step_s or 0.0)
        right += (one.predicted_s - other.predicted_s) * measured > 0
    return right, pairs


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    for i, one in enumerate(rows):
        yield from ((one, other) for other in rows[i + 1 :] if other.run.model_name == one.run.model_name)


def corrected(rows: Sequence[Row], factor: Callable[[Run], tuple[float, float] | None]) -> list[Row]:
    """Rows with step and interval multiplied: `factor` gives (correction, share of the interval left) or None."""
    out = []
    for row in rows:
        found = factor(row.run)
        if found is None:
            out.append(row)
            continue
        by, left = found
        low, high = (row.predicted_s + left * (end - row.predicted_s) for end in (row.low_s, row.high_s))
        out.append(replace(row, predicted_s=row.predicted_s * by, low_s=low * by, high_s=high * by))
    return out
