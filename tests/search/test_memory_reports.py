"""Public reports of jobs out of memory: the verdict and the rule that their authors found come out of an estimate.

What a report leaves open is set to what the recipes of that stack set; each report is told by its pairs of verdicts.
"""

from __future__ import annotations

import json

import pytest

import advisor

LLAMA = {"model": "llama2-70b", "gpus": 128, "system": "dgx-h100", "tp": 8, "gbs": 1024, "distributed_optimizer": False}
NEMOTRON = {
    "model": "nemotron-3-super-120b-a12b", "gpus": 64, "system": "dgx-b200", "ep": 8, "dispatcher": "hybridep",
    "grad_dtype": "bf16", "moment_dtype": "bf16", "precision": "mxfp8",
}  # fmt: skip
QWEN = {"model": "qwen3-30b-a3b", "gpus": 8, "system": "dgx-h100", "ep": 8, "recompute": "full-uniform:1"}
CASES = {
    # NVIDIA/Megatron-LM issue 1031: TP8 PP2 is out of memory, TP8 PP8 with full recomputation fits
    "A04 two stages": (LLAMA | {"pp": 2}, "oom", {}),
    "A04 eight stages": (
        LLAMA | {"pp": 8, "recompute": "full-uniform:5"},
        "fits",
        {"full-recompute-costs": ("recompute=", "sp=true", "distributed_optimizer=true")},
    ),
    # NVIDIA-NeMo/Megatron-Bridge issue 3714: NVFP4 fits without the overlapped gather of parameters; no layout stated
    "A13": (
        {
            "model": "llama3.1-405b",
            "gpus": 256,
            "system": "gb200-nvl72",
            "precision": "nvfp4",
            "tp": 4,
            "pp": 8,
            "vpp": 4,
            "gbs": 256,
        },
        None,
        {"nvfp4-param-gather-memory": ("overlap_param_gather=false",)},
    ),
    # NVIDIA-NeMo/Megatron-Bridge pull 6043: EP64 leaves the domain of HybridEP, EP8 needs selective recomputation
    "A16 wide": (NEMOTRON | {"ep": 64}, None, {"hybridep-inside-nvlink": ("ep=8",)}),
    "A16 nothing recomputed": (NEMOTRON, "oom", {}),
    "A16 mxfp8": (NEMOTRON | {"recompute": "moe_act,moe,layernorm,core_attn"}, "fits", {}),
    "A16 nvfp4": (NEMOTRON | {"precision": "nvfp4", "tp": 2, "recompute": "moe_act,layernorm"}, "fits", {}),
    # modelscope/ms-swift issue 8084: expert optimizer states are not sharded further where expert data parallelism is 1
    "A18": (
        QWEN | {"system": "dgx-a100-80gb", "tp": 4, "gbs": 4, "task": "sft"},
        None,
        {"expert-state-not-sharded": ()},
    ),
    # NVIDIA-NeMo/RL issue 1130: fits 96 GB with offload, is out of memory on 80 GB without
    "A27 with offload": (QWEN | {"system": "h20-8x", "optimizer_offload": 1.0}, "fits", {}),
    "A27 without": (QWEN, "oom", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_answered(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    options, verdict, rules = CASES[name]
    answer = advisor.estimate(**options)
    assert verdict in {None, answer.verdict}
    found = {one.rule: one for one in answer.findings}
    for rule, words in rules.items():
        assert rule in found
        assert all(word in found[rule].fix for word in words), found[rule].fix


def test_an_exported_launch_holds_the_environment_without_which_it_is_out_of_memory(cli, tmp_path) -> None:
    """A12, NVIDIA-NeMo/Megatron-Bridge issue 4587: captured iterations of Qwen3-30B-A3B without these variables."""
    plan = tmp_path / "plan.json"
    pinned = "tp=1,ep=8,mbs=8,cuda_graph=full_iteration,dispatcher=hybridep"
    job = ("--model", "qwen3-30b-a3b", "--gpus", "8", "--system", "gcp-a4", "--precision", "mxfp8", "--gbs", "512")
    assert cli("plan", *job, "--fix", pinned, "--allow", "grad-bf16,moment-bf16", "--out", str(plan)).code == 0
    assert json.loads(plan.read_text(encoding="utf-8"))["candidates"]
    said = cli("export", str(plan), "--to", "env").out
    for needed in (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,graph_capture_record_stream_reuse:True",
        "TORCH_NCCL_AVOID_RECORD_STREAMS=0",
        "NCCL_NVLS_ENABLE=0",
        "NCCL_GRAPH_REGISTER=0",
    ):
        assert f"export {needed}\n" in said
