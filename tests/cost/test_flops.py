"""Model FLOPs against the published table, and the split of a rank's work."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.cost.flops import (
    decoder_macs,
    forward_flops,
    layer_work,
    local_gemms,
    mean_context,
    model_flops_per_token,
)
from advisor.cost.params import padded_vocab
from advisor.spec.layout import Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

# GFLOP per token at sequence 2048, 4096, 8192, 32768 (None = not tabulated).
# Source: Megatron-Core rules, section (c), run against ML@d98e8a64; kept to the printed two decimals.
PUBLISHED = {
    "llama3-8b": (46.64, 48.25, 51.47, 70.80),
    "llama3-70b": (425.06, 433.12, 449.22, 545.86),
    "llama3.1-405b": (2447.85, 2473.22, 2523.96, 2828.36),
    "mixtral-8x7b": (78.10, 79.71, 82.93, 102.26),
    "qwen3-30b-a3b": (20.59, 23.01, 27.84, 56.83),
    "qwen3-235b-a22b": (138.57, 148.03, 166.96, 280.51),
    "deepseek-v3+mtp": (244.39, 259.99, 291.20, 478.43),
    "deepseek-v3": (None, 249.81, None, None),
    "minimax-m2": (66.88, 71.56, 80.92, 137.09),
    "kimi-k2": (196.80, 204.48, 219.83, 311.94),
}
SEQ_LENS = (2048, 4096, 8192, 32768)


def one_row(tp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, mbs: int = 1, layers: int = 32):
    layout = Layout(
        tp=tp, pp=1, vpp=1, cp=cp, ep=ep, etp=etp, dp=1, edp=1, mbs=mbs, gbs=mbs, sp=tp > 1,
        split=PipelineSplit(1, 1, (layers,)),
    )  # fmt: skip
    return table([layout], [Knobs()])


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_flops_equal_the_published_table(name: str) -> None:
    model = load_model(name.removesuffix("+mtp"))
    for seq_len, published in zip(SEQ_LENS, PUBLISHED[name], strict=True):
        if published is None:
            continue
        workload = Workload(seq_len=seq_len, mtp_depth=1 if name.endswith("+mtp") else 0)
        vocab = padded_vocab(model, workload, one_row(layers=model.num_layers))
        found = float(model_flops_per_token(model, workload, vocab)[0]) / 1e9
        assert found == pytest.approx(published, abs=0.0051)


def test_gpt_oss_counts_its_window() -> None:
    """Implied by the tokens/s and TFLOP/s of release 26.06: 32.62 GFLOP per token at 4096 with window 128."""
    model, workload = load_model("gpt-oss-120b"), Workload(seq_len=4096)
    vocab = padded_vocab(model, workload, one_row(layers=model.num_layers))
    assert float(model_flops_per_token(model, workload, vocab)[0]) / 1e9 == pytest.approx(32.62, rel=2e-3)


def test_a_window_is_never_more_than_causal_attention() -> None:
    assert mean_context(4096, None) == 2048
    assert mean_context(4096, 4096) == 2048
    assert mean_context(4096, 8192) == 2048
    assert mean_context(4096, 128) == 128 - 128 * 127 / 8192


@pytest.mark.parametrize("name", ["llama3-70b", "deepseek-v3", "qwen3-30b-a3b", "nemotron-3-nano-30b-a3b"])
def test_ranks_share_the_work_of_a_layer(name: str) -> None:
    """With balanced routing all ranks of TP x CP together do the work of the layer exactly once."""
    model = load_model(name)
    workload = Workload(seq_len=4096)
    for layer in model.kinds:
        whole = layer_work(layer, model.hidden, 4096).macs() * 2 * 4096
        for tp, cp, etp in ((1, 1, 1), (2, 2, 1), (4, 1, 1), (2, 1, 2)):
            columns = one_row(tp=tp, cp=cp, etp=etp, layers=model.num_layers)
            rank = sum(float(np.ravel(part)[0]) for part in forward_flops(layer, model, workload, columns).values())
            assert rank * tp * cp == pytest.approx(whole, rel=1e-12)


def test_router_skew_and_capacity_move_expert_rows() -> None:
    model = load_model("qwen3-30b-a3b")
    columns = one_row(ep=8, layers=model.num_layers)

    def rows(workload: Workload) -> float:
        found = local_gemms(model.kinds[0], model, workload, columns)
        return float(np.ravel(next(one.rows for one in found if one.gemm.part == "experts"))[0])

    balanced = Workload(seq_len=4096)
    assert rows(balanced) == 4096 * 8
    assert rows(dataclasses.replace(balanced, router_skew=1.5)) == 4096 * 8 * 1.5
    dropped = dataclasses.replace(balanced, router_skew=3.0, routing="token-drop", capacity_factor=1.25)
    assert rows(dropped) == 4096 * 8 * 1.25


def test_prediction_modules_add_layers_projection_and_logits() -> None:
    model = load_model("deepseek-v3")
    columns = one_row(layers=model.num_layers)
    plain, trained = Workload(seq_len=4096), Workload(seq_len=4096, mtp_depth=1)
    vocab = padded_vocab(model, plain, columns)
    more = float((model_flops_per_token(model, trained, vocab) - model_flops_per_token(model, plain, vocab))[0]) / 6
    hidden = model.hidden
    layer = layer_work(model.kinds[model.pattern[-1]], hidden, 4096).macs(counted=True)
    assert more == pytest.approx(layer + 2 * hidden**2 + 3 * hidden + hidden * float(vocab[0]))
    assert decoder_macs(model, 4096) > 60 * layer
