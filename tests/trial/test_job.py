"""Jobs, proxies and names: what the worker is told follows from the candidate, and what cannot run is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from advisor.configure.chosen import read_plan
from advisor.configure.environment import variables
from advisor.configure.job import Job
from advisor.errors import InputError
from advisor.spec.layout import Dispatcher, Fsdp
from advisor.spec.model import ExpertMlp
from advisor.trial.job import Drive, make_job
from advisor.trial.processes import environment
from advisor.trial.proxy import make_proxy, shorter
from advisor.trial.trials import make_trial, read_trials
from tests.trial.layouts import write_estimate, write_plan

CPU, GPU = Drive("cpu"), Drive("cuda")


def chosen(tmp_path, model="dense", gpus=4, **layout):
    return read_plan(write_estimate(tmp_path, model, gpus, **layout))


def test_a_job_says_the_layout_in_the_words_of_megatron(tmp_path):
    one = chosen(tmp_path, tp=2, pp=2, vpp=2, mbs=1, gbs=8)
    job = make_job(one.request, one.candidate, GPU)
    assert job["sizes"] == {"tp": 2, "pp": 2, "vpp": 2, "cp": 1, "ep": 1, "etp": 1}
    assert job["config"]["overlap_p2p_comm"]
    assert not job["config"]["batch_p2p_comm"]
    assert job["config"]["sequence_parallel"]
    assert job["batch"]["num_microbatches"] == 8
    assert job["gpt"]["vocab_size"] % (128 * 2) == 0
    assert json.loads(json.dumps(job)) == job


def test_a_cpu_job_turns_fused_kernels_off_and_says_what_stands_in(tmp_path):
    one = chosen(tmp_path, "moe", ep=4, dispatcher="deepep")
    job = make_job(one.request, one.candidate, CPU)
    assert job["config"]["moe_token_dispatcher_type"] == "alltoall"
    assert not job["config"]["moe_grouped_gemm"]
    assert any("alltoall in place of deepep" in words for words in job["stand_ins"])
    gpu = make_job(one.request, one.candidate, GPU)
    assert gpu["config"]["moe_token_dispatcher_type"] == "flex"
    assert gpu["config"]["moe_flex_dispatcher_backend"] == "deepep"
    assert gpu["stand_ins"] == []


def test_latent_attention_and_first_dense_layers_are_told(tmp_path):
    one = chosen(tmp_path, "latent", ep=4, dispatcher="alltoall")
    config = make_job(one.request, one.candidate, CPU)["config"]
    assert config["multi_latent_attention"]
    assert (config["kv_lora_rank"], config["q_lora_rank"]) == (16, 24)
    assert config["moe_layer_freq"] in ([0, 1, 1, 1], (0, 1, 1, 1))


@pytest.mark.parametrize(
    ("change", "device", "words"),
    [
        ({"optimizer_offload": 0.5}, "cpu", "offload"),
    ],
)
def test_what_the_worker_cannot_run_is_refused(tmp_path, change, device, words):
    one = chosen(tmp_path, tp=2)
    candidate = dataclasses.replace(one.candidate, knobs=dataclasses.replace(one.knobs, **change))
    with pytest.raises(InputError, match=words):
        make_job(one.request, candidate, Drive(device))


def test_context_parallelism_needs_a_gpu(tmp_path):
    one = chosen(tmp_path, cp=2)
    with pytest.raises(InputError, match="context parallelism"):
        make_job(one.request, one.candidate, CPU)
    assert make_job(one.request, one.candidate, GPU)["sizes"]["cp"] == 2


def test_names_and_keys_tell_jobs_apart(tmp_path):
    one = chosen(tmp_path, "moe", tp=2, ep=2, dispatcher="alltoall")
    first = make_trial("plan", one.request, one.candidate, CPU, None)
    same = make_trial("other plan", one.request, one.candidate, CPU, None)
    longer = make_trial("plan", one.request, one.candidate, Drive("cpu", steps=30), None)
    assert first.name.startswith("tp2-ep2-dp2-alltoall-mbs1-")
    assert first.key == same.key != longer.key
    assert one.knobs.dispatcher is Dispatcher.alltoall


def test_top_takes_what_the_plan_holds(tmp_path):
    plan = write_plan(tmp_path, "dense", 2, top=3)
    held = len(json.loads(plan.read_text())["candidates"])
    trials, left_out = read_trials(plan, 2, CPU, None)
    assert [trial.candidate.rank for trial in trials] == [1, 2]
    assert left_out == ()
    assert len(read_trials(plan, 50, CPU, None)[0]) == held


def test_a_candidate_that_cannot_run_is_left_out_with_its_reason(tmp_path):
    plan = write_plan(tmp_path, "dense", 4, fix="cuda_graph=none,tp=1,pp=1", top=3)
    record = json.loads(plan.read_text())
    held = len(record["candidates"])
    record["candidates"][0]["layout"]["cp"] = 2
    plan.write_text(json.dumps(record))
    trials, left_out = read_trials(plan, 20, CPU, None)
    assert [trial.candidate.rank for trial in trials] == list(range(2, held + 1))
    assert len(left_out) == 1
    assert left_out[0].startswith("candidate 1: ")
    assert "context parallelism" in left_out[0]


def test_sharding_is_told_to_the_wrapper(tmp_path):
    one = chosen(tmp_path, fsdp="optim_grads_params")
    assert one.knobs.fsdp is Fsdp.optim_grads_params
    for drive in (CPU, GPU):
        ddp = make_job(one.request, one.candidate, drive)["ddp"]
        assert ddp["use_megatron_fsdp"]
        assert ddp["data_parallel_sharding_strategy"] == "optim_grads_params"
        assert ddp["gradient_reduce_div_fusion"] is (drive is GPU)


def test_user_buffers_are_asked_of_a_gpu_and_said_to_be_missing_on_a_cpu(tmp_path):
    one = chosen(tmp_path, tp=2, tp_overlap=True)
    assert make_job(one.request, one.candidate, GPU)["config"]["tp_comm_overlap"]
    job = make_job(one.request, one.candidate, CPU)
    assert not job["config"]["tp_comm_overlap"]
    assert any("in place of user buffers" in words for words in job["stand_ins"])


def test_planned_variables_are_part_of_the_job(tmp_path):
    one = chosen(tmp_path, tp=2)
    job = make_job(one.request, one.candidate, GPU)
    planned = variables(Job(one.model, one.cluster, one.workload, one.layout, one.knobs))
    assert job["environment"] == {each.name: each.value for each in planned}
    assert job["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    found = environment("cpu", 3, job["environment"])
    assert found["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert (found["OMP_NUM_THREADS"], found["CUDA_VISIBLE_DEVICES"]) == ("3", "")


def test_graphs_are_not_captured_and_not_priced(tmp_path):
    one = chosen(tmp_path, tp=4, cuda_graph="full_iteration")
    trial = make_trial("plan", one.request, one.candidate, GPU, None)
    assert trial.predicted.step_s > one.step.step_s, "the host is not taken out of the step"
    assert trial.candidate is one.candidate
    assert any("no CUDA graphs" in words for words in trial.stand_ins)
    plain = chosen(tmp_path, tp=4)
    same = make_trial("plan", plain.request, plain.candidate, GPU, None)
    assert same.key == trial.key
    assert same.predicted.step_s == pytest.approx(trial.predicted.step_s)
    assert same.stand_ins == ()


class TestProxy:
    """The model of a proxy, and the layout that comes with it."""

    def test_every_kind_keeps_its_share(self, tmp_path):
        model = chosen(tmp_path, "latent", ep=4, dispatcher="alltoall").model
        long = dataclasses.replace(model, pattern=(0,) * 3 + (1,) * 58)
        assert shorter(long, 2).pattern == (0, 1)
        assert shorter(long, 8).pattern == (0,) + (1,) * 7
        assert shorter(long, 61) == long
        assert isinstance(shorter(long, 8).kinds[1].mlp, ExpertMlp)

    @pytest.mark.parametrize("layers", [0, 1, 62])
    def test_too_few_or_too_many_layers_are_refused(self, tmp_path, layers):
        model = chosen(tmp_path, "latent", ep=4, dispatcher="alltoall").model
        with pytest.raises(InputError, match="layers"):
            shorter(dataclasses.replace(model, pattern=(0,) * 3 + (1,) * 58), layers)

    def test_shapes_stay_and_layers_and_microbatches_shrink(self, tmp_path):
        one = chosen(tmp_path, pp=2, gbs=64, mbs=1)
        request, candidate = make_proxy(one.request, one.candidate, 1)
        assert request.model.num_layers == 2, "one layer per chunk at least"
        assert candidate.layout.split.layers == (1, 1)
        assert candidate.layout.num_microbatches == 4 < one.layout.num_microbatches
        assert candidate.step.step_s < one.step.step_s
        for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "sp"):
            assert getattr(candidate.layout, name) == getattr(one.layout, name)

    def test_a_proxy_of_everything_is_the_layout_itself(self, tmp_path):
        one = chosen(tmp_path, tp=4, gbs=2, mbs=1)
        _, candidate = make_proxy(one.request, one.candidate, one.model.num_layers)
        assert candidate.layout == one.layout
        assert candidate.step.step_s == pytest.approx(one.step.step_s)

    def test_more_chunks_than_layers_are_refused(self, tmp_path):
        one = chosen(tmp_path, pp=4)
        with pytest.raises(InputError, match="proxy"):
            make_proxy(one.request, one.candidate, 5)
