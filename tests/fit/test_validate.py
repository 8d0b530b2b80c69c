"""Scores: what counts, medians and coverage, order inside sweeps; and the accuracy on the published runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.fit.predict import predicted_step_s
from advisor.fit.runs import published_runs
from advisor.fit.validate import Row, groups_of, kendall_tau, predict, summary, sweeps, with_own_factor

# Median and 90th percentile of the absolute step-time error in %, on the runs the coefficients were fitted on; errors
# of left-out models are larger (profiles/intervals.yaml). A change that makes a group worse than this is noticed.
BOUNDS = {
    "bridge-dense": (4.0, 9.0),
    "bridge-moe": (8.0, 19.0),
    "dgxc-dense": (3.2, 8.5),
    "moefold-t3": (9.0, 19.0),
    "seqsel-t5": (4.0, 8.0),
    "simumax-b200": (7.0, 19.0),
}


@pytest.fixture(scope="module")
def runs():
    return [run for run in published_runs()[0] if run.step_s is not None]


def test_accuracy_on_published_runs(runs) -> None:
    chosen = [run for run in runs if run.group not in ("aleph", "vtrain-single", "dsv3gb200")]
    seconds = predicted_step_s(chosen)
    found = summary(
        [Row(run, float(s), 0.9 * float(s), 1.1 * float(s)) for run, s in zip(chosen, seconds, strict=True)]
    )
    for group, (median, p90) in BOUNDS.items():
        assert found[group].median_abs_error_pct <= median, group
        assert found[group].p90_abs_error_pct <= p90, group


def test_one_prediction_equals_the_shared_table(runs) -> None:
    chosen = [run for run in runs if run.group in ("simumax-b200", "moefold-t3")]
    together = predicted_step_s(chosen)
    for run, seconds in list(zip(chosen, together, strict=True))[::7]:
        row = predict(run)
        assert row.predicted_s == pytest.approx(seconds, rel=1e-12)
        assert row.low_s < row.predicted_s < row.high_s


def test_summary_counts_only_what_is_measured_and_unflagged(runs) -> None:
    run = next(one for one in runs if one.group == "bridge" and not one.flag)
    exact = Row(run, run.step_s, 0.9 * run.step_s, 1.1 * run.step_s)
    slow = Row(run, 1.2 * run.step_s, 1.1 * run.step_s, 1.3 * run.step_s)
    flagged = Row(dataclasses.replace(run, flag="exclude: reason"), 9.0, 8.0, 10.0)
    failed = Row(dataclasses.replace(run, step_s=None), 9.0, 8.0, 10.0)
    found = summary([exact, slow, flagged, failed])["bridge"]
    assert found.n == 2
    assert found.median_abs_error_pct == pytest.approx(10.0)
    assert found.bias_pct == pytest.approx(10.0)
    assert found.interval_coverage_pct == 50.0
    assert failed.error is None


def test_rows_with_unstated_recipes_are_not_scored_on_time(runs) -> None:
    by_id = {run.id: run for run in runs}
    assert groups_of(by_id["moefold-t3-005"]) == ("moefold-t3",)
    assert groups_of(by_id["moefold-t3-002"]) == ()
    assert groups_of(by_id["bridge-26.06.01-L51"]) == ("bridge", "bridge-moe")


def test_kendall_tau_of_known_orders() -> None:
    assert kendall_tau(np.array([1.0, 2, 3]), np.array([2.0, 4, 9])) == 1.0
    assert kendall_tau(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == -1.0
    assert kendall_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(4 / 6)
    assert np.isnan(kendall_tau(np.array([1.0, 1]), np.array([1.0, 2])))


def test_sweeps_tell_what_the_best_three_lose(runs) -> None:
    run = next(one for one in runs if one.group == "aleph")
    rows = [Row(dataclasses.replace(run, step_s=float(i)), float(20 - i), 0.0, 99.0) for i in range(10, 20)]
    (sweep,) = sweeps(rows)
    assert sweep.n == 10
    assert sweep.kendall_tau == -1.0
    assert sweep.top3_regret_pct == pytest.approx(70.0)
    assert sweeps(rows[:7]) == []


def test_a_stack_of_its_own_learns_its_factor_from_other_sweeps_only(runs) -> None:
    some = [run for run in runs if run.group == "aleph"][:6]
    seconds = [1.0] * 3 + [4.0] * 3
    rows = [
        Row(dataclasses.replace(run, step_s=2.0, id=f"{i}"), one, 0.5, 5.0)
        for i, (run, one) in enumerate(zip(some, seconds, strict=True))
    ]
    found = with_own_factor(rows, lambda run: "a" if int(run.id) < 3 else "b")
    assert [row.predicted_s for row in found] == [0.5] * 3 + [8.0] * 3
