"""Bucket size of data-parallel traffic: the framework's own is free, small ones cost latency, large ones a tail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.buckets import BRIDGE_BUCKET, CORE_BUCKET, bucket_counts, moved
from advisor.cost.hiding import Exchange
from advisor.cost.profile import load_profile
from advisor.cost.step import setting_of, step
from advisor.spec.layout import Dispatcher, Fsdp, Knobs, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.plan import StepEstimate
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

JOBS = {
    "llama3-8b": (64, {"gbs": 128}),
    "llama3-70b": (64, {"tp": 4, "pp": 4, "vpp": 5, "gbs": 128}),
    "qwen3-30b-a3b": (16, {"ep": 8, "gbs": 128}),
    "deepseek-v3": (256, {"tp": 2, "pp": 8, "ep": 8, "gbs": 512}),
}
WHOLE = 10**11


def priced(name: str, bucket: int | None, software: str = "", **knobs: object) -> StepEstimate:
    gpus, sizes = JOBS[name]
    model, cluster = load_model(name), make_cluster(load_system("dgx-h100"), gpus)
    held = dataclasses.replace(Knobs(dispatcher=Dispatcher.alltoall if model.is_moe else Dispatcher.none), **knobs)
    columns = table([layout_of(model, gpus, **sizes)], [held])
    workload = Workload(bucket_size=bucket, software=software)
    return step(model, cluster, workload, columns, load_profile(cluster.gpu)).detail(0)


def added(name: str, bucket: int, software: str = "", **knobs: object) -> float:
    return priced(name, bucket, software, **knobs).step_s - priced(name, None, software, **knobs).step_s


@pytest.mark.parametrize("name", JOBS)
def test_the_frameworks_own_size_costs_what_saying_nothing_costs(name: str) -> None:
    nothing, bridge = priced(name, None), priced(name, BRIDGE_BUCKET)
    assert bridge.step_s == pytest.approx(nothing.step_s, rel=1e-12)
    assert bridge.exposed_s["dp"] == pytest.approx(nothing.exposed_s["dp"], rel=1e-12)
    gpus, sizes = JOBS[name]
    ranks = gpus // (sizes.get("tp", 1) * sizes.get("pp", 1))
    core = max(CORE_BUCKET, 1_000_000 * ranks)
    assert added(name, core, "megatron-lm") == pytest.approx(0.0, abs=1e-12)
    assert added(name, core) != 0.0, "the two frameworks have sizes of their own"


@pytest.mark.parametrize("name", JOBS)
def test_tiny_buckets_cost_latency_and_one_for_all_shows_everything(name: str) -> None:
    tiny, whole = added(name, 100_000), added(name, WHOLE)
    assert tiny > 0
    assert whole > 0
    tail = priced(name, WHOLE)
    assert tail.exposed_s["dp"] > priced(name, None).exposed_s["dp"]
    if JOBS[name][1].get("pp", 1) == 1:
        assert tail.hidden_s["dp"] == pytest.approx(0.0, abs=0.03 * tail.exposed_s["dp"])


def test_latency_grows_with_the_buckets_of_a_chunk() -> None:
    """1,682 buckets instead of 36 on 16 ranks: some 40 us each, not free and not seconds."""
    tiny = [added("qwen3-30b-a3b", size) for size in (100_000, 10_000_000, 40_000_000)]
    assert tiny[0] > 2 * tiny[1] > 4 * tiny[2] > 0
    assert 0.02 < tiny[0] < 0.2


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "knobs",
    [{"overlap_grad_reduce": False, "overlap_param_gather": False}, {"fsdp": Fsdp.optim_grads_params}],
    ids=["no overlap", "fsdp"],
)
def test_what_is_not_cut_has_no_bucket_size(name: str, knobs: dict[str, object]) -> None:
    for size in (100_000, WHOLE):
        assert added(name, size, **knobs) == 0.0


def test_without_the_gather_overlap_only_reductions_move() -> None:
    both = added("llama3-8b", WHOLE)
    one = added("llama3-8b", WHOLE, overlap_param_gather=False)
    assert 0 < one < both


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(JOBS)),
    st.lists(st.integers(10**4, 10**11), min_size=2, max_size=6, unique=True),
    st.sampled_from(("", "megatron-lm")),
    st.booleans(),
)
def test_larger_buckets_are_fewer_and_traffic_stays_within_its_bounds(name, sizes, software, sharded) -> None:
    gpus, layout = JOBS[name]
    model, cluster = load_model(name), make_cluster(load_system("dgx-h100"), gpus)
    knobs = Knobs(distributed_optimizer=sharded, overlap_param_gather=sharded)
    columns = table([layout_of(model, gpus, **layout)], [knobs])
    before = np.inf
    for size in sorted(sizes):
        job = setting_of(model, cluster, Workload(bucket_size=size, software=software), columns,
                         load_profile(cluster.gpu))  # fmt: skip
        number = sum(part.sum() for part in bucket_counts(job, np.asarray(size)))
        assert 1 <= number <= before
        before = number
        found = step(model, cluster, job.workload, columns, job.profile).detail(0)
        assert found.exposed_s["dp"] >= 0
        assert found.hidden_s["dp"] >= 0
        assert sum(term.value for term in found.terms.values()) == pytest.approx(found.step_s, rel=1e-12)


def test_a_tail_shows_neither_less_than_nothing_nor_more_than_it_lasts() -> None:
    one = np.asarray(1.0)
    tail = Exchange(one, one, np.asarray(0.5))
    fewer = moved(tail, Exchange(-0.25 * one, 0 * one, np.asarray(-5.0)))
    more = moved(tail, Exchange(0 * one, 0.5 * one, np.asarray(5.0)))
    assert fewer.exposed == 0.0
    assert fewer.hidden == pytest.approx(1.75)
    assert more.exposed == pytest.approx(2.5)
    assert more.hidden == 0.0
    late = moved(Exchange(one, one, np.asarray(2.4)), Exchange(0 * one, 0 * one, 0 * one))
    assert late.exposed == pytest.approx(2.4), "what shows beyond the serial time stays"
