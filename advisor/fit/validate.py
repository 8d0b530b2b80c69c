"""Scores predictions against measured runs: error per group, bias, coverage of the interval, order inside sweeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.cost.profile import load_profile
from advisor.cost.step import step
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
    """Errors of one group in percent: median and 90th percentile of their absolute value, median with sign."""

    n: int
    median_abs_error_pct: float
    p90_abs_error_pct: float
    bias_pct: float
    interval_coverage_pct: float


def predict(run: Run) -> Row:
    """Prediction and interval of one run."""
    columns = table([run.layout], [run.knobs])
    profile = load_profile(run.cluster.gpu)
    detail = step(run.model, run.cluster, run.workload, columns, profile).detail(0)
    return Row(run, detail.step_s, detail.low_s, detail.high_s)


def with_own_factor(rows: Sequence[Row], key: Callable[[Run], str]) -> list[Row]:
    """Rows of one custom software stack, scaled by one factor taken from the rows of the other keys.

    A stack that is not NVIDIA's runs slower by a factor of its own (no fused kernels, other schedules): the median of
    measured / predicted over the sweeps or models that are not scored. Rows without others to learn from stay.
    """
    out = []
    ratios = [(key(row.run), row.run.step_s / row.predicted_s) for row in rows if row.run.scored and row.run.step_s]
    factors = {}
    for one in {key(row.run) for row in rows}:
        others = [ratio for other, ratio in ratios if other != one]
        factors[one] = float(np.median(others)) if others else 1.0
    for row in rows:
        by = factors[key(row.run)]
        out.append(replace(row, predicted_s=row.predicted_s * by, low_s=row.low_s * by, high_s=row.high_s * by))
    return out


def groups_of(run: Run) -> tuple[str, ...]:
    """Groups a run counts in: its own, and dense or MoE apart where a source has both.

    Of moefold-t3 only rows with expert parallelism and without FSDP are scored on time; recipes of the others are not
    stated well enough.
    """
    if run.group == "moefold-t3" and (run.knobs.fsdp != Fsdp.none or run.layout.ep == 1):
        return ()
    if run.group in ("bridge", "dgxc"):
        return run.group, f"{run.group}-{'moe' if run.model.is_moe else 'dense'}"
    return (run.group,)


def summary(rows: Sequence[Row]) -> dict[str, Summary]:
    """Errors per group over the rows that count: measured and without a flag."""
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.run.scored:
            for group in groups_of(row.run):
                members[group].append(row)
    return {group: _summary(found) for group, found in sorted(members.items())}


def _summary(rows: Sequence[Row]) -> Summary:
    errors = 100 * np.array([row.error for row in rows], dtype=np.float64)
    return Summary(
        n=len(rows),
        median_abs_error_pct=float(np.median(np.abs(errors))),
        p90_abs_error_pct=float(np.quantile(np.abs(errors), 0.9)),
        bias_pct=float(np.median(errors)),
        interval_coverage_pct=100 * sum(row.covered for row in rows) / len(rows),
    )


def kendall_tau(predicted: Array, measured: Array) -> float:
    """Kendall's tau-b of two rankings, ties counted; nan for fewer than two rows or a constant."""
    one = np.sign(predicted[:, None] - predicted[None, :])
    other = np.sign(measured[:, None] - measured[None, :])
    ties = np.sqrt((one**2).sum() * (other**2).sum())
    return float((one * other).sum() / ties) if ties else float("nan")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Order inside one sweep (same model, GPUs and sequence): tau, and what our best three lose to the sweep's best."""

    key: str
    n: int
    kendall_tau: float
    top3_regret_pct: float


def sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """Sweeps with at least `SWEEP_SIZE` running rows of one source, model, cluster size and sequence length."""
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.run.scored:
            run = row.run
            members[f"{run.group} {run.model_name} {run.cluster.gpus} GPUs {run.workload.seq_len}"].append(row)
    return [_sweep(key, found) for key, found in sorted(members.items()) if len(found) >= SWEEP_SIZE]


def _sweep(key: str, rows: Sequence[Row]) -> Sweep:
    predicted = np.array([row.predicted_s for row in rows])
    measured = np.array([row.run.step_s for row in rows], dtype=np.float64)
    top = measured[np.argsort(predicted, kind="stable")[:3]].min()
    return Sweep(key, len(rows), kendall_tau(predicted, measured), float(100 * (top / measured.min() - 1)))
