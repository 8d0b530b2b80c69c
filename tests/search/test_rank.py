"""The order of entries, against plain sorting in Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.search import rank
from advisor.units import GIB

FIGURE = st.integers(1, 6).map(float)


def _entries(step_s, device_bytes):
    count = len(step_s)
    zero = np.zeros(count, dtype=np.int64)
    return rank.Entries(zero, np.arange(count), zero, np.array(step_s, float), np.array(device_bytes, float))


@pytest.mark.parametrize("objective", ["throughput", "memory"])
@given(st.lists(st.tuples(FIGURE, FIGURE, st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=30))
def test_order_is_that_of_sorted(objective, rows):
    step_s, device, tp, pp = (np.array(column) for column in zip(*rows, strict=True))
    device = device * 4 * GIB
    one = np.ones(len(rows), dtype=np.int64)
    layout = dict.fromkeys(rank.SIMPLER, one) | {"tp": tp, "pp": pp}

    def key(i):
        figures = (step_s[i], device[i]) if objective == "throughput" else (device[i], step_s[i])
        return (*figures, pp[i], tp[i], i)

    found = rank.order(_entries(step_s, device), layout, objective)
    assert found.tolist() == sorted(range(len(rows)), key=key)


@given(st.floats(1.0, 1.03), st.floats(1.0, 1.03), st.integers(40, 60), st.integers(40, 60))
def test_one_per_cent_of_time_is_worth_no_memory(first, second, first_gib, second_gib):
    """Within a step of 1 % above the fastest the roomier layout wins, beyond it the faster one."""
    step_s, device = [1.0, first, second], [80 * GIB, first_gib * GIB, second_gib * GIB]
    layout = dict.fromkeys(rank.SIMPLER, np.ones(3, dtype=np.int64))
    found = rank.order(_entries(step_s, device), layout, "throughput").tolist()
    classes = [math.floor(math.log(float(np.float32(one))) / math.log(1.01)) for one in step_s]
    ranked = [(classes[i], device[i] // (4 * GIB)) for i in found]
    assert ranked == sorted(ranked)


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_best_of_rows_ignores_the_dead_and_breaks_ties(objective):
    alive = np.array([[False, True, True], [True, True, True], [True, True, False]])
    step_s = np.array([[1.0, 2.0, 5.0], [3.0, 2.0, 5.0], [4.0, 2.0, 1.0]])
    device = np.array([[1.0, 9.0, 2.0], [8.0, 7.0, 2.0], [6.0, 8.0, 1.0]])
    expected = [1, 1, 0] if objective == "throughput" else [2, 1, 0]
    assert rank.best_of_rows(alive, step_s, device, objective).tolist() == expected


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(1, 100)), min_size=1, max_size=40))
def test_pareto_front_dominates_everything_else(rows):
    step_s, device = (np.array(column) for column in zip(*rows, strict=True))
    front = rank.pareto(step_s, device, least=1.0)
    for i in range(len(rows)):
        assert any(step_s[j] <= step_s[i] * (1 + 1e-6) and device[j] <= device[i] * (1 + 1e-6) for j in front), (
            "an entry that nothing on the front beats is missing"
        )
    assert np.all(np.diff(device[front]) <= 0)


def test_pareto_steps_are_worth_it():
    step_s, device = np.array([1.0, 1.1, 1.2, 1.3]), np.array([100.0, 99.0, 90.0, 95.0])
    assert rank.pareto(step_s, device).tolist() == [0, 2]


def test_families_keep_the_best_of_each_kind():
    layout = {name: np.array([1, 1, 1, 1]) for name in ("cp", "ep")}
    layout |= {"tp": np.array([2, 4, 1, 2]), "pp": np.array([1, 1, 2, 2])}
    assert rank.families(np.array([1, 0, 3, 2]), layout).tolist() == [1, 3, 2]


def test_joined_nothing_is_empty():
    assert len(rank.joined([])) == 0
