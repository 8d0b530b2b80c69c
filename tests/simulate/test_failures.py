"""The event simulation: it agrees with the closed form where that is exact, and books every second."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.configure.chosen import read_plan
from advisor.configure.recovery import Setup, best_spares, hazards, outcome
from advisor.cost.goodput import Goodput, Interruption, Reliability, daly_interval, goodput
from advisor.simulate.failures import SECONDS_PER_DAY, Period, Variation, simulate
from tests.configure.plans import plan_file

HOUR = 3600.0
NODES = 1280
NAMES = [field.name for field in dataclasses.fields(Goodput)]
MTBF = 1 / (5.48e-9 * NODES * 8)
KINDS = (Interruption("process", 0.3, 300), Interruption("node", 0.7, 500, node_lost=True))

CASES = {
    "rare and cheap": Reliability(MTBF, KINDS, daly_interval(MTBF, 5), 5, node_losses_per_s=0.7 / MTBF,
                                  repair_s=24 * HOUR, spares=12),
    "synchronous saves": Reliability(MTBF, KINDS, daly_interval(MTBF, 120), 120, node_losses_per_s=0.7 / MTBF,
                                     repair_s=24 * HOUR, spares=12),
    "slow writes": Reliability(MTBF, KINDS, 1200, 5, durable_s=900, node_losses_per_s=0.7 / MTBF, repair_s=24 * HOUR,
                               spares=12),
    "too few spares": Reliability(MTBF, KINDS, 600, 5, node_losses_per_s=0.7 / MTBF, repair_s=8 * HOUR, spares=1),
    "stragglers": Reliability(MTBF, KINDS, 600, 5, node_losses_per_s=0.7 / MTBF, repair_s=24 * HOUR, spares=12,
                              slow_per_s=0.2 / MTBF, slow_s=24 * HOUR, slowdown=0.2),
    "bad machines": Reliability(MTBF / 8, (Interruption("process", 1.0, 900),), 600, 30),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_gpus_for_a_month_within_two_points(name):
    one = CASES[name]
    replicas = 32 if name == "too few spares" else 8  # waits are long, rare and spread
    formula, played = goodput(one), simulate(one, nodes=NODES, days=30, replicas=replicas, seed=7)
    assert NODES * 8 >= 10_000
    assert played.error < 0.01
    for share in NAMES:
        assert getattr(played.goodput, share) == pytest.approx(getattr(formula, share), abs=0.02), share


def test_a_plan_of_ten_thousand_gpus(tmp_path):
    chosen = read_plan(plan_file(tmp_path, "llama405"))
    met = hazards(chosen)
    setup = dataclasses.replace(Setup(), spares=best_spares(chosen, Setup(), met))
    found = outcome(chosen, setup, met)
    played = simulate(found.job, nodes=2048, days=30, replicas=6, seed=3)
    assert played.goodput.productive == pytest.approx(found.goodput.productive, abs=0.02)
    assert played.interruptions == pytest.approx(30 * SECONDS_PER_DAY / met.mtbf_s, rel=0.15)


@pytest.mark.parametrize("variation", [Variation(recovery_spread=0.0), Variation(fixed_repair=True), Variation(0.9)])
def test_the_formula_does_not_hang_on_its_distributions(variation):
    one = CASES["rare and cheap"]
    played = simulate(one, nodes=NODES, days=30, replicas=8, seed=1, variation=variation)
    assert played.goodput.productive == pytest.approx(goodput(one).productive, abs=0.02)


def test_infant_mortality_is_seen():
    """Fresh nodes that fail early make the first month worse than the formula, which knows the average only."""
    one = CASES["bad machines"]
    one = dataclasses.replace(one, kinds=(Interruption("node", 1.0, 900, True),), node_losses_per_s=1 / one.mtbf_s)
    young = simulate(one, nodes=NODES, days=10, replicas=3, seed=1, variation=Variation(shape=0.5))
    assert young.goodput.productive < goodput(one).productive - 0.02


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(sorted(CASES)), st.integers(0, 2**32 - 1), st.floats(0.5, 5), st.floats(0, 2000), st.integers(0, 3)
)
def test_every_second_is_booked_once(name, seed, days, durable, spares):
    one = dataclasses.replace(CASES[name], durable_s=durable, spares=spares)
    period = Period(one, 64, days * SECONDS_PER_DAY, np.random.default_rng(seed), Variation())
    tally = period.play()
    booked = tally.productive + tally.lost + tally.recovery + tally.stall + tally.slow + tally.wait
    assert booked == pytest.approx(days * SECONDS_PER_DAY, rel=1e-9)
    assert min(tally.productive, tally.lost, tally.recovery, tally.stall, tally.slow, tally.wait) >= 0


def test_without_failures_only_saves_cost():
    one = Reliability(1e18, (Interruption("never", 1.0, 1),), 990, 10)
    played = simulate(one, nodes=4, days=1, replicas=2)
    assert played.goodput.productive == pytest.approx(0.99, abs=1e-3)
    assert (played.interruptions, played.error) == (0, 0)


def test_the_same_seed_gives_the_same_numbers():
    one = CASES["stragglers"]
    first, second, third = (simulate(one, nodes=100, days=3, replicas=2, seed=seed) for seed in (5, 5, 6))
    assert first == second != third
