"""Moments of a step against arithmetic by hand: recompute groups, overlap, loss, vocabulary gradients, optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.cost.activations import layer_activations
from advisor.cost.memory import memory
from advisor.cost.moments import StageMemory, training_stage
from advisor.cost.stages import stage_of_rank
from advisor.spec.layout import Dispatcher, Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import Model
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

CLUSTER = make_cluster(load_system("dgx-h100"), 8)
TOKENS = 4096


def stage(model: Model, row: Layout, knobs: Knobs, workload: Workload | None = None, rank: int = 0) -> StageMemory:
    """Terms of one pipeline rank of a single layout."""
    workload = workload or Workload()
    columns = table([row], [knobs])
    found = stage_of_rank(model, columns, workload.mtp_depth, rank)
    return training_stage(model, CLUSTER, workload, columns, found)


def term(found: StageMemory, moment: str, name: str) -> float:
    return float(found.moments[moment][name][0])


@pytest.mark.parametrize(("knobs", "inputs"), [(Knobs(full_uniform=1), 32), (Knobs(full_uniform=4), 8)])
def test_full_recompute_keeps_group_inputs_and_rebuilds_one_group(knobs, inputs):
    model = load_model("llama3-8b")
    row = layout_of(model, 8)
    kept, plain = stage(model, row, knobs), stage(model, row, Knobs())
    entry = 2 * 4096 * TOKENS
    full = 139_392 * TOKENS
    assert term(kept, "forward_backward", "activations") == inputs * entry
    rebuilt = term(kept, "forward_backward", "working_set") - term(plain, "forward_backward", "working_set")
    assert rebuilt == pytest.approx(knobs.full_uniform * full - entry, rel=1e-3)


def test_block_recompute_keeps_the_inputs_of_the_first_layers_of_every_chunk():
    model = load_model("llama3-8b")
    row = layout_of(model, 8, pp=2, vpp=2, gbs=64)
    plain, block = (stage(model, row, Knobs(full_block=n)) for n in (0, 2))
    share = 2 * 2 / 16
    expected = (1 - share) + share * 2 * 4096 / 139_392
    ratio = term(block, "forward_backward", "activations") / term(plain, "forward_backward", "activations")
    assert ratio == pytest.approx(expected, rel=1e-3)


def test_expert_overlap_keeps_one_more_layer_and_a_second_dispatch():
    model = load_model("qwen3-30b-a3b")
    row = layout_of(model, 8, ep=8, gbs=64)
    alone, overlapped = (
        stage(model, row, Knobs(dispatcher=Dispatcher.alltoall, ep_overlap=on)) for on in (False, True)
    )
    one = layer_activations(model.kinds[0], model, Workload(), table([row], [Knobs()])).saved[0]
    added = term(overlapped, "forward_backward", "activations") - term(alone, "forward_backward", "activations")
    assert added == pytest.approx(one)
    both = [term(found, "forward_backward", "dispatch_buffers") for found in (alone, overlapped)]
    assert both[1] == 2 * both[0] > 0


def test_loss_holds_six_bytes_per_logit_or_the_placeholder_of_the_output_layer():
    model = load_model("llama3-8b")
    vocab, hidden = 128_256, 4096
    around = 2 * 2 * hidden
    long = stage(model, layout_of(model, 8), Knobs(), Workload(seq_len=8192))
    assert term(long, "loss", "logits") == (6 * vocab + around) * 8192
    short = stage(model, layout_of(model, 8), Knobs(), Workload(seq_len=1024))
    assert term(short, "loss", "logits") == 2 * vocab * (1024 + hidden) + (2 * hidden + around) * 1024
    gathered = stage(model, layout_of(model, 8, tp=4), Knobs(), Workload(loss_impl="gathered"))
    assert term(gathered, "loss", "logits") == pytest.approx(14 * 128_512 * TOKENS, rel=0.01)


def test_only_the_last_stage_has_logits_and_only_the_first_an_embedding_gradient():
    model = load_model("llama3-8b")
    row = layout_of(model, 8, pp=4, gbs=64)
    first, last = (stage(model, row, Knobs(), rank=rank) for rank in (0, 3))
    assert term(first, "loss", "logits") == 0 < term(last, "loss", "logits")
    gradients = [
        term(found, "vocabulary_gradients", "working_set") - term(found, "optimizer_step", "working_set")
        for found in (first, last)
    ]
    assert gradients == [2 * 128_256 * 4096, 0]


def test_prediction_modules_add_their_layers_and_saved_softmax():
    model = load_model("deepseek-v3")
    row = layout_of(model, 8, ep=8)
    without, with_one = (stage(model, row, Knobs(), Workload(mtp_depth=depth)) for depth in (0, 1))
    vocab = 129_280
    assert term(with_one, "loss", "logits") - term(without, "loss", "logits") == 4 * vocab * TOKENS
    layer = layer_activations(model.kinds[1], model, Workload(), table([row], [Knobs()])).saved[0]
    added = term(with_one, "loss", "activations") - term(without, "loss", "activations")
    assert added == layer + 10 * 7168 * TOKENS


@pytest.mark.parametrize(
    ("knobs", "bytes_per_parameter"),
    [
        (Knobs(), 0),
        (Knobs(grad_dtype="bf16"), 4),
        (Knobs(grad_dtype="bf16", moment_dtype="bf16"), 0),
        (Knobs(moment_dtype="fp8"), 8),
    ],
)
def test_optimizer_step_casts_what_is_not_fp32(knobs, bytes_per_parameter):
    model = load_model("llama3-8b")
    found = stage(model, layout_of(model, 8), knobs)
    assert term(found, "optimizer_step", "optimizer_step") == pytest.approx(
        bytes_per_parameter * 8_030_261_248 / 8, rel=1e-4
    )


def test_without_sequence_parallelism_residuals_are_whole_on_every_rank():
    model = load_model("llama3-8b")
    row = layout_of(model, 8, tp=4)
    split, whole = (
        term(stage(model, replace(row, sp=sp), Knobs()), "forward_backward", "activations") for sp in (True, False)
    )
    # Layer input, two norm outputs and the residual between the halves: 8 h per token.
    assert whole - split == 32 * 8 * 4096 * (1 - 1 / 4) * TOKENS


def test_fp8_saves_half_of_the_linear_inputs():
    model = load_model("llama3-8b")
    row = layout_of(model, 8)
    sizes = [
        layer_activations(model.kinds[0], model, Workload(precision=PRECISIONS[name]), table([row], [Knobs()])).saved[0]
        for name in ("bf16", "fp8-current")
    ]
    # Two norm outputs and the activation shrink by a byte; attention's output is kept in bf16 and once more in fp8.
    assert (sizes[0] - sizes[1]) / TOKENS == 4096 + 4096 + 14336 - 4096


def test_the_worst_moment_is_named():
    """Long sequences peak at the loss, many microbatches in flight on the first stage in its backward pass."""
    model = load_model("llama3-8b")
    last = memory(model, CLUSTER, Workload(seq_len=8192), table([layout_of(model, 8)], [Knobs()])).detail(0)
    assert (last.worst_stage, last.worst_moment) == (0, "loss")
    many = table([layout_of(model, 8, pp=8, gbs=64)], [Knobs()])
    first = memory(model, CLUSTER, Workload(seq_len=8192), many).detail(0)
    assert (first.worst_stage, first.worst_moment) == (0, "forward_backward")
    saving = table([layout_of(model, 8)], [Knobs(full_uniform=32, grad_dtype="bf16", distributed_optimizer=False)])
    step = memory(model, CLUSTER, Workload(seq_len=128), saving).detail(0)
    assert step.worst_moment == "optimizer_step"
