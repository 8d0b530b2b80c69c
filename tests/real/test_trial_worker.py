"""The worker trains real megatron-core models on gloo in every kind of layout and tells what the library made of it."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import math
import os
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")
pytest.importorskip("psutil")

from advisor.trace.analysis import analyse
from advisor.trial.job import Drive
from advisor.trial.outcome import outcome_of
from advisor.trial.processes import Limits, command, environment, run_group
from advisor.trial.trials import read_trials
from tests.trial.layouts import MODELS, write_estimate

pytestmark = pytest.mark.real

PROGRAM = (str(Path(__file__).parent / "trial_many.py"),)
TWO = {
    "tp": ("dense", {"tp": 2, "sp": False, "precision": "fp32"}),
    "tp-sp": ("dense", {"tp": 2, "sp": True}),
    "pp": ("dense", {"pp": 2}),
    "pp-vpp": ("dense", {"pp": 2, "vpp": 2, "overlap_p2p": True}),
    "dp": ("dense", {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "dp-recompute": ("dense", {"recompute": "full-uniform:1", "distributed_optimizer": False}),
    "fsdp": ("dense", {"fsdp": "optim_grads_params"}),
    "muon": ("dense", {"optimizer": "muon"}),
    "ep": ("moe", {"ep": 2, "dispatcher": "alltoall"}),
    "tp-ep": ("moe", {"tp": 2, "ep": 2, "dispatcher": "alltoall"}),
    "latent": ("latent", {"ep": 2, "dispatcher": "alltoall"}),
    "ep-overlap": ("moe", {"ep": 2, "dispatcher": "alltoall", "ep_overlap": True}),
    "shared-overlap": ("latent", {"ep": 2, "dispatcher": "alltoall", "shared_expert_overlap": True}),
    "moments": ("dense", {"moment_dtype": "bf16"}),
}
TRACED = {"tp-sp": {"tp"}, "tp-ep": {"tp", "ep", "edp"}, "dp": {"dp"}, "tp-pp-vpp": {"tp", "pp"}}
FOUR = {
    "tp-pp-vpp": ("dense", {"tp": 2, "pp": 2, "vpp": 2}),
    "pp-ep": ("latent", {"pp": 2, "ep": 2, "dispatcher": "allgather"}),
    "etp": ("moe", {"tp": 2, "ep": 2, "etp": 2, "dispatcher": "alltoall"}),
}


def run_many(folder: Path, layouts: dict, ranks: int) -> dict[str, list[dict]]:
    """What every rank of every layout left, by layout."""
    jobs = {}
    for name, (model, options) in layouts.items():
        drive = Drive("cpu", steps=2, warmup=1, profile_steps=1 if name in TRACED else 0)
        (trial,), _ = read_trials(write_estimate(folder, model, ranks, **options), 1, drive, None)
        jobs[name] = trial.job
    jobs_file = folder / "jobs.json"
    jobs_file.write_text(json.dumps(jobs))
    ended = run_group(
        command(ranks, jobs_file, folder, PROGRAM), folder, environment("cpu", 1), Limits(), lambda _: None
    )
    errors = "\n".join(path.read_text()[-3000:] for path in folder.glob("logs/*/*/*/stderr.log"))
    assert ended.exit_code == 0, errors
    return {
        name: [json.loads((folder / name / f"rank-{rank}.json").read_text()) for rank in range(ranks)] for name in jobs
    }


def once(tmp_path_factory, name: str, layouts: dict, ranks: int) -> tuple[Path, dict[str, list[dict]]]:
    """As `run_many`, by the first of the test processes (pytest -n) that gets here; the others read its results."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / f"worker-{name}"
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = folder / "results.json"
        if not results.exists():
            folder.mkdir()
            results.write_text(json.dumps(run_many(folder, layouts, ranks)))
    return folder, json.loads(results.read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return once(tmp_path_factory, "two", TWO, 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return once(tmp_path_factory, "four", FOUR, 4)


def check_training(model: str, ranks: list[dict]) -> None:
    """All ranks are done; the loss is that of a fresh model at first, equal where two ranks hold it, and falls."""
    assert {rank["outcome"] for rank in ranks} == {"done"}
    losses = [[step["loss"] for step in rank["steps"]] for rank in ranks if rank["steps"][0]["loss"] is not None]
    assert losses
    for one in losses:
        assert one[0] == pytest.approx(math.log(MODELS[model]["vocab_size"]), abs=0.5)
        assert one[-1] < one[0]
    assert all(step["grad_norm"] > 0 for rank in ranks for step in rank["steps"])
    assert all(rank["memory"]["resident_bytes"] > 100e6 for rank in ranks)


@pytest.mark.parametrize("name", list(TWO))
def test_two_ranks_train(two, name):
    check_training(TWO[name][0], two[1][name])


@pytest.mark.parametrize("name", list(FOUR))
def test_four_ranks_train(four, name):
    check_training(FOUR[name][0], four[1][name])


def test_tensor_ranks_see_one_loss(two):
    for name in ("tp", "tp-sp", "tp-ep"):
        first, second = ([step["loss"] for step in rank["steps"]] for rank in two[1][name])
        assert first == pytest.approx(second, rel=1e-4)


def test_sequence_parallelism_changes_no_loss(two):
    plain = two[1]["tp"][0]["steps"][0]["loss"]
    assert two[1]["tp-sp"][0]["steps"][0]["loss"] == pytest.approx(plain, rel=2e-2)


def test_layers_and_parameters_are_dealt_as_planned(two, four):
    assert [rank["layers"] for rank in two[1]["pp"]] == [[2], [2]]
    assert [rank["layers"] for rank in two[1]["pp-vpp"]] == [[1, 1], [1, 1]]
    assert [rank["layers"] for rank in two[1]["dp"]] == [[4], [4]]
    assert [rank["layers"] for rank in four[1]["tp-pp-vpp"]] == [[1, 1]] * 4
    whole = two[1]["dp"][0]["parameters"]
    assert sum(rank["parameters"] for rank in two[1]["pp"]) == whole
    assert two[1]["tp"][0]["parameters"] < 0.51 * whole


def test_effective_settings_are_those_of_the_library(two):
    def effective(name):
        return two[1][name][0]["effective"]

    assert (effective("tp")["sequence_parallel"], effective("tp-sp")["sequence_parallel"]) == (False, True)
    assert (effective("tp")["bf16"], effective("tp-sp")["bf16"]) == (False, True)
    assert (effective("pp-vpp")["overlap_p2p_comm"], effective("pp-vpp")["batch_p2p_comm"]) == (True, False)
    assert (effective("pp")["overlap_p2p_comm"], effective("pp")["batch_p2p_comm"]) == (False, True)
    assert effective("pp-vpp")["virtual_pipeline_model_parallel_size"] == 2
    ddp = effective("dp")["ddp"]
    assert ddp["overlap_grad_reduce"]
    assert ddp["overlap_param_gather"]
    assert ddp["use_distributed_optimizer"]
    assert ddp["bucket_size"] > 0
    assert not effective("dp-recompute")["ddp"]["use_distributed_optimizer"]
    assert effective("dp-recompute")["recompute_granularity"] == "full"
    assert effective("ep")["moe_token_dispatcher_type"] == "alltoall"
    assert effective("latent")["layer_spec"] == "local"
    assert all(effective(name)["ignored"] == [] for name in TWO)


def test_sharded_parameters_learn_as_replicated_ones(two):
    pytest.importorskip("einops")
    sharded, plain = two[1]["fsdp"][0], two[1]["dp"][0]
    assert sharded["stand_ins"] == []
    assert sharded["effective"]["ddp"]["use_megatron_fsdp"]
    assert sharded["effective"]["ddp"]["data_parallel_sharding_strategy"] == "optim_grads_params"
    for one, other in zip(sharded["steps"], plain["steps"][:3], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=2e-3)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-2)


def test_what_stands_in_is_never_silent(two):
    said = two[1]["muon"][0]["stand_ins"]
    if importlib.util.find_spec("emerging_optimizers") is None:
        assert said == ["adam in place of muon: emerging_optimizers is not installed"]
    else:
        assert said == []
    assert two[1]["dp"][0]["stand_ins"] == []
    assert two[1]["moments"][0]["stand_ins"] == [
        "fp32 states of the optimizer in place of bf16 ones: Transformer Engine needs a GPU"
    ]


def test_overlapped_exchange_of_experts_changes_no_loss(two):
    """The schedule that overlaps it runs here on one stream: the same products in another order."""
    for plain, overlapped in (("ep", "ep-overlap"), ("latent", "shared-overlap")):
        losses = [[step["loss"] for step in two[1][name][0]["steps"][:3]] for name in (plain, overlapped)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert two[1]["ep-overlap"][0]["effective"]["overlap_moe_expert_parallel_comm"]
    assert two[1]["shared-overlap"][0]["effective"]["moe_shared_expert_overlap"]


def test_traces_can_be_measured(two):
    found = analyse([two[0] / "tp-sp" / "traces"])
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert all(rank.front_end == "gloo" and len(rank.steps) == 1 for rank in found.ranks)
    assert found.mean.communication_s > 0
    assert found.mean.compute_s > 0


@pytest.mark.parametrize("name", list(TRACED))
def test_kinds_of_communication_are_told_apart_without_a_gpu(two, four, name):
    """Gloo's events name no group; the worker names it, by the threads that work for it."""
    folder, ranks = (four[0], 4) if name in FOUR else (two[0], 2)
    found = analyse([folder / name / "traces"])
    assert [rank.rank for rank in found.ranks] == list(range(ranks))
    kinds = found.mean.kinds
    assert TRACED[name] <= set(kinds)
    assert all(kinds[kind].calls > 0 and kinds[kind].communication_s > 0 for kind in TRACED[name])
    named = [said for rank in found.ranks for said in rank.findings if "count as other" in said]
    assert named == []


def test_a_loss_that_is_not_finite_is_an_outcome_with_its_step(tmp_path):
    (trial,), _ = read_trials(write_estimate(tmp_path, "dense", 1), 1, Drive("cpu", steps=3, warmup=0), None)
    job = {**trial.job, "optimizer": {**trial.job["optimizer"], "lr": 1e30, "clip_grad": 0.0}}
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps(job))
    ended = run_group(command(1, job_file, tmp_path), tmp_path, environment("cpu", 1), Limits(), lambda _: None)
    found = outcome_of(ended, tmp_path, 1)
    assert (found.kind, found.failure.rank) == ("nan", 0)
    assert "in step 1" in found.failure.message
