"""What the worker does on a GPU, as far as a CPU can tell: cards, buffers, stand-ins, memory, every name it uses."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import megatron.core
import torch

import advisor
from advisor.configure.userbuffers import preset_gemms, preset_names
from advisor.trial.job import Drive
from advisor.trial.trials import read_trials
from advisor.trial.worker import buffers, build, loop, optional, said
from tests.trial.layouts import write_estimate

pytestmark = pytest.mark.real

FACTS = json.loads((Path(__file__).parent / "data" / "gpu_signatures.json").read_text())
CUDA = Drive("cuda")
LAYOUTS = {
    "tp": ("dense", {"tp": 2, "sp": True, "tp_overlap": True}),
    "fp8": ("dense", {"tp": 2, "sp": True, "tp_overlap": True, "precision": "fp8-delayed", "fp8_params": True}),
    "cp": ("dense", {"cp": 2}),
    "pp-vpp": ("dense", {"pp": 2, "vpp": 2}),
    "moments": ("dense", {"moment_dtype": "bf16", "grad_dtype": "bf16"}),
    "offload": ("dense", {"optimizer_offload": 0.5}),
    "fsdp": ("dense", {"fsdp": "optim_grads_params"}),
    "muon": ("dense", {"optimizer": "muon"}),
    "experts": ("moe", {"ep": 2, "dispatcher": "deepep", "ep_overlap": True, "delay_wgrad": True}),
    "hybridep": ("moe", {"ep": 2, "dispatcher": "hybridep", "system": "dgx-b200"}),
    "latent": ("latent", {"tp": 2, "ep": 2, "dispatcher": "alltoall", "shared_expert_overlap": True}),
}
MISSING = "transformer_engine is not installed"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Jobs for GPUs by name, each as the worker reads it."""
    folder, found = tmp_path_factory.mktemp("jobs"), {}
    for name, (model, options) in LAYOUTS.items():
        (trial,), _ = read_trials(write_estimate(folder, model, 2, **options), 1, CUDA, None)
        found[name] = json.loads(json.dumps(trial.job))
    return found


@pytest.mark.parametrize(("local", "seen", "card"), [(0, 8, 0), (5, 8, 5), (3, 1, 0)])
def test_a_rank_takes_its_own_card_or_the_only_one(local, seen, card):
    assert build.card_of(local, seen) == card


@pytest.mark.parametrize(("local", "seen"), [(0, 0), (4, 4), (2, 2)])
def test_a_rank_without_a_card_is_told(local, seen):
    with pytest.raises(RuntimeError, match=f"rank {local} of this node has no GPU: torch sees {seen}"):
        build.card_of(local, seen)


@pytest.mark.parametrize(
    ("problem", "out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("NCCL error in: ... unhandled cuda error\nlast error: Cuda failure 2 'out of memory'"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_memory_that_ran_out_in_any_library_is_told_apart(problem, out):
    assert said.is_out_of_memory(problem) is out


def test_a_problem_without_words_has_a_line():
    assert said.first_line(AssertionError()) == "AssertionError"
    assert said.first_line(RuntimeError("\n first\nsecond")) == "first"


class Engine:
    """transformer_engine.pytorch.module.base as far as the worker uses it, with the parameters of a version."""

    class UserBufferQuantizationMode:
        NONE, FP8 = "none", "fp8"

    def __init__(self, version: str, problem: Exception | None = None) -> None:
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in FACTS["transformer_engine"][version]["initialize_ub"]
        ]
        self.told: dict[str, object] = {}
        self.destroyed = False

        def initialize_ub(**given: object) -> None:
            if problem is not None:
                raise problem
            self.told = given

        initialize_ub.__signature__ = inspect.Signature(parameters)
        self.initialize_ub = initialize_ub

    def destroy_ub(self) -> None:
        self.destroyed = True


@pytest.fixture
def alone(monkeypatch):
    """One rank, whose card is the CPU; `others` says what all ranks together say."""
    others = SimpleNamespace(fine=True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")

    def all_reduce(tensor: object, op: object) -> None:
        tensor.mul_(float(others.fine))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return others


def opened(monkeypatch, engine, job, **config):
    monkeypatch.setattr(buffers.importlib, "import_module", lambda _: engine)
    settings = SimpleNamespace(tp_comm_overlap=True, fp8=None, hidden_size=64)
    vars(settings).update(config)
    return buffers.open_user_buffers(job, settings, torch.bfloat16), settings


@pytest.mark.parametrize("version", list(FACTS["transformer_engine"]))
@pytest.mark.parametrize("name", ["tp", "fp8"])
def test_user_buffers_are_made_with_the_words_of_every_version(monkeypatch, alone, jobs, version, name):
    engine, job = Engine(version), jobs[name]
    words, config = opened(monkeypatch, engine, job, fp8=job["config"].get("fp8"))
    assert (words, config.tp_comm_overlap) == ((), True)
    known = FACTS["transformer_engine"][version]["initialize_ub"]
    assert set(engine.told) <= set(known)
    assert engine.told["shape"] == [32, 64]
    assert (engine.told["tp_size"], engine.told["bootstrap_backend"]) == (2, "nccl")
    assert engine.told["dtype"] is torch.bfloat16
    if "quantization_modes" in known:
        assert engine.told["quantization_modes"] == ["fp8" if name == "fp8" else "none"]
        assert "use_fp8" not in engine.told
    else:
        assert engine.told["use_fp8"] is (name == "fp8")


@pytest.mark.parametrize("version", list(FACTS["transformer_engine"]))
def test_settings_of_the_presets_are_known_to_every_version(version):
    known = set(FACTS["transformer_engine"][version]["add_ub"]) - {"name", "quantization_mode", "is_reduce_scatter"}
    used = {key for name in preset_names() for settings in preset_gemms(name).values() for key in settings}
    assert used <= known


def test_the_buffers_of_a_preset_reach_the_job(tmp_path):
    options = {"tp": 8, "sp": True, "tp_overlap": True, "seq_len": 8192, "gbs": 8, "cuda_graph": "none"}
    found = advisor.estimate(model="llama3-70b", gpus=64, system="dgx-h100", pp=4, **options)
    path = tmp_path / "estimate.json"
    path.write_text(json.dumps(found.to_dict()))
    (trial,), _ = read_trials(path, 1, CUDA, None)
    assert set(trial.job["user_buffers"]) >= {"qkv_fprop", "proj_fprop", "fc1_dgrad", "fc2_fprop"}
    assert trial.job["user_buffers"]["proj_fprop"]["method"] in {"pipeline", "ring_exchange"}


def test_refused_user_buffers_are_plain_collectives_with_the_reason(monkeypatch, alone, jobs):
    problem = AssertionError("CUDA device does not support multicast. Launch app with UB_SKIPMC=1\nmore")
    alone.fine = False
    words, config = opened(monkeypatch, Engine("2.12.0", problem), jobs["tp"])
    assert not config.tp_comm_overlap
    (line,) = words
    assert line.startswith("plain collectives in place of user buffers")
    assert line.endswith("UB_SKIPMC=1")
    silent, _ = opened(monkeypatch, Engine("2.12.0", AssertionError()), jobs["tp"])
    assert silent[0].endswith("says AssertionError")


def test_all_ranks_have_user_buffers_or_none(monkeypatch, alone, jobs):
    """A rank whose buffers were made gives them up where another has none: the two could not talk to each other."""
    alone.fine, engine = False, Engine("2.4.0")
    words, config = opened(monkeypatch, engine, jobs["tp"])
    assert engine.destroyed
    assert not config.tp_comm_overlap
    assert "another rank has none" in words[0]


STAND_INS = {
    "tp": {"user buffers"},
    "fp8": {"user buffers", "bf16 in place of fp8"},
    "moments": {"fp32 states of the optimizer in place of bf16 ones"},
    "experts": {"delayed ones", "grouped GEMM", "alltoall in place of deepep", "tokens permuted by torch"},
    "hybridep": {"alltoall in place of hybridep"},
}


@pytest.mark.parametrize("name", list(STAND_INS))
def test_without_the_engine_every_stand_in_is_told(monkeypatch, jobs, name):
    monkeypatch.setattr(optional, "find_spec", lambda _: None)
    asked = json.loads(json.dumps(jobs[name]))
    found, words = optional.settled(jobs[name], MISSING)
    assert jobs[name] == asked, "the job itself is left as it was"
    for piece in STAND_INS[name]:
        assert any(piece in line for line in words), words
    assert any("Apex" in line for line in words)
    config = found["config"]
    for field in ("tp_comm_overlap", "delay_wgrad_compute", "moe_grouped_gemm", "fp8", "fp8_recipe", "fp8_param"):
        assert not config.get(field), field
    assert not {"fp8_param_gather", "delay_wgrad_compute"} & set(found["ddp"])
    assert "fp8_recipe" not in found["optimizer"]
    assert config.get("moe_token_dispatcher_type") != "flex"


def test_with_the_engine_nothing_of_it_is_taken_away(monkeypatch, jobs):
    monkeypatch.setattr(optional, "find_spec", lambda _: object())
    for name in ("tp", "fp8", "moments"):
        found, words = optional.settled(jobs[name], "")
        assert [line for line in words if "rotary" not in line] == []
        kept = {key: value for key, value in found["config"].items() if key != "apply_rope_fusion"}
        assert kept == {key: value for key, value in jobs[name]["config"].items() if key != "apply_rope_fusion"}
        assert found["optimizer"] == jobs[name]["optimizer"]


def test_context_parallelism_without_the_engine_is_refused(jobs):
    with pytest.raises(RuntimeError, match=f"context parallelism needs Transformer Engine: {MISSING}"):
        optional.settled(jobs["cp"], MISSING)


def test_a_broken_engine_is_absent_with_its_words(monkeypatch):
    assert optional.lack_of_engine("cpu") == "Transformer Engine needs a GPU"
    monkeypatch.setattr(optional, "find_spec", lambda _: None)
    assert optional.lack_of_engine("cuda") == MISSING

    def broken(_: str) -> None:
        raise RuntimeError("Found empty meta package\nInstall ...")

    monkeypatch.setattr(optional, "find_spec", lambda _: object())
    monkeypatch.setattr(optional.importlib, "import_module", broken)
    assert optional.lack_of_engine("cuda") == "transformer_engine cannot be imported: Found empty meta package"


def test_a_gpu_job_asks_for_the_fused_kernels_that_are_priced(jobs):
    """TransformerConfig has them off: without these fields a layer would keep other tensors than are predicted."""
    dense, latent = jobs["tp"]["config"], jobs["latent"]["config"]
    on = ("gradient_accumulation_fusion", "bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion",
          "cross_entropy_loss_fusion", "deallocate_pipeline_outputs")  # fmt: skip
    assert all(dense[name] and latent[name] for name in on)
    assert (dense["apply_rope_fusion"], latent["apply_rope_fusion"]) == (True, False)
    assert not jobs["fsdp"]["config"]["gradient_accumulation_fusion"]
    assert jobs["experts"]["ddp"]["delay_wgrad_compute"]
    assert (jobs["fp8"]["config"]["fp8_param"], jobs["fp8"]["ddp"]["fp8_param_gather"]) == (True, True)
    assert jobs["fp8"]["optimizer"]["fp8_recipe"] == "delayed"
    assert jobs["moments"]["optimizer"]["main_grads_dtype"] == "bf16"
    assert jobs["offload"]["optimizer"]["use_precision_aware_optimizer"]


def sections(jobs):
    """Names that jobs give to each of megatron-core's configurations."""
    return {
        "config": {name for job in jobs.values() for name in job["config"]},
        "ddp": {name for job in jobs.values() for name in job["ddp"]},
        "optimizer": {name for job in jobs.values() for name in job["optimizer"]},
    }


@pytest.mark.parametrize("version", list(FACTS["megatron_core"]))
def test_every_field_and_argument_is_known_to_both_versions(jobs, version):
    facts = FACTS["megatron_core"][version]
    for section, names in sections(jobs).items():
        assert names <= set(facts["fields"][section]), section
    for function, names in FACTS["used"].items():
        assert set(names) <= set(facts["functions"][function]), function
        assert set(facts["required"][function]) <= set(names) | {"is_hybrid_cp"}, function


def test_the_facts_are_those_of_the_installed_library():
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    facts = FACTS["megatron_core"].get(megatron.core.__version__)
    if facts is None:
        pytest.skip(f"no facts of megatron-core {megatron.core.__version__}")
    kinds = {"config": MLATransformerConfig, "ddp": DistributedDataParallelConfig, "optimizer": OptimizerConfig}
    for section, kind in kinds.items():
        assert set(facts["fields"][section]) == {field.name for field in dataclasses.fields(kind)}
    for name, parameters in facts["functions"].items():
        module, _, function = name.rpartition(".")
        found = getattr(__import__(module, fromlist=[function]), function)
        assert list(inspect.signature(found).parameters) == parameters, name


def test_configurations_are_made_of_every_job(jobs):
    for name, job in jobs.items():
        settled, _ = optional.settled({**job, "sizes": {**job["sizes"], "cp": 1}}, MISSING)
        config, ignored = build._config(settled)
        assert ignored == (), name
        assert config.deallocate_pipeline_outputs


@pytest.mark.parametrize("asks", [False, True])
def test_the_share_of_a_context_rank_is_asked_for_as_the_version_wants(monkeypatch, asks):
    told: dict[str, object] = {}
    if asks:

        def share(batch: object, is_hybrid_cp: bool, cp_group: object = None) -> object:
            told["hybrid"] = is_hybrid_cp
            return batch

    else:

        def share(batch: object, cp_group: object = None) -> object:
            return batch

    monkeypatch.setattr("megatron.core.utils.get_batch_on_this_cp_rank", share)
    assert loop._share({"tokens": 1}) == {"tokens": 1}
    assert told == ({"hybrid": False} if asks else {})


def test_peaks_on_a_gpu_begin_after_the_warm_up(monkeypatch, tmp_path):
    from advisor.trial.worker.witness import Witness

    calls = []
    for name, value in {
        "reset_peak_memory_stats": None, "max_memory_allocated": 3, "max_memory_reserved": 5, "mem_get_info": (90, 100)
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda name=name, value=value: (calls.append(name), value)[1])
    witness = Witness(tmp_path, 0, "cuda")
    built = SimpleNamespace(job={"run": {"warmup": 1, "steps": 2, "profile_steps": 0}}, on_gpu=True)
    monkeypatch.setattr(loop, "_batches", lambda _: [])
    monkeypatch.setattr(loop, "_step", lambda *_: (calls.append("step"), (1.0, 1.0))[1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    loop.run_steps(built, witness, tmp_path)
    step = ["step", "synchronize"]
    assert calls[:6] == [*step, "reset_peak_memory_stats", *step, *step[:1]]
    peak = witness.found["memory"]
    assert (peak["allocated_bytes"], peak["reserved_bytes"], peak["device_bytes"]) == (3, 5, 10)


def test_groups_are_opened_on_the_card_with_the_timeout_of_the_job(monkeypatch, jobs):
    """Megatron's own groups default to half an hour, whatever the world's group was told."""
    from megatron.core import parallel_state, tensor_parallel

    calls: dict[str, object] = {}
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda card: calls.update(card=card))

    def init_process_group(backend: str, timeout: object) -> None:
        assert "card" in calls, "the card is chosen before NCCL looks at it"
        calls.update(backend=backend, timeout=timeout.total_seconds())

    monkeypatch.setattr(torch.distributed, "init_process_group", init_process_group)
    monkeypatch.setattr(parallel_state, "initialize_model_parallel", lambda **given: calls.update(given))
    monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_rank", lambda: 1)
    monkeypatch.setattr(tensor_parallel, "model_parallel_cuda_manual_seed", lambda seed: calls.update(seed=seed))
    build.open_groups(jobs["pp-vpp"])
    assert (calls["card"], calls["backend"], calls["timeout"]) == (3, "nccl", 600.0)
    assert calls["distributed_timeout_minutes"] == 10.0
    assert calls["seed"] == jobs["pp-vpp"]["run"]["seed"] + 100
    names = FACTS["used"]["megatron.core.parallel_state.initialize_model_parallel"]
    assert set(names) <= set(calls)


def test_muon_is_asked_for_in_the_words_that_both_versions_take(monkeypatch, jobs):
    """megatron-core 0.19 shards Muon by layers only under the name dist_muon; 0.16 does not look at the name."""
    from megatron.core.optimizer import muon

    monkeypatch.setattr(optional, "find_spec", lambda _: object())
    job, _ = optional.settled(jobs["muon"], "")
    monkeypatch.setattr(muon, "get_megatron_muon_optimizer", lambda config, *_, **more: (config, more))
    config, more = build._optimizer(job, [])
    assert config.optimizer == "dist_muon"
    assert not config.use_distributed_optimizer
    assert more["layer_wise_distributed_optimizer"]
