"""Checkpoints of a plan: sizes by arithmetic, intervals in whole steps, host memory."""

from __future__ import annotations

import dataclasses

import pytest

from advisor.configure.checkpoint import (
    checkpoint_bytes,
    checkpoint_cost,
    default_storage,
    host_memory_problem,
    nodes_of,
    save_interval,
)
from advisor.configure.chosen import read_plan
from advisor.configure.facts import reliability_facts
from advisor.cost.goodput import daly_interval
from advisor.cost.params import total_params
from advisor.spec.load.model import load_model
from tests.configure.plans import plan_file


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: read_plan(plan_file(folder, name)) for name in ("m2", "dense", "gb200", "llama405")}


@pytest.mark.parametrize(
    ("changes", "per_param"),
    [({}, 2 + 4 + 4 + 4), ({"moment_dtype": "bf16"}, 2 + 4 + 2 + 2), ({"main_param_dtype": "fp16"}, 2 + 2 + 4 + 4)],
)
def test_bytes_per_parameter(plans, changes, per_param):
    one = plans["dense"]
    candidate = dataclasses.replace(one.candidate, knobs=dataclasses.replace(one.knobs, **changes))
    params = total_params(load_model("qwen3-8b"))
    assert checkpoint_bytes(dataclasses.replace(one, candidate=candidate)) == params * per_param


def test_llama_405b_is_the_five_terabytes_that_everybody_knows(plans):
    assert checkpoint_bytes(plans["llama405"]) == pytest.approx(5.68e12, rel=0.01)


@pytest.mark.parametrize(("name", "nodes"), [("m2", 8), ("dense", 2), ("gb200", 32), ("llama405", 2048)])
def test_nodes(plans, name, nodes):
    assert nodes_of(plans[name]) == nodes


def test_write_times_follow_the_bandwidth(plans):
    facts, one = reliability_facts(), plans["m2"]
    given = checkpoint_cost(one, default_storage(facts, 8, 20.0))
    assert given.write_s == pytest.approx(checkpoint_bytes(one) / 20e9)
    by_table = default_storage(facts, 8, None)
    assert by_table.write_Bps == 8 * 1e9
    assert checkpoint_cost(one, by_table).write_s == pytest.approx(2.5 * given.write_s)
    assert given.host_bytes_per_node == pytest.approx(checkpoint_bytes(one) / 8)
    assert 1.0 < given.snapshot_s < 5.0


def test_the_interval_is_youngs_in_whole_steps():
    found = save_interval(mtbf_s=10_000, stall_s=2.0, step_s=7.0)
    assert found.seconds == found.steps * 7.0
    assert abs(found.seconds - daly_interval(10_000, 2.0)) <= 3.5
    assert "Young/Daly" in found.reason


def test_a_save_is_over_before_the_next_begins():
    found = save_interval(mtbf_s=10_000, stall_s=2.0, step_s=7.0, write_s=300.0)
    assert found.seconds >= 450.0
    assert "raised" in found.reason
    assert save_interval(mtbf_s=100, stall_s=1.0, step_s=1000.0).steps == 1


def test_a_snapshot_that_does_not_fit_the_host_is_told(plans):
    one = plans["m2"]
    cost = checkpoint_cost(one, default_storage(reliability_facts(), 8, None))
    system = dataclasses.replace(one.cluster.system, host_gib=300.0)
    small = dataclasses.replace(
        one, request=one.request.replaced(cluster=dataclasses.replace(one.cluster, system=system))
    )
    assert "node has 300 GiB" in host_memory_problem(small, cost)
    unknown = dataclasses.replace(system, host_gib=None)
    cluster = dataclasses.replace(one.cluster, system=unknown)
    assert host_memory_problem(dataclasses.replace(one, request=one.request.replaced(cluster=cluster)), cost) == ""
