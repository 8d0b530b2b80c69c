"""Activations in host memory: memory falls by what went, never below; copies take time; nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.activations import layer_activations
from advisor.cost.memory import memory
from advisor.cost.offload import offload_exchange
from advisor.cost.profile import load_profile
from advisor.cost.stages import paced_stages
from advisor.cost.step import setting_of, step
from advisor.spec.layout import OFFLOAD_MODULES, CudaGraph, Fsdp, Knobs, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

LLAMA, GIB = load_model("llama3-70b"), 2**30
FP8 = Workload(seq_len=8192, precision=PRECISIONS["fp8-current"], fp8_params=True)
SHARDED = Knobs(fsdp=Fsdp.optim_grads_params, grad_dtype="bf16")


def rack(system: str = "gb200-nvl72"):
    return make_cluster(load_system(system), 64)


def sizes(knobs: Knobs, model=LLAMA, workload=FP8, system: str = "gb200-nvl72", **layout: int):
    rows = layout_of(model, 64, **({"mbs": 2, "gbs": 256} | layout))
    return memory(model, rack(system), workload, table([rows], [knobs]))


def seconds(knobs: Knobs, model=LLAMA, workload=FP8, system: str = "gb200-nvl72", **layout: int):
    rows, place = layout_of(model, 64, **({"mbs": 2, "gbs": 256} | layout)), rack(system)
    return step(model, place, workload, table([rows], [knobs]), load_profile(place.gpu)).detail(0)


def saved(knobs: Knobs, model=LLAMA, workload=FP8, **layout: int) -> float:
    """Bytes that one layer keeps for one microbatch."""
    rows = layout_of(model, 64, **({"mbs": 2, "gbs": 256} | layout))
    return float(layer_activations(model.kinds[0], model, workload, table([rows], [knobs])).saved[0])


@pytest.mark.parametrize("layers", [1, 20, 40, 79])
def test_the_loss_finds_all_but_the_offloaded_layers_and_the_host_the_rest(layers: int) -> None:
    before, after = sizes(SHARDED), sizes(replace(SHARDED, offload_layers=layers))
    one = saved(SHARDED)
    left, full = after.detail(0), before.detail(0)
    assert full.worst_moment == left.worst_moment == "loss"
    assert left.terms["activations"].value == pytest.approx((80 - layers) * one, rel=1e-12)
    assert full.terms["activations"].value - left.terms["activations"].value == pytest.approx(layers * one, rel=1e-12)
    assert left.host_bytes - full.host_bytes == pytest.approx(4 * layers * one, rel=1e-9)  # four GPUs to a host
    for name in ("weights", "gradients", "optimizer", "logits", "param_gather", "nccl"):
        assert left.terms[name].value == full.terms[name].value


def test_a_layer_on_its_way_is_counted_while_layers_run() -> None:
    running = sizes(replace(SHARDED, offload_layers=40)).parts[0].moments
    one = saved(SHARDED)
    held = running["forward_backward"]["activations"] - running["loss"]["activations"]
    assert held == pytest.approx(one, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 78), st.sets(st.sampled_from(OFFLOAD_MODULES)), st.sampled_from(["llama3-8b", "qwen3-30b-a3b"]))
def test_more_offloading_never_needs_more_and_never_less_than_what_stays(layers, modules, name) -> None:
    model = load_model(name)
    layers = min(layers, model.num_layers - 2)
    plain = sizes(SHARDED, model).detail(0)
    for knobs in (replace(SHARDED, offload_layers=layers), replace(SHARDED, offload_modules=tuple(sorted(modules)))):
        found = sizes(knobs, model).detail(0)
        gone = (found.host_bytes - plain.host_bytes) / 4
        assert gone >= 0
        assert found.peak_allocated_bytes <= plain.peak_allocated_bytes * (1 + 1e-12)
        assert found.peak_allocated_bytes >= (plain.peak_allocated_bytes - gone) * (1 - 1e-12)


def test_a_pipeline_a_hybrid_stack_and_a_graph_around_norms_keep_what_megatron_keeps() -> None:
    layers = replace(SHARDED, fsdp=Fsdp.none, offload_layers=20)
    plain = replace(layers, offload_layers=0)
    assert sizes(layers, pp=4).device_bytes == sizes(plain, pp=4).device_bytes
    hybrid = load_model("nemotron-3-nano-30b-a3b")
    assert sizes(layers, hybrid).device_bytes == sizes(plain, hybrid).device_bytes
    experts = load_model("qwen3-30b-a3b")
    norms = replace(plain, offload_modules=("mlp_norm",))
    assert sizes(norms, experts).device_bytes < sizes(plain, experts).device_bytes
    captured = [replace(one, cuda_graph=CudaGraph.scoped) for one in (norms, plain)]
    assert sizes(captured[0], experts).device_bytes == sizes(captured[1], experts).device_bytes


def test_modules_take_their_inputs_off_all_layers_but_one() -> None:
    """Qwen3 30B-A3B, bf16: q, k, v and the attention output of 48 layers, of which the last stays."""
    model, bf16 = load_model("qwen3-30b-a3b"), Workload(seq_len=4096)
    knobs = Knobs(offload_modules=("core_attn", "attn_proj"))
    plain = sizes(Knobs(), model, bf16, mbs=1, gbs=64).parts[0]
    found = sizes(knobs, model, bf16, mbs=1, gbs=64).parts[0]
    mixer = model.kinds[0].mixer
    per_layer = 2 * 4096 * (2 * mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
    assert found.on_host == pytest.approx(47 * per_layer, rel=1e-12)
    gone = plain.moments["loss"]["activations"] - found.moments["loss"]["activations"]
    assert gone == pytest.approx(47 * per_layer, rel=1e-12)


def test_experts_give_their_inputs_away_under_a_pipeline() -> None:
    model, bf16 = load_model("qwen3-30b-a3b"), Workload(seq_len=4096)
    knobs = Knobs(offload_modules=("expert_fc1", "moe_act"))
    plain = sizes(Knobs(), model, bf16, pp=4, ep=8, mbs=1)
    found = sizes(knobs, model, bf16, pp=4, ep=8, mbs=1)
    experts = model.moe
    rows = 4096 * experts.topk
    per_layer = rows * (2 * model.hidden + 4 + 2 * 2 * experts.ffn)
    # The first rank of four holds twelve layers of four microbatches each.
    assert found.parts[0].on_host == pytest.approx((4 * 12 - 1) * per_layer, rel=1e-12)
    assert found.device_bytes < plain.device_bytes


def test_copies_hide_under_layers_until_the_link_is_full() -> None:
    """GB200 hands 145 GiB to Grace in the time of a forward pass; over PCIe the copies of most layers show."""
    plain = seconds(SHARDED).step_s
    fast = seconds(replace(SHARDED, offload_layers=40))
    assert fast.terms["exposed_offload"].value == 0
    assert fast.step_s == plain
    slow = [seconds(replace(SHARDED, offload_layers=k), system="dgx-h100") for k in (0, 10, 60, 70, 79)]
    shown = [one.terms["exposed_offload"].value for one in slow]
    assert shown[:2] == [0, 0]
    assert 0 < shown[2] < shown[3] < shown[4]
    for one, copies in zip(slow, shown, strict=True):
        assert one.step_s - slow[0].step_s == pytest.approx(copies, rel=1e-9)


def test_with_one_layer_left_no_copy_hides() -> None:
    link = rack().gpu.host_Bps * load_profile("gb200").value("host_copy_share")
    one_way = 79 * saved(SHARDED) / link
    found = seconds(replace(SHARDED, offload_layers=79)).terms["exposed_offload"]
    assert found.value == pytest.approx(2 * 2 * one_way, rel=1e-9)  # there and back in each of two microbatches
    assert found.kind == "assumed"


def test_a_copy_has_the_layers_between_the_first_and_the_last_to_hide_under() -> None:
    """A second forward and two backward in each of 80 layers, 100 seconds of copies each way."""
    rows, place = layout_of(LLAMA, 64, mbs=2, gbs=256), rack()
    columns = table([rows], [replace(SHARDED, offload_layers=40)])
    share = load_profile(place.gpu).value("host_copy_share")
    slow = replace(place.gpu, host_uni_gbs=40 * saved(SHARDED) / share / 100 / 1e9)
    job = setting_of(
        LLAMA, replace(place, system=replace(place.system, gpu=slow)), FP8, columns, load_profile(place.gpu)
    )
    (stage,) = paced_stages(LLAMA, columns, 0)
    found = offload_exchange(stage, [np.ones(1)], [np.full(1, 3.0)], job)
    assert found.forward == found.backward == pytest.approx(100)
    assert found.exposed == pytest.approx(100 - 78)  # 156 seconds of the backward pass hide all of the way back


def test_a_faster_link_never_shows_more() -> None:
    gpu = load_system("dgx-h100").gpu
    rows = layout_of(LLAMA, 64, mbs=2, gbs=256)
    columns = table([rows], [replace(SHARDED, offload_layers=40)])
    shown = []
    for link in (None, 128.0, 225.0):
        system = replace(load_system("dgx-h100"), gpu=replace(gpu, host_uni_gbs=link))
        profile = replace(load_profile(gpu), gpu=system.gpu)
        shown.append(step(LLAMA, make_cluster(system, 64), FP8, columns, profile).step_s[0])
    assert shown[0] > shown[1] >= shown[2]


def test_a_table_without_offloading_is_what_it_was_beside_one_with() -> None:
    """Rows that offload nothing come out the same whether their table knows offloading or not."""
    rows = layout_of(LLAMA, 64, mbs=2, gbs=256)
    place = rack()
    pair = table([rows, rows], [SHARDED, replace(SHARDED, offload_layers=40)])
    alone = table([rows], [SHARDED])
    np.testing.assert_allclose(
        memory(LLAMA, place, FP8, pair).device_bytes[0], memory(LLAMA, place, FP8, alone).device_bytes[0], rtol=1e-12
    )
    profile = load_profile(place.gpu)
    np.testing.assert_allclose(
        step(LLAMA, place, FP8, pair, profile).step_s[0], step(LLAMA, place, FP8, alone, profile).step_s[0], rtol=1e-12
    )


def test_a_loss_in_place_keeps_logits_alone() -> None:
    """Llama 3 70B at 16,384 tokens: bf16 logits of 128,256 words are 3.9 GiB, with fp32 copies three times that."""
    usual = sizes(SHARDED).detail(0).terms["logits"].value
    in_place = sizes(SHARDED, workload=replace(FP8, loss_impl="in_place")).detail(0).terms["logits"].value
    logits = 16384 * 128256
    assert usual == pytest.approx(6 * logits + 2 * 2 * 8192 * 16384, rel=1e-12)
    assert in_place == pytest.approx(2 * logits + 2 * 128256 * 8192 + 3 * 2 * 8192 * 16384, rel=1e-12)
