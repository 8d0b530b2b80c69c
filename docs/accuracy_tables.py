"""Tables of docs/accuracy.md and README.md, from the published runs and the committed coefficients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import yaml

from advisor import data
from advisor.fit.ablation import ablations, noise_floor
from advisor.fit.committed import LeaveOut
from advisor.fit.refit import FITTED_GROUPS
from advisor.fit.runs import published_runs
from advisor.fit.validate import (
    Growth,
    Row,
    kendall_tau,
    ordered_pairs,
    precision_gains,
    predict_rows,
    summary,
    sweeps,
    timed,
    weak_scaling,
)

SHORT = (
    "bridge-dense",
    "bridge-moe",
    "dgxc-dense",
    "moefold-t3",
    "simumax-b200",
    "seqsel-t5",
    "aleph",
    "vtrain-single",
)
GOALS = {
    "bridge-dense": (4.0, 9.0),
    "bridge-moe": (10.0, 24.0),
    "dgxc-dense": (1.8, 6.0),
    "moefold-t3": (6.0, 14.0),
    "simumax-b200": (3.0, 7.0),
    "seqsel-t5": (3.0, 7.0),
    "aleph": (6.0, 15.0),
    "vtrain-single": (10.0, 25.0),
}
"""Median and 90th percentile in % that are aimed at, beyond what tests demand."""
LEFT = {
    "bridge-dense": "NVFP4: the 405B model wants a higher rate of GB200 than the 70B one, and which layers stay in "
    "higher precision is not printed",
    "bridge-moe": "attention with sinks, Mamba scans and EP over InfiniBand, none of them timed in public",
    "dgxc-dense": "FP8 of two models in opposite directions (405B gains more than predicted, 70B less), and releases "
    "of the same layout (see the noise floor)",
    "moefold-t3": "recompute, VPP and micro-batch, which the source does not print",
    "simumax-b200": "TP 8 without any overlap",
    "seqsel-t5": "kernels of 2022 on A100, which no other run of this stack shows",
    "aleph": "kernels: flash attention 1 is slower than predicted, flash attention 2 with fused norms faster; one "
    "set of factors stands for all of them",
    "vtrain-single": "host time of layers of 0.1-1 ms",
}
"""What most of the error that is left is made of."""


@cache
def _rows(leave_out: LeaveOut) -> tuple[Row, ...]:
    runs, _ = published_runs()
    return tuple(predict_rows(runs, leave_out, with_memory=leave_out == "model"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| --- |" + " --: |" * (len(head) - 1)
    yield from ("| " + " | ".join(cells) + " |" for cells in rows)
    yield ""


def _one(value: float | None, signed: bool = False) -> str:
    return "-" if value is None else f"{value:+.1f}" if signed else f"{value:.1f}"


def in_short() -> Iterator[str]:
    """Median and 90th percentile per group."""
    found = summary(_rows("model"))
    rows = [
        (name, str(found[name].n), _one(found[name].median_abs_error_pct), _one(found[name].p90_abs_error_pct))
        for name in SHORT
    ]
    yield ""
    yield from _table(("published runs", "n", "median error %", "90th percentile %"), rows)


def page() -> Iterator[str]:
    """The whole page."""
    rows = _rows("model")
    yield f"\n{sum(timed(row.run) for row in rows)} of {len(rows)} readable runs are scored.\n"
    yield from _groups(rows)
    yield "## Against the goals\n"
    yield from _goals(rows)
    yield "## Without a model, a GPU, a group; with all runs\n"
    yield from _compared()
    yield "## By GPU and precision\n"
    yield from _by_gpu(rows)
    yield "## Order\n"
    yield from _order(rows)
    yield "## The ten worst of each kind\n"
    yield from _worst(rows)
    yield "## Ablations\n"
    yield "Median absolute error in % of the fitted runs, one part switched off and nothing refitted.\n"
    yield from _ablations()
    yield "## Noise floor\n"
    yield "Slowest over fastest release of the same printed layout: no model that is blind to releases does better.\n"
    floor = noise_floor([row.run for row in rows if timed(row.run)])
    cells = [(group, str(n), _one(median), _one(most)) for group, (n, median, most) in floor.items()]
    yield from _table(("runs", "layouts", "median spread %", "greatest %"), cells)


def _groups(rows: Sequence[Row]) -> Iterator[str]:
    head = ("runs", "n", "median error %", "90th percentile %", "bias %", "inside the 80 % interval %",
            "its half width %", "80th percentile of the error %", "memory %", "OOM called fits %",
            "fits called OOM %")  # fmt: skip
    cells = []
    for group, one in summary(rows).items():
        members = [row for row in rows if timed(row.run) and group in {row.run.group, *_split(row)}]
        errors = [100 * abs(row.error or 0.0) for row in members]
        p80 = float(np.quantile(errors, 0.8)) if errors else None
        cells.append((
            group, str(one.n), _one(one.median_abs_error_pct), _one(one.p90_abs_error_pct), _one(one.bias_pct, True),
            _one(one.interval_coverage_pct), _one(one.interval_half_width_pct), _one(p80),
            _one(one.memory_median_abs_error_pct), _one(one.oom_called_fits_pct), _one(one.fits_called_oom_pct),
        ))  # fmt: skip
    yield from _table(head, cells)


def _goals(rows: Sequence[Row]) -> Iterator[str]:
    found, cells = summary(rows), []
    for name, goal in GOALS.items():
        errors = (found[name].median_abs_error_pct, found[name].p90_abs_error_pct)
        reached = [
            "-" if error is None else "yes" if error <= most else "no" for error, most in zip(errors, goal, strict=True)
        ]
        shown = (" / ".join(map(_one, errors)), f"{goal[0]:g} / {goal[1]:g}", " / ".join(reached))
        cells.append((name, *shown, LEFT[name]))
    yield from _table(("median / 90th percentile %", "found", "goal", "reached", "most of what is left"), cells)


def _split(row: Row) -> tuple[str, ...]:
    from advisor.fit.validate import groups_of

    return groups_of(row.run)


def _compared() -> Iterator[str]:
    kinds: tuple[LeaveOut, ...] = ("model", "gpu", "group", "none")
    found = {kind: summary(_rows(kind)) for kind in kinds}
    cells = [
        (group, *(f"{_one(found[kind][group].median_abs_error_pct)} / {_one(found[kind][group].p90_abs_error_pct)}"
                  for kind in kinds))
        for group in SHORT
    ]  # fmt: skip
    yield from _table(("median / 90th percentile %", "without its model", "its GPU", "its group", "with all"), cells)


def _by_gpu(rows: Sequence[Row]) -> Iterator[str]:
    members: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        if timed(row.run):
            key = (_split(row)[-1], row.run.cluster.gpu.name, row.run.workload.precision.name)
            members[key].append(100 * (row.error or 0.0))
    cells = [
        (*key, str(len(of)), _one(float(np.median(np.abs(of)))), _one(float(np.quantile(np.abs(of), 0.9))),
         _one(float(np.median(of)), True))
        for key, of in sorted(members.items())
    ]  # fmt: skip
    yield from _table(("runs", "GPU", "precision", "n", "median error %", "90th percentile %", "bias %"), cells)


def _order(rows: Sequence[Row]) -> Iterator[str]:
    cells = [(one.key, str(one.n), f"{one.kendall_tau:.2f}", _one(one.top3_regret_pct)) for one in sweeps(rows)]
    yield from _table(("sweep", "n", "Kendall tau", "best of our first three above the sweep's best %"), cells)
    right, pairs = ordered_pairs(rows, "moefold-t3")
    yield f"moefold-t3: order of {right} of {pairs} pairs inside one model is right."
    series, gains = weak_scaling(rows), precision_gains(rows)
    yield f"Weak scaling: growth of the step in {len(series)} series of dgxc {_off(series)}."
    yield (
        f"FP8 against BF16: gain in {len(gains)} pairs of dgxc runs of the same release, layout and number of GPUs "
        f"{_off(gains)}.\n"
    )


def _off(series: Sequence[Growth]) -> str:
    measured, predicted = (
        np.array([getattr(one, name) for one in series]) for name in ("measured_pct", "predicted_pct")
    )
    off = float(np.median(np.abs(predicted - measured)))
    return f"is off by {off:.2f} points (median), Kendall tau {kendall_tau(predicted, measured):.2f}"


def _worst(rows: Sequence[Row]) -> Iterator[str]:
    path = data.find("profiles", "residuals.yaml")
    reasons: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8")) if path else []
    scored = [row for row in rows if timed(row.run)]
    for title, members in (
        ("NVIDIA stacks", [row for row in scored if row.run.group in FITTED_GROUPS]),
        ("stacks of their own", [row for row in scored if row.run.group not in FITTED_GROUPS]),
    ):
        worst = sorted(members, key=lambda row: -abs(row.error or 0.0))[:10]
        cells = [
            (row.run.id, row.run.model_name, row.run.cluster.gpu.name, row.run.workload.precision.name,
             _one(100 * (row.error or 0.0), True), _reason(row, reasons))
            for row in worst
        ]  # fmt: skip
        yield from _table((title, "model", "GPU", "precision", "error %", "likely reason"), cells)


def _reason(row: Row, reasons: Sequence[dict[str, Any]]) -> str:
    run = row.run
    facts = {"model": run.model_name, "group": run.group, "gpu": run.cluster.gpu.name}
    facts["precision"] = run.workload.precision.name
    return next(one["reason"] for one in reasons if all(facts[key] == value for key, value in one["match"].items()))


def _ablations() -> Iterator[str]:
    chosen = [row.run for row in _rows("none") if timed(row.run) and row.run.group in FITTED_GROUPS]
    found = ablations(chosen)
    groups = ["all", *(name for name in SHORT if name in found["everything"])]
    cells = [(name, *(_one(of[group]) for group in groups)) for name, of in found.items()]
    yield from _table(("", *groups), cells)
