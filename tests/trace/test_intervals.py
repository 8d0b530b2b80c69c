"""The interval core against bitmaps, one bit per nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from advisor.trace.intervals import EMPTY, Intervals, covered, gaps, intersect, join, span, subtract, union

END = 64
PAIRS = st.lists(st.tuples(st.integers(0, END), st.integers(-4, 12)), max_size=14)


def bits(intervals: Intervals) -> np.ndarray:
    found = np.zeros(END, bool)
    for start, end in zip(intervals.start, intervals.end, strict=True):
        assert start < end
        found[start:end] = True
    assert (intervals.end[:-1] < intervals.start[1:]).all()
    return found


def made(pairs) -> tuple[Intervals, np.ndarray]:
    start = np.array([low for low, _ in pairs], np.int64)
    end = np.minimum(np.array([low + length for low, length in pairs], np.int64), END)
    wanted = np.zeros(END, bool)
    for low, high in zip(start, end, strict=True):
        wanted[low : max(low, high)] = True
    return union(start, end), wanted


@given(PAIRS, PAIRS)
def test_set_operations(one, two):
    (a, in_a), (b, in_b) = made(one), made(two)
    assert (bits(a) == in_a).all()
    assert (bits(join(a, b)) == (in_a | in_b)).all()
    assert (bits(intersect(a, b)) == (in_a & in_b)).all()
    assert (bits(subtract(a, b)) == (in_a & ~in_b)).all()
    assert a.length == in_a.sum()


@given(PAIRS, st.integers(0, END), st.integers(0, END))
def test_gaps_and_coverage_of_a_window(pairs, low, high):
    a, inside = made(pairs)
    window = np.zeros(END, bool)
    window[low:high] = True
    assert (bits(gaps(a, low, high)) == (window & ~inside)).all()
    if low <= high:
        assert covered(a, np.array([low]), np.array([high]))[0] == (window & inside).sum()


def test_windows_sum_to_the_whole():
    random = np.random.default_rng(1)
    start = random.integers(0, 10**6, 5000)
    a = union(start, start + random.integers(0, 300, 5000))
    edges = np.unique(random.integers(0, 10**6, 40))
    edges = np.concatenate(([0], edges, [2 * 10**6]))
    assert covered(a, edges[:-1], edges[1:]).sum() == a.length


def test_large_times_stay_exact():
    late = 2**62
    a = union(np.array([late, late + 5]), np.array([late + 3, late + 6]))
    assert a.length == 4
    assert intersect(a, span(late + 2, late + 6)).length == 2


def test_nothing():
    assert union(np.array([], np.int64), np.array([], np.int64)) == EMPTY or len(EMPTY) == 0
    assert len(intersect(EMPTY, span(0, 5))) == len(subtract(EMPTY, span(0, 5))) == len(span(5, 5)) == 0
    assert subtract(span(0, 5), EMPTY).length == gaps(EMPTY, 0, 5).length == 5
    assert covered(EMPTY, np.array([0]), np.array([9])).tolist() == [0]
