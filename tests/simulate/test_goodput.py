"""The closed form: its limits, its optimum, and published figures."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.configure.chosen import read_plan
from advisor.configure.facts import reliability_facts
from advisor.configure.recovery import (
    Hazards,
    Setup,
    alternatives,
    best_spares,
    hazards,
    interval_of,
    outcome,
    persistent_interval,
    rank_setups,
    reliability,
    restart_s,
    spare_table,
)
from advisor.cost.goodput import Goodput, Interruption, Reliability, daly_interval, erlang_b, goodput
from tests.configure.plans import plan_file

NAMES = [field.name for field in dataclasses.fields(Goodput)]
HOUR = 3600.0


def job(mtbf=2 * HOUR, recovery=600.0, interval=900.0, stall=10.0, **more):
    return Reliability(mtbf, (Interruption("all", 1.0, recovery),), interval, stall, **more)


jobs = st.builds(
    lambda mtbf, recovery, interval, stall, durable, away, spares, slow: job(
        mtbf, recovery, interval, stall, durable_s=min(durable, interval), node_losses_per_s=away / (mtbf * 2),
        repair_s=24 * HOUR, spares=spares, slow_per_s=slow / mtbf, slow_s=HOUR, slowdown=0.2,
    ),
    st.floats(600, 1e7), st.floats(1, 7200), st.floats(10, 1e5), st.floats(0.1, 1000), st.floats(0, 1000),
    st.floats(0, 1), st.integers(0, 40), st.floats(0, 1),
)  # fmt: skip


@given(jobs)
def test_shares_are_shares_of_the_time(one):
    found = goodput(one)
    shares = [getattr(found, name) for name in NAMES]
    assert all(-1e-12 <= share <= 1 + 1e-12 for share in shares)
    assert sum(shares) == pytest.approx(1.0, abs=1e-9)


@given(jobs, st.sampled_from(["mtbf_s", "stall_s", "spares", "repair_s", "slow_s"]))
def test_better_machines_never_make_it_worse(one, what):
    better = {
        "mtbf_s": lambda: dataclasses.replace(one, mtbf_s=2 * one.mtbf_s, node_losses_per_s=one.node_losses_per_s / 2),
        "stall_s": lambda: dataclasses.replace(one, stall_s=one.stall_s / 2),
        "spares": lambda: dataclasses.replace(one, spares=one.spares + 1),
        "repair_s": lambda: dataclasses.replace(one, repair_s=one.repair_s / 2),
        "slow_s": lambda: dataclasses.replace(one, slow_s=one.slow_s / 2),
    }[what]()
    assert goodput(better).productive >= goodput(one).productive - 1e-12


def test_rare_failures_give_the_first_order_sum():
    one = job(mtbf=1e7, recovery=300, interval=1000, stall=1)
    lost = 1 / 1001 + (300 + 1000 / 2) / 1e7
    assert 1 - goodput(one).productive == pytest.approx(lost, rel=1e-3)


def test_a_write_that_is_safe_later_loses_its_duration_more():
    safe_at_once, later = job(mtbf=1e6), job(mtbf=1e6, durable_s=500)
    assert goodput(safe_at_once).productive - goodput(later).productive == pytest.approx(500 / 1e6, rel=0.05)


@given(st.floats(600, 1e7), st.floats(1e-4, 0.3))
def test_the_interval_is_the_best_one(mtbf, share):
    stall = mtbf * share
    best = daly_interval(mtbf, stall)
    top = goodput(job(mtbf, interval=best, stall=stall)).productive
    for other in np.geomspace(best / 30, best * 30, 61):
        assert goodput(job(mtbf, interval=float(other), stall=stall)).productive <= top * (1 + 1e-9)


def test_small_stalls_give_youngs_interval():
    assert daly_interval(1e6, 1.0) == pytest.approx(math.sqrt(2 * 1e6), rel=2e-3)


@pytest.mark.parametrize("times", [(0, 1), (1, 0), (-1, 1), (1, 1, -1)])
def test_times_must_be_positive(times):
    with pytest.raises(ValueError, match="positive"):
        daly_interval(*times)


@pytest.mark.parametrize(
    ("servers", "load", "blocked"),
    [(1, 1.0, 0.5), (2, 1.0, 0.2), (5, 3.0, 0.11005), (10, 5.0, 0.018385)],
)
def test_erlang_b_against_tables(servers, load, blocked):
    assert erlang_b(servers, load) == pytest.approx(blocked, rel=1e-4)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return read_plan(plan_file(tmp_path_factory.mktemp("plans"), "llama405"))


def test_rates_follow_from_what_was_published():
    facts = reliability_facts()
    published = facts.published["llama3"]
    rate = published["unexpected"] / (published["days"] * 24 * published["gpus"])
    assert facts.rate("llama3").per_gpu_s * HOUR == pytest.approx(rate, rel=1e-3)
    assert facts.rate().name == "llama3"
    assert all(one.source and one.kind == "measured" for one in facts.rates.values())


def test_the_published_effective_time_of_llama_3(llama):
    """Interruptions, planned ones included, as published; restart times of the table; nothing fitted to the result."""
    published = reliability_facts().published["llama3"]
    count = published["unexpected"] + published["planned"]
    hours = published["days"] * 24 / count
    met = hazards(llama, mtbf_hours=hours)
    setup = Setup("requeue", async_save=True)
    setup = dataclasses.replace(setup, spares=best_spares(llama, setup, met))
    found = outcome(llama, setup, met).goodput
    assert published["effective_at_least"] <= found.productive <= 0.94
    assert found.recovery > found.lost_work


def test_megascale_within_what_it_published():
    """Under 10 minutes to be back, caught up within 15: more than 90 % effective, at the rate of Llama 3."""
    facts = reliability_facts()
    published = facts.published["megascale"]
    mtbf = 1 / (facts.rate().per_gpu_s * published["gpus"])
    one = job(mtbf, published["detection_and_restart_s"], 2 * published["catch_up_s"], 5.0)
    assert published["effective_at_least"] <= goodput(one).productive <= 0.95


def test_restarts_get_shorter_with_what_they_skip(llama):
    facts, met = reliability_facts(), hazards(llama)
    times = {
        name: restart_s(Setup(name), 16384, met.cost, facts, node_lost=False)
        for name in ("requeue", "in-job", "in-process")
    }
    assert times["requeue"] > times["in-job"] > times["in-process"]
    local = restart_s(Setup("in-job", local=True), 16384, met.cost, facts, node_lost=False)
    assert local < times["in-job"]


def test_kinds_of_interruptions_add_up(llama):
    met = hazards(llama)
    for setup in (*alternatives(with_local=True), Setup(evict_slow=True)):
        found = reliability(llama, setup, met, interval_of(llama, setup, met))
        assert sum(kind.share for kind in found.kinds) == pytest.approx(1.0)
        lost = sum(kind.share for kind in found.kinds if kind.node_lost) / found.mtbf_s
        assert found.node_losses_per_s == pytest.approx(lost)


def test_setups_are_ranked_by_what_they_bring(llama):
    met = hazards(llama)
    found = rank_setups(llama, met, list(alternatives(with_local=True)))
    values = [one.value for one in found]
    assert values == sorted(values, reverse=True)
    by_words = {one.setup.words: one.value for one in found}
    assert by_words["in-job restart, asynchronous saves"] > by_words["in-job restart, synchronous saves"]
    plainest = by_words["requeue restart, synchronous saves, no straggler detector"]
    assert plainest == min(values)


def test_spares_pay_for_themselves_on_large_jobs_only(llama, tmp_path):
    met = hazards(llama)
    best = best_spares(llama, Setup(), met)
    assert 5 <= best <= 40
    table = {one.setup.spares: one.value for one in spare_table(llama, Setup(), met)}
    assert table[best] == max(table.values())
    assert table[best] > table[0] + 0.3
    small = read_plan(plan_file(tmp_path, "dense"))
    assert best_spares(small, Setup(), hazards(small)) == 0


def test_mtbf_is_the_rate_times_the_gpus(llama):
    met = hazards(llama)
    assert met.mtbf_s == pytest.approx(54 * 24 * HOUR / 419, rel=1e-3)
    assert "16384 GPUs" in met.mtbf_reason
    given_hours = hazards(llama, mtbf_hours=8, write_gbs=20)
    assert isinstance(given_hours, Hazards)
    assert (given_hours.mtbf_s, given_hours.storage.write_Bps) == (8 * HOUR, 20e9)


def test_local_checkpoints_let_the_persistent_ones_be_rare(llama):
    met = hazards(llama)
    near, far = interval_of(llama, Setup(local=True), met), persistent_interval(llama, Setup(local=True), met)
    assert far.seconds > 2 * near.seconds
    assert persistent_interval(llama, Setup(), met) == interval_of(llama, Setup(), met)
