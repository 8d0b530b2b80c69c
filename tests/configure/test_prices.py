"""Every field and every variable has a price or a reason, and prices come from the cost model with and without."""

from __future__ import annotations

import dataclasses
import json
import math

import jsonschema
import numpy as np
import pytest
import referencing

from advisor import data
from advisor.configure.answer import OverlapAnswer, overlap_answer
from advisor.configure.environment import variables
from advisor.configure.job import preset
from advisor.configure.overlap import resolve
from advisor.configure.prices import DEFAULT_CONNECTIONS, FILE, Price
from advisor.cost.buckets import BRIDGE_BUCKET, TRIED_BUCKETS
from advisor.spec.layout import CudaGraph
from advisor.spec.plan import StepEstimate
from tests.configure.jobs import random_asked, random_job

LLAMA = {"tp": 4, "pp": 4, "vpp": 5, "system": "dgx-h100"}
DEEPSEEK = {"tp": 2, "pp": 8, "vpp": 2, "ep": 32, "system": "dgx-h100", "ep_overlap": True}


def asked(model: str, gpus: int, **options: object) -> OverlapAnswer:
    return overlap_answer(model, gpus, options, {})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llama() -> OverlapAnswer:
    return asked("llama3-70b", 64, **LLAMA)


@pytest.fixture(scope="module")
def deepseek() -> OverlapAnswer:
    return asked("deepseek-v3", 256, **DEEPSEEK)


def gain(answer: OverlapAnswer, name: str) -> Price:
    price = answer.prices[name]
    assert price.gain is not None, price.why
    return price


def test_every_field_and_every_variable_has_a_price_or_a_reason(llama, deepseek) -> None:
    for answer in (llama, deepseek, asked("qwen3-30b-a3b", 64, ep=32, dispatcher="hybridep", system="gb200-nvl72")):
        names = [one.path for one in answer.overlap.fields] + [one.name for one in answer.environment]
        assert {*answer.prices} == {*names}
        for name, price in answer.prices.items():
            if price.gain is None:
                assert len(price.why.split()) >= 3, name
                assert 0 <= price.acts_on_s <= answer.step.step_s + sum(answer.step.hidden_s.values())
            else:
                assert price.acts_on_s is None
                assert price.gain.kind in ("assumed", "measured")
                assert price.gain.low_s <= price.gain.saved_s <= price.gain.high_s
                assert price.gain.without_s - price.gain.with_s == pytest.approx(price.gain.saved_s)


def test_the_preset_knows_every_field_and_variable_and_no_other_and_names_terms_of_a_step(llama) -> None:
    rows = preset(FILE)
    assert {*preset("launch/environment.yaml")["variables"]} <= {*rows["variables"]}
    numbers, seen = np.random.default_rng(5), set()
    for _ in range(120):
        job = random_job(numbers)
        for target in ("0.3", "0.6"):
            asking = dataclasses.replace(random_asked(numbers), target=target)
            whole = dataclasses.replace(job.knobs, cuda_graph=CudaGraph.full_iteration)
            for one in (job, dataclasses.replace(job, knobs=whole)):
                seen |= {field.path for field in resolve(one, asking).fields}
    assert seen == {*rows["fields"]}
    terms = {*llama.step.terms, *(f"hidden_{name}" for name in llama.step.hidden_s)}
    for row in (*rows["fields"].values(), *rows["variables"].values()):
        assert "gain" in row or ("touches" in row and "why" in row)
        assert {*row.get("touches", {})} <= terms


def test_the_record_follows_its_schema(llama, deepseek) -> None:
    schemas = {
        name: json.loads(data.require("presets", f"schemas/{name}").read_text(encoding="utf-8"))
        for name in ("overlap.schema.json", "estimate.schema.json")
    }
    known = [(name, referencing.Resource.from_contents(one)) for name, one in schemas.items()]
    schema = schemas["overlap.schema.json"]
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema, registry=referencing.Registry().with_resources(known))
    lost = asked("llama3-70b", 64, **LLAMA, sp=False)
    illegal = asked("llama3-70b", 64, tp=3, system="dgx-h100")
    serving = asked("llama3-8b", 8, system="dgx-h100", mode="inference", batch=4, context=4096)
    for answer in (llama, deepseek, lost, illegal, serving):
        record = json.loads(json.dumps(answer.to_dict()))
        check.validate(record)
    del record["fields"][0]["price"]
    with pytest.raises(jsonschema.ValidationError):
        check.validate(record)


def test_a_stated_bucket_is_priced_and_the_frameworks_own_changes_nothing(llama) -> None:
    same = asked("llama3-70b", 64, **LLAMA, bucket_size=BRIDGE_BUCKET)
    tiny = asked("llama3-70b", 64, **LLAMA, bucket_size=100_000)
    assert same.step.step_s == pytest.approx(llama.step.step_s, rel=1e-12)
    assert tiny.step.step_s > llama.step.step_s
    assert gain(llama, "ddp.bucket_size").gain.saved_s > 0, "beside one bucket for everything"
    by_name = {one.name: one for one in tiny.gains}
    for size in TRIED_BUCKETS:
        one = by_name[f"bucket_size {size}"]
        assert one.without_s == pytest.approx(llama.step.step_s)
        stated = asked("llama3-70b", 64, **LLAMA, bucket_size=size)
        assert one.with_s == pytest.approx(stated.step.step_s)
        assert {one.name for one in stated.gains if one.now and "bucket_size " in one.name} == {f"bucket_size {size}"}


def test_a_bucket_that_bridge_loses_changes_no_step() -> None:
    plain = {**LLAMA, "distributed_optimizer": False}
    lost = asked("llama3-70b", 64, **plain, bucket_size=1000)
    assert lost.overlap.field("ddp.bucket_size").outcome == "silent"
    assert lost.step.step_s == asked("llama3-70b", 64, **plain).step.step_s


def test_one_queue_before_blackwell_is_worth_the_overlap_that_needs_its_order(llama) -> None:
    price = gain(llama, "CUDA_DEVICE_MAX_CONNECTIONS")
    assert price.gain.low_s == 0.0, "nothing may be lost"
    assert price.gain.kind == "assumed"
    assert str(DEFAULT_CONNECTIONS) in price.why
    overlap = next(one for one in llama.gains if one.name == "tp_overlap")
    assert price.gain.saved_s > overlap.saved_s / 2
    newer = asked("llama3-70b", 64, **{**LLAMA, "system": "dgx-b200"})
    assert newer.prices["CUDA_DEVICE_MAX_CONNECTIONS"].gain is None


def test_many_queues_beside_the_expert_overlap_are_worth_half_of_it(deepseek) -> None:
    price = gain(deepseek, "CUDA_DEVICE_MAX_CONNECTIONS")
    overlap = next(one for one in deepseek.gains if one.name == "ep_overlap")
    assert price.gain.kind == "measured"
    assert price.gain.saved_s == pytest.approx((1 - 3.7 / 7.8) * overlap.saved_s, rel=0.02)


def test_one_queue_without_tensor_parallelism_costs_the_data_parallel_overlap() -> None:
    answer = asked("llama3-8b", 64, system="dgx-h100")
    price = gain(answer, "CUDA_DEVICE_MAX_CONNECTIONS")
    reduce = next(one for one in answer.gains if one.name == "overlap_grad_reduce")
    assert price.gain.saved_s == pytest.approx(reduce.saved_s)
    sharded = asked("llama3-8b", 64, system="dgx-h100", fsdp="optim_grads_params")
    assert "refuses 1" in sharded.prices["CUDA_DEVICE_MAX_CONNECTIONS"].why


def test_a_margin_lies_between_slower_norms_and_traffic_let_through(llama, deepseek) -> None:
    for answer in (llama, deepseek):
        for name in ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN"):
            one = gain(answer, name).gain
            assert one.low_s < 0 < one.high_s
            assert one.saved_s == pytest.approx(one.low_s + one.high_s)
            assert -one.low_s < answer.step.terms["compute_memory_bound"].value
            assert one.high_s < sum(answer.step.hidden_s.values())


def test_the_domain_of_hybridep_is_worth_the_way_through_the_network() -> None:
    options = {"ep": 32, "dispatcher": "hybridep"}
    rack = asked("qwen3-30b-a3b", 64, system="gb200-nvl72", **options)
    node = asked("qwen3-30b-a3b", 64, system="dgx-b200", **options)
    inside = asked("qwen3-30b-a3b", 64, system="gb200-nvl72", **{**options, "ep": 4})
    for name in ("NVLINK_DOMAIN_SIZE", "USE_MNNVL", "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"):
        assert gain(rack, name).gain.saved_s > 0.1 * rack.step.step_s
        assert node.prices[name].gain is None
        assert "stays inside a node" in inside.prices[name].why


def test_segments_that_grow_save_bytes_and_no_time(llama) -> None:
    price = llama.prices["PYTORCH_CUDA_ALLOC_CONF"]
    assert price.gain is None
    assert price.saved_bytes > 0
    assert price.record()["saved_bytes"] == price.saved_bytes


def test_bounds_are_those_of_the_step(llama) -> None:
    terms = llama.step.terms
    assert llama.prices["NCCL_P2P_NET_CHUNKSIZE"].acts_on_s == terms["exposed_pp"].value
    assert llama.prices["model.tp_comm_overlap_cfg"].acts_on_s == terms["exposed_tp"].value


def test_serving_has_no_step_and_no_prices() -> None:
    answer = asked("llama3-8b", 8, system="dgx-h100", mode="inference", batch=4, context=4096)
    assert not answer.prices
    assert all(one["price"] is None for one in answer.to_dict()["environment"])
    assert isinstance(answer.step, StepEstimate | None)


def test_variables_are_priced_for_the_knobs_that_hold() -> None:
    """Expert overlap that the dispatcher refuses is lost, and with it what many queues would be worth."""
    job = asked("llama3-70b", 64, **LLAMA).overlap.held
    assert job.workload.bucket_size is None
    held = dataclasses.replace(job, knobs=dataclasses.replace(job.knobs, tp_overlap=False))
    assert [one.name for one in variables(held)] == [one.name for one in variables(job)]
    assert all(math.isfinite(one.saved_s) for one in asked("llama3-70b", 64, **LLAMA).gains if one.saved_s is not None)
