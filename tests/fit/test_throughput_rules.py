"""Public reports of slow runs: the rule that their authors found is a finding of the command that answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import advisor
from advisor.check import check
from advisor.check.readback import compare, read_log
from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.fit.references import published

CASES = yaml.safe_load((Path(__file__).parent / "data" / "throughput_rules.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def findings(case, **changes):
    options = {name: value for name, value in (case["options"] | changes).items() if value != ""}
    model, gpus = options.pop("model"), options.pop("gpus")
    answer = getattr(advisor, case["call"])(model, gpus, **options)
    said = [] if answer.measured is None else list(answer.measured.findings)
    if case["call"] == "plan":
        return {one.rule: one for one in (*said, *answer.best.findings)}
    return {one.rule: one for one in (*said, *answer.findings)}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_rule_is_found(case) -> None:
    found = findings(case)
    assert set(case["rules"]) <= set(found)
    texts = " ".join(f"{found[rule].message} {found[rule].fix}" for rule in case["rules"])
    assert case.get("says", "") in texts
    assert all(found[rule].fix or found[rule].severity == "info" for rule in case["rules"])


@pytest.mark.parametrize("case", [case for case in CASES if "not_with" in case], ids=lambda case: case["id"])
def test_without_its_cause_it_is_gone(case) -> None:
    left = set(case["rules"]) - {"published-figures-move"}
    assert not left & set(findings(case, **case["not_with"]))


def test_pipeline_beats_tensor_parallelism_on_one_node_with_many_microbatches_only() -> None:
    """B09, NVIDIA/Megatron-LM issue 258: BERT of 10 B on one DGX A100, pp 8 30 % faster than tp 8."""
    job = {"model": "llama2-13b", "gpus": 8, "system": "dgx-a100-80gb", "mbs": 1, "seq_len": 2048}
    many, few = (
        [advisor.estimate(**job, gbs=gbs, **sizes).candidate.step.step_s for sizes in ({"tp": 8}, {"pp": 8})]
        for gbs in (512, 8)
    )
    assert many[1] < many[0]
    assert few[0] < few[1]


def test_why_names_the_gain_of_the_overlap_of_experts() -> None:
    """B11: 41.25 s and 31.31 s with the overlap of the expert exchange, Qwen3-30B-A3B on 16 H100, EP 16."""
    found = advisor.why("qwen3-30b-a3b", 16, system="dgx-h100", gbs=1024, ep=16, dispatcher="alltoall")
    gains = [one.gain for one in found.dials if one.name == "ep_overlap" and one.gain is not None]
    assert 0.03 < max(gains) < 0.6


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS={connections}
torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 512 --train-iters 10 \\
  --lr 1e-4 --bf16 --transformer-impl transformer_engine --mock-data --tokenizer-type NullTokenizer \\
  --vocab-size 32000 --use-distributed-optimizer {flags}
"""
OVERLAP = "--overlap-grad-reduce --overlap-param-gather"
EXPERTS = (
    "--num-experts 8 --moe-ffn-hidden-size 1536 --moe-router-topk 2 --expert-model-parallel-size 8"
    " --disable-bias-linear"
)
ALLTOALL = f"{EXPERTS} --moe-token-dispatcher-type alltoall"


@pytest.mark.parametrize(
    ("rule", "connections", "flags", "others"),
    [
        # B06, NVIDIA/Megatron-LM issue 1468: 8B, TP 1, no overlap of gradients and parameters with compute.
        ("one-connection-serialises", 1, OVERLAP, [(8, OVERLAP), (1, ""), (1, f"{OVERLAP} --context-parallel-size 2")]),
        # B14, NVIDIA/Megatron-LM pull 6311: the gain of the EP overlap is 3.7 % with 1 and 7.8 % with 32.
        ("ep-overlap-one-connection", 1, f"{ALLTOALL} --moe-grouped-gemm --overlap-moe-expert-parallel-comm",
         [(32, f"{ALLTOALL} --moe-grouped-gemm --overlap-moe-expert-parallel-comm"), (1, ALLTOALL)]),
        # B01, NVIDIA/Megatron-LM issue 756: the all-gather dispatcher and no grouped GEMM.
        ("allgather-is-slow", 8, f"{EXPERTS} --moe-token-dispatcher-type allgather", [(8, ALLTOALL)]),
        ("grouped-gemm-off", 8, ALLTOALL, [(8, f"{ALLTOALL} --moe-grouped-gemm"), (8, "")]),
        # B02, NVIDIA/Megatron-LM issue 1031: full recomputation of every layer.
        ("full-recompute-costs", 8, "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
         [(8, "--recompute-granularity selective")]),
        # B09, NVIDIA/Megatron-LM issue 258: TP over the node although microbatches would fill a pipeline.
        ("tensor-parallel-alone", 1, "--tensor-model-parallel-size 8 --sequence-parallel",
         [(1, "--tensor-model-parallel-size 2 --sequence-parallel")]),
    ],
)  # fmt: skip
def test_a_launch_script_is_told(tmp_path, rule, connections, flags, others) -> None:
    def rules(connections: int, flags: str) -> set[str]:
        path = tmp_path / "train.sh"
        path.write_text(SCRIPT.format(connections=connections, flags=flags), encoding="utf-8")
        return {one.rule for one in check([path], gpus=8, system="dgx-h100", target="megatron-lm").findings}

    assert rule in rules(connections, flags)
    for other in others:
        assert rule not in rules(*other)


def test_a_rate_above_the_peak_is_no_measurement() -> None:
    job = {"model": "llama3-8b", "gpus": 8, "system": "dgx-h100"}
    found = advisor.estimate(**job, measured_tflops=1500).measured
    assert found.findings[0].severity == "slow"
    assert "more than the peak" in found.findings[0].message
    for bad in (0, -3, "fast", float("nan")):
        with pytest.raises(InputError, match="measured_tflops"):
            advisor.estimate(**job, measured_tflops=bad)


def test_public_figures_are_of_one_model_and_gpu() -> None:
    known = published("qwen3-30b-a3b", "h100-sxm-80gb")
    assert {one.tflops for one in known} >= {203.0, 240.5, 118.0}
    assert all(one.software and one.source for one in known)
    assert published("qwen3-30b-a3b", "a100-sxm-80gb") == ()


def test_a_batch_that_a_script_changed_is_read_back(tmp_path) -> None:
    """B21, NVIDIA-NeMo/Speech issue 14857: asked for 512 sequences per step, the performance script ran 256."""
    plan = tmp_path / "plan.json"
    answer = advisor.plan("llama3-8b", 8, system="dgx-h100", seq_len=8192, gbs=512, fix="tp=1,pp=2")
    plan.write_text(json.dumps(answer.to_dict()), encoding="utf-8")
    log = tmp_path / "job.log"
    log.write_text(
        "[2026-01-05 10:00:00] using world size: 8, data-parallel size: 4, tensor-model-parallel size: 1,"
        " pipeline-model-parallel size: 2\n------------------------ arguments ------------------------\n"
        "  global_batch_size ............................... 256\n"
        "  micro_batch_size ................................ 1\n"
        "-------------------- end of arguments ---------------------\n",
        encoding="utf-8",
    )
    rows = {row.key: row for row in compare(read_log([str(log)]), read_plan(plan)).rows}
    found = next(row for key, row in rows.items() if key.endswith("global_batch_size"))
    assert (found.planned, found.status) == (512, "differs")


def test_a_figure_of_another_format_judges_nothing() -> None:
    answer = advisor.estimate("llama3-70b", 64, tp=4, pp=4, measured_tflops=300)
    assert answer.measured is not None
    found = {one.rule: one for one in answer.measured.findings}
    assert {one.precision for one in answer.measured.published} == {"fp8-current"}
    assert "measured-below-published" not in found
    assert found["nothing-published-in-format"].severity == "info"
    eight = advisor.estimate("llama3-70b", 64, tp=4, pp=4, measured_tflops=300, precision="fp8-current")
    assert eight.measured is not None
    assert {"measured-below-published"} <= {one.rule for one in eight.measured.findings}
