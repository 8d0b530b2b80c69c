"""What `advisor overlap` says, against CommOverlapConfig.setup() of the installed Megatron-Bridge."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from advisor.configure.job import Job, preset
from advisor.configure.overlap import LATENT, resolve
from advisor.configure.resolved import Asked
from advisor.configure.userbuffers import preset_gemms, preset_names
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from tests.configure.jobs import job_for_preset, random_asked, random_job
from tests.real.bridge_stack import (
    VERSION,
    bare_provider,
    comm_overlap,
    differing,
    on_gpus,
    plain_gemms,
    require_bridge,
)

require_bridge()
pytestmark = pytest.mark.bridge
# Left to apply_flex_dispatcher_backend and to validate(), which the tests of whole snippets run.
NOT_BY_SETUP = (
    "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend", "model.moe_shared_expert_overlap",
    "model.cp_comm_type", "model.hierarchical_context_parallel_sizes", "model.cuda_graph_impl",
    "model.cuda_graph_scope", "model.cuda_graph_modules", "model.use_te_rng_tracker", "rng.te_rng_tracker",
    "rerun_state_machine.check_for_nan_in_loss", "mixed_precision.grad_reduce_in_fp32",
    "mixed_precision.fp8_param_gather",
)  # fmt: skip


def set_up(job: Job, asked: Asked) -> Any:
    """A container after Bridge's own set-up of what was asked; its assertions pass through."""
    from megatron.bridge.training.config import DistributedDataParallelConfig, OptimizerConfig

    module = comm_overlap()
    buffers = None if asked.tp_comm_overlap_cfg is None else getattr(module, asked.tp_comm_overlap_cfg)
    wanted = module.CommOverlapConfig(**asked.given(), tp_comm_overlap_cfg=buffers)
    wanted.data_parallel_size = job.layout.dp
    sharded = job.knobs.distributed_optimizer
    cfg = SimpleNamespace(
        model=bare_provider(job),
        optimizer=OptimizerConfig(use_distributed_optimizer=sharded),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=sharded,
            overlap_grad_reduce=job.knobs.overlap_grad_reduce and job.layout.dp > 1 and not sharded,
        ),
    )
    wanted.finalize()
    wanted.setup(cfg.model, cfg.optimizer, cfg.ddp)
    return cfg


@pytest.mark.parametrize("seed", range(400))
def test_resolution_equals_setup(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(seed)
    job = random_job(numbers)
    asked = replace(random_asked(numbers), target=VERSION)
    monkeypatch.setattr(comm_overlap(), "HAVE_TE", asked.transformer_engine is not None)
    said = resolve(job, asked)
    refused = [one for one in said.stopped if one.stopped_by == "bridge"]
    with on_gpus(job):
        if refused:
            with pytest.raises(AssertionError):
                set_up(job, asked)
            return
        held = set_up(job, replace(asked, tp_comm_overlap_cfg=said.buffers.name if said.buffers.gemms else None))
    found = differing(said, held, NOT_BY_SETUP)
    if said.field("model.tp_comm_overlap").reason == LATENT:  # setup() leaves it on, the layers switch it off
        assert found.pop("model.tp_comm_overlap") == (False, True)
        found.pop("model.tp_comm_overlap_cfg", None)
        found.pop("model.tp_comm_bootstrap_backend", None)
    assert found == {}


@pytest.mark.parametrize(
    ("name", "kept"),
    [("qkv", True), ("proj", True), ("q_down_proj", False), ("kv_down_proj", False), ("q_proj", False)],
)
def test_a_layer_of_latent_attention_switches_user_buffers_off(
    name: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from megatron.core.extensions.transformer_engine import TELinear
    from megatron.core.transformer.transformer_config import TransformerConfig

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    config = TransformerConfig(
        num_layers=1, hidden_size=64, num_attention_heads=4, tensor_model_parallel_size=2, sequence_parallel=True,
        pipeline_dtype=torch.bfloat16, tp_comm_overlap=True,
    )  # fmt: skip
    TELinear(
        64, 64, parallel_mode="duplicated", config=config, init_method=config.init_method, bias=False,
        skip_bias_add=False, skip_weight_param_allocation=False, tp_comm_buffer_name=name,
    )  # fmt: skip
    assert config.tp_comm_overlap is kept


def test_the_random_jobs_reach_every_outcome() -> None:
    seen = set()
    for seed in range(400):
        numbers = np.random.default_rng(seed)
        job = random_job(numbers)
        for one in resolve(job, random_asked(numbers)).fields:
            seen.add((one.name, one.outcome))
    for name in ("tp_comm_overlap", "overlap_p2p_comm", "overlap_grad_reduce", "overlap_moe_expert_parallel_comm"):
        assert {outcome for field, outcome in seen if field == name} >= {"asked"}
    assert {("tp_comm_overlap", "silent"), ("overlap_moe_expert_parallel_comm", "stop"),
            ("delay_wgrad_compute", "stop"), ("overlap_p2p_comm", "stop")} <= seen  # fmt: skip


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_those_of_bridge(name: str) -> None:
    real = {gemm: row for gemm, row in asdict(getattr(comm_overlap(), name)).items() if row is not None}
    assert plain_gemms(real) == {gemm: dict(row) for gemm, row in preset_gemms(name).items()}


def test_no_preset_is_missing() -> None:
    real = {name for name in dir(comm_overlap()) if name.startswith("userbuffers_")}
    assert real == set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_found_for_its_own_shape_and_set_up(name: str) -> None:
    job = job_for_preset(name)
    said = resolve(
        job, Asked(tp_comm_overlap=True, target=VERSION), lora=bool(preset("userbuffers.yaml")["presets"][name]["lora"])
    )
    assert (said.buffers.match, said.buffers.name) == ("exact", name)
    with on_gpus(job):
        held = set_up(job, Asked(tp_comm_overlap=True, tp_comm_overlap_cfg=name, target=VERSION))
    assert differing(said, held, NOT_BY_SETUP) == {}


@pytest.mark.parametrize("gpu", ["h100", "b200", "b300", "gb200", "gb300", "dgx-a100-80gb", "vr200"])
@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
def test_gate_of_flex_backends(gpu: str, backend: str) -> None:
    from megatron.bridge.training.flex_dispatcher_backend import apply_flex_dispatcher_backend

    from advisor.configure.experts import backend_runs_on

    cluster = make_cluster(load_system(gpu), 64)
    job = random_job(np.random.default_rng(0))
    job = replace(job, cluster=cluster, model=load_model("deepseek-v3"))
    model = bare_provider(job)
    model.moe_token_dispatcher_type = "alltoall"
    with on_gpus(job):
        apply_flex_dispatcher_backend(model, backend)
    assert (model.moe_token_dispatcher_type == "flex") == backend_runs_on(backend, cluster.gpu)


def test_precision_of_presets_is_known() -> None:
    rows = preset("userbuffers.yaml")["presets"].values()
    assert {row["precision"] for row in rows} <= {"bf16", "fp8"}
    assert "bf16" in PRECISIONS
