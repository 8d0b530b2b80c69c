"""Rules from reports of slow runs: each is broken by its cause alone, in a layout and in a configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.rules import findings
from advisor.rules.lessons import LESSONS
from advisor.rules.lint import CONFIG_RULES, Setup, Value, ask
from advisor.rules.lint.lessons import LESSON_RULES
from advisor.rules.lint.setup import full_name
from advisor.search.stages import balanced_split
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp, Knobs, Layout
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload

GPUS = 16
IDS = {one.id for one in LESSONS}
BY_ID = {one.id: one for one in CONFIG_RULES}


def rules(model: str, knobs: Knobs = Knobs(), workload: Workload | None = None, **sizes) -> set[str]:  # noqa: B008
    job, cluster = workload or Workload(), make_cluster(load_system("dgx-h100"), GPUS)
    whole = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "gbs": 64} | sizes
    split = balanced_split(load_model(model), job, whole["pp"], whole["vpp"], 0)
    whole.setdefault("sp", whole["tp"] > 1)
    dp = GPUS // (whole["tp"] * whole["pp"] * whole["cp"])
    layout = Layout(**whole, dp=dp, edp=max(1, GPUS // (whole["ep"] * whole["pp"])), split=split)
    return {one.rule for one in findings(load_model(model), cluster, job, layout, knobs)} & IDS


A2A, MOE = Knobs(dispatcher=Dispatcher.alltoall), "qwen3-30b-a3b"
BUFFERED = replace(A2A, tp_overlap=True)
CASES = [
    ("allgather-is-slow", {"model": MOE, "ep": 8, "knobs": Knobs(dispatcher=Dispatcher.allgather)}, {"knobs": A2A}),
    ("grouped-gemm-off", {"model": MOE, "ep": 8, "knobs": A2A, "workload": Workload(grouped_gemm=False)},
     {"workload": Workload()}),
    ("full-recompute-costs", {"model": "llama3-8b", "knobs": Knobs(full_uniform=1)}, {"knobs": Knobs()}),
    ("full-recompute-costs", {"model": "llama3-8b", "knobs": Knobs(full_block=2)}, {"knobs": Knobs()}),
    ("mlp-recompute-costs", {"model": "llama3-8b", "knobs": Knobs(recompute=("mlp",))},
     {"knobs": Knobs(recompute=("layernorm",))}),
    ("optimizer-offload-is-slow", {"model": "llama3-8b", "knobs": Knobs(optimizer_offload=0.25)}, {"knobs": Knobs()}),
    ("graph-gain-unproven", {"model": MOE, "ep": 8, "knobs": replace(A2A, cuda_graph=CudaGraph.scoped)},
     {"knobs": Knobs(dispatcher=Dispatcher.hybridep, cuda_graph=CudaGraph.scoped)}),
    ("unfused-attention", {"model": "llama3-8b", "workload": Workload(attention_impl="unfused")},
     {"workload": Workload()}),
    ("dp-traffic-shows", {"model": "llama3-8b", "knobs": Knobs(overlap_grad_reduce=False, overlap_param_gather=False)},
     {"knobs": Knobs()}),
    ("dp-traffic-shows", {"model": "llama3-8b", "knobs": Knobs(overlap_grad_reduce=False, overlap_param_gather=False)},
     {"tp": 8, "pp": 2}),
    ("nvfp4-param-gather-memory", {"model": "llama3-8b", "workload": Workload(precision=PRECISIONS["nvfp4"])},
     {"knobs": Knobs(overlap_param_gather=False)}),
    ("nvfp4-param-gather-memory", {"model": "llama3-8b", "workload": Workload(precision=PRECISIONS["nvfp4"])},
     {"workload": Workload()}),
    ("tp-without-sp", {"model": "llama3-8b", "tp": 2, "sp": False}, {"sp": True}),
    ("tensor-parallel-alone", {"model": "llama3-8b", "tp": 8, "gbs": 128}, {"gbs": 16}),
    ("tensor-parallel-alone", {"model": "llama3-8b", "tp": 8, "gbs": 128}, {"tp": 2}),
    ("pipeline-without-interleaving", {"model": "llama3-8b", "pp": 4, "gbs": 32}, {"pp": 4, "vpp": 2, "gbs": 32}),
    ("pipeline-without-interleaving", {"model": "llama3-8b", "pp": 4, "gbs": 32}, {"gbs": 1024}),
    ("tp-overlap-without-preset", {"model": "llama3-8b", "tp": 2, "knobs": Knobs(tp_overlap=True)}, {"knobs": Knobs()}),
    ("tp-overlap-without-preset", {"model": "llama3-8b", "tp": 2, "knobs": Knobs(tp_overlap=True)},
     {"model": "llama3-70b"}),
    ("tp-overlap-lost-with-mla", {"model": "deepseek-v3", "tp": 2, "knobs": BUFFERED}, {"knobs": A2A}),
    ("tp-overlap-lost-with-mla", {"model": "deepseek-v3", "tp": 2, "knobs": BUFFERED}, {"model": MOE}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "bad", "good"), CASES, ids=[f"{case[0]}-{at}" for at, case in enumerate(CASES)])
def test_a_layout_is_told(rule, bad, good) -> None:
    assert rule in rules(**bad)
    assert rule not in rules(**(bad | good))


def test_every_lesson_has_a_case() -> None:
    assert {case[0] for case in CASES} == IDS


def test_fsdp_reduces_its_own_gradients() -> None:
    knobs = Knobs(overlap_grad_reduce=False, overlap_param_gather=False, fsdp=Fsdp.optim_grads_params)
    assert "dp-traffic-shows" not in rules("llama3-8b", knobs)


def setup(env: dict[str, str] | None = None, **values) -> Setup:
    stated = {full_name(key.replace("__", ".")): Value(value, "x.py", 3) for key, value in values.items()}
    found = Setup(framework="megatron-lm", values=stated)
    found.env.update({name: Value(value, "run.sh", 2) for name, value in (env or {}).items()})
    found.env_known = True
    return found


ONE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
SETUPS = [
    ("one-connection-serialises", setup(ONE, ddp__overlap_grad_reduce=True),
     setup(ONE, tp=2, ddp__overlap_grad_reduce=True)),
    ("one-connection-serialises", setup(ONE, ddp__overlap_grad_reduce=True), setup({}, ddp__overlap_grad_reduce=True)),
    ("grouped-gemm-off", setup(experts=8, moe_grouped_gemm=False), setup(experts=8, moe_grouped_gemm=True)),
    ("full-recompute-costs", setup(recompute_granularity="full"), setup(recompute_granularity="selective")),
    ("fusions-off", setup(gradient_accumulation_fusion=False), setup(gradient_accumulation_fusion=True)),
    ("debugging-variables", setup({"CUDA_LAUNCH_BLOCKING": "1"}), setup({"CUDA_LAUNCH_BLOCKING": "0"})),
    ("debugging-variables", setup({"TORCH_DISTRIBUTED_DEBUG": "detail"}), setup({"NCCL_DEBUG": "WARN"})),
    ("measuring-costs", setup(timing_log_level=2), setup(timing_log_level=1)),
    ("dp-traffic-shows", setup(cp=2, ddp__overlap_grad_reduce=False), setup(cp=2, ddp__overlap_grad_reduce=True)),
    ("unfused-attention", setup({"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}), setup({"NVTE_FLASH_ATTN": "0"})),
    ("unfused-attention", setup(attention_backend="unfused"), setup(attention_backend="auto")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "bad", "good"), SETUPS, ids=[f"{case[0]}-{at}" for at, case in enumerate(SETUPS)])
def test_a_configuration_is_told(rule, bad, good) -> None:
    found = ask(BY_ID[rule], bad)
    assert found is not None
    assert found.message
    assert found.fix
    assert ask(BY_ID[rule], good) is None


def test_lessons_of_both_families_agree() -> None:
    severity = {one.id: one.severity for one in LESSONS}
    for one in LESSON_RULES:
        assert severity.get(one.id, one.severity) == one.severity
