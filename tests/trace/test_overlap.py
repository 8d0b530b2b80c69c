"""Overlap of synthetic traces: figures known by hand, and random traces against one bit per microsecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.trace.analysis import analyse
from tests.trace.synthetic import GEMM, collective, host, kernel, launch, mark, write

US = 1e-6


def mean_of(tmp_path, events, **top):
    return analyse([write(tmp_path / "rank-0.json", events, **top)]).mean


def test_hidden_exposed_idle_and_copies_by_hand(tmp_path):
    mean = mean_of(
        tmp_path,
        [
            kernel(0, 40),
            collective(30, 30, "tp"),
            kernel(70, 10, "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", stream=9),
            collective(75, 15, "dp"),
            kernel(95, 5),
        ],
    )
    assert mean.step_s == pytest.approx(100 * US)
    assert mean.compute_s == pytest.approx(45 * US)
    assert mean.communication_s == pytest.approx(45 * US)
    assert mean.hidden_s == pytest.approx(10 * US)
    assert mean.exposed_s == pytest.approx(35 * US)
    assert mean.copies_s == pytest.approx(5 * US), "the copy beside communication is no time of its own"
    assert mean.idle_s == pytest.approx(15 * US)
    assert mean.kinds["tp"].hidden_s == pytest.approx(10 * US)
    assert mean.kinds["tp"].exposed_s == pytest.approx(20 * US)
    assert mean.kinds["dp"].hidden_s == 0
    assert mean.kinds["dp"].calls == 1


def test_nested_touching_equal_and_empty_kernels_count_once(tmp_path):
    events = [kernel(0, 50), kernel(10, 10, stream=8), kernel(10, 10, stream=9), kernel(50, 10), kernel(20, 0)]
    events += [collective(0, 60, "ep"), collective(5, 5, "ep"), collective(30, 0, "ep"), collective(60, 40, "ep")]
    mean = mean_of(tmp_path, events)
    assert (mean.compute_s, mean.hidden_s) == (pytest.approx(60 * US), pytest.approx(60 * US))
    assert mean.exposed_s == pytest.approx(40 * US)
    assert mean.kinds["ep"].calls == 4


def test_two_kinds_at_once_count_each_but_once_together(tmp_path):
    mean = mean_of(tmp_path, [collective(0, 20, "tp"), collective(10, 20, "dp"), kernel(5, 10)])
    assert mean.communication_s == pytest.approx(30 * US)
    assert sum(kind.communication_s for kind in mean.kinds.values()) == pytest.approx(40 * US)
    assert mean.kinds["tp"].hidden_s == pytest.approx(10 * US)
    assert mean.kinds["dp"].hidden_s == pytest.approx(5 * US)


def test_idle_is_host_bound_when_its_end_was_launched_after_the_device_ran_dry(tmp_path):
    events = [
        launch(0, 1), kernel(10, 10, correlation=1),
        launch(25, 2), kernel(40, 10, correlation=2),  # launched at 25, dry since 20: host bound
        launch(45, 3), kernel(60, 10, correlation=3),  # launched at 45, dry since 50: was queued
        kernel(80, 10),  # no launch known
    ]  # fmt: skip
    mean = mean_of(tmp_path, events)
    assert mean.idle_s == pytest.approx(40 * US)
    assert mean.host_bound_s == pytest.approx(20 * US)


def test_steps_follow_launches_not_host_marks(tmp_path):
    events = [mark(1, 0, 100), mark(2, 100, 100)]
    for step in (0, 1):
        for index in range(4):
            number = 10 * step + index + 1
            # The device lags 150 us behind the host: work of step 1 ends within the mark of step 2.
            events += [launch(100 * step + 20 * index, number)]
            events += [kernel(150 + 100 * step + 20 * index, 10, correlation=number)]
    events += [launch(95, 99), collective(240, 20, "dp", correlation=99)]
    (rank,) = analyse([write(tmp_path / "t.json", events)]).ranks
    first, second = rank.steps
    assert (first.name, second.name) == ("ProfilerStep#1", "ProfilerStep#2")
    assert first.step_s == pytest.approx(100 * US)
    assert first.compute_s == second.compute_s == pytest.approx(40 * US)
    assert first.communication_s == pytest.approx(10 * US), "the part after the second step's first kernel is its own"
    assert second.communication_s == pytest.approx(10 * US)
    assert second.hidden_s == pytest.approx(10 * US)


def test_missing_marks_make_one_window_and_are_said(tmp_path):
    (rank,) = analyse([write(tmp_path / "rank-0.json", [kernel(0, 5), kernel(10, 5)])]).ranks
    assert [step.name for step in rank.steps] == ["whole trace"]
    assert any("no step marks" in text for text in rank.findings)


def test_marks_that_overlap_or_nest_give_disjoint_windows(tmp_path):
    marks = [mark(1, 0, 60), mark(2, 50, 50), mark(3, 70, 10), mark(4, 200, 0)]
    events = [*marks, *(kernel(start, 5) for start in range(0, 100, 10))]
    (rank,) = analyse([write(tmp_path / "rank-0.json", events)]).ranks
    assert [step.name for step in rank.steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert sum(step.compute_s for step in rank.steps) == pytest.approx(50 * US)


def test_windows_stay_in_order_when_work_seems_to_run_before_its_launch(tmp_path):
    """A device clock that is off by a little must not make windows overlap or run backwards."""
    events = [mark(1, 0, 100), mark(2, 100, 100)]
    events += [launch(10, 1), kernel(100, 40, correlation=1), launch(110, 2), kernel(90, 30, correlation=2)]
    (rank,) = analyse([write(tmp_path / "rank-0.json", events)]).ranks
    (part,) = rank.parts
    assert (part.windows.high >= part.windows.low).all()
    assert (part.windows.low[1:] >= part.windows.high[:-1]).all()
    for step in rank.steps:
        assert step.step_s == pytest.approx(step.compute_s + step.exposed_s + step.copies_s + step.idle_s)


def test_no_communication_has_no_share(tmp_path):
    from advisor.trace.record import analysis_record

    record = analysis_record(analyse([write(tmp_path / "rank-0.json", [kernel(0, 5)])]))
    assert record["mean"]["hidden_share"] is None
    assert record["mean"]["communication_s"] == 0


def test_gloo_operations_against_aten_operators(tmp_path):
    events = [
        mark(1, 0, 100),
        host("aten::mm", 0, 30), host("aten::linear", 0, 40), host("c10d::allreduce_", 40, 2),
        host("gloo:all_reduce", 20, 40, cat="user_annotation", tid=11),
        host("gloo:send", 70, 10, cat="user_annotation"), host("gloo:all_to_all", 85, 5, cat="user_annotation"),
    ]  # fmt: skip
    analysis = analyse([write(tmp_path / "rank-0.json", events)])
    (rank,) = analysis.ranks
    assert rank.front_end == "gloo"
    assert rank.mean.compute_s == pytest.approx(40 * US)
    assert rank.mean.hidden_s == pytest.approx(20 * US)
    assert rank.mean.exposed_s == pytest.approx(35 * US)
    assert set(rank.mean.kinds) == {"pp", "ep", "other"}
    assert any("all_to_all counts as ep" in text for text in rank.findings)


def test_gloo_operations_of_a_job_with_experts(tmp_path):
    """Tokens go all to all over the expert group; what remains is of the data-parallel group."""
    gloo = [
        host(f"gloo:{what}", at, 5, cat="user_annotation", tid=11)
        for at, what in ((0, "all_to_all"), (9, "all_reduce"))
    ]
    groups = ("default_pg", "DATA_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP")
    configured = [{"pg_name": str(i), "pg_desc": text, "ranks": [0, 1]} for i, text in enumerate(groups)]
    (rank,) = analyse([write(tmp_path / "rank-0.json", gloo, info={"pg_config": configured})]).ranks
    assert {kind: figures.calls for kind, figures in rank.mean.kinds.items()} == {"dp": 1, "ep": 1}


SPAN = 120
EVENT = st.tuples(st.integers(0, SPAN - 1), st.integers(0, 30), st.sampled_from(["compute", "tp", "dp", "copy"]))


def _event(start, dur, what):
    dur = min(dur, SPAN - start)
    if what == "compute":
        return kernel(start, dur, GEMM)
    if what == "copy":
        return kernel(start, dur, "Memset (Device)", cat="gpu_memset")
    return collective(start, dur, what)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENT, min_size=1, max_size=25), st.permutations(range(25)))
def test_random_traces_against_bits(tmp_path, events, order):
    shuffled = [events[index] for index in order if index < len(events)]
    mean = mean_of(tmp_path, [_event(*event) for event in shuffled])
    of = {what: np.zeros(SPAN, bool) for what in ("compute", "tp", "dp", "copy")}
    for start, dur, what in events:
        of[what][start : min(start + dur, SPAN)] = True
    low, high = min(e[0] for e in events), max(min(e[0] + e[1], SPAN) for e in events)
    communication = of["tp"] | of["dp"]
    wanted = {
        "step_s": high - low,
        "compute_s": of["compute"].sum(),
        "communication_s": communication.sum(),
        "hidden_s": (communication & of["compute"]).sum(),
        "copies_s": (of["copy"] & ~communication & ~of["compute"]).sum(),
        "idle_s": high - low - (communication | of["compute"] | of["copy"]).sum(),
    }
    assert {name: round(getattr(mean, name) / US) for name in wanted} == wanted
    assert mean.step_s == pytest.approx(mean.compute_s + mean.exposed_s + mean.copies_s + mean.idle_s, abs=1e-12)
    for kind, figures in mean.kinds.items():
        assert round(figures.hidden_s / US) == (of[kind] & of["compute"]).sum()
