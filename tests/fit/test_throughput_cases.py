"""Public reports of throughput: numbers lie in the interval, rules come out as the reports say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from advisor import estimate
from advisor.cost.flops import model_flops_per_token
from advisor.cost.params import padded_vocab
from advisor.spec.layout import Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_gpu
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

CASES = yaml.safe_load((Path(__file__).parent / "data" / "throughput_cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_reported_throughput_lies_in_the_interval(case) -> None:
    step = estimate(**case["options"]).candidate.step
    slowest, fastest = (step.tflops_per_gpu * step.step_s / seconds for seconds in (step.high_s, step.low_s))
    assert slowest <= case["tflops"] <= fastest


def test_flops_per_token_agree_with_what_a_report_implies() -> None:
    """B17, NVIDIA-NeMo/Megatron-Bridge pull 5720: 1030.07 TFLOP/s at 44,773.4 tokens/s/GPU are 23.0 GFLOP per token."""
    model, workload = load_model("qwen3-30b-a3b"), Workload(seq_len=4096)
    split = PipelineSplit(1, 1, (model.num_layers,))
    one = Layout(tp=1, pp=1, vpp=1, cp=1, ep=8, etp=1, dp=8, edp=1, mbs=1, gbs=64, sp=False, split=split)
    columns = table([one], [Knobs()])
    flops = float(model_flops_per_token(model, workload, padded_vocab(model, workload, columns))[0])
    assert flops == pytest.approx(1030.07e12 / 44773.361, rel=0.03)


def test_utilisation_is_of_the_dense_peak() -> None:
    """B07, NVIDIA/Megatron-LM issue 1565: 420 TFLOP/s on H200 are 42.45 %, not 21 % of the sparse peak."""
    assert 100 * 420 / load_gpu("h200").peak_tflops["bf16"] == pytest.approx(42.45, abs=0.05)


def test_gathering_every_token_is_slower_than_sending_those_that_are_needed() -> None:
    """B01, NVIDIA/Megatron-LM issue 756: Mixtral-8x7B on 16 H100, all-gather 130, all-to-all 230 TFLOP/s.

    The layouts of the report differ in more than the dispatcher, so only the order is asked for.
    """
    job = {"model": "mixtral-8x7b", "gpus": 16, "system": "dgx-h100", "seq_len": 4096, "gbs": 128, "tp": 2, "ep": 8}
    gather, send = (estimate(**job, dispatcher=name).candidate.step.step_s for name in ("allgather", "alltoall"))
    assert gather > 1.02 * send


def test_overlap_of_expert_exchange_brings_what_reports_say() -> None:
    """B11, skill of NVIDIA-NeMo/Megatron-Bridge: Qwen3-30B-A3B, 16 H100, EP 16: 41.25 s without and 31.31 s with."""
    job = {"model": "qwen3-30b-a3b", "gpus": 16, "system": "dgx-h100", "seq_len": 4096, "gbs": 1024, "ep": 16}
    plain, overlapped = (estimate(**job, ep_overlap=on).candidate.step.step_s for on in (False, True))
    assert 1.05 < plain / overlapped < 1.6
    delayed = estimate(**job, ep_overlap=True, delay_wgrad=True).candidate.step.step_s
    assert 1.0 < overlapped / delayed < 1.02, "31.20 s, where weight gradients are put off as well"
