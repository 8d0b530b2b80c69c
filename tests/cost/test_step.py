"""Properties of step time: terms sum up, one row equals its column, faster hardware never slows, traffic adds up."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.profile import load_profile
from advisor.cost.step import STEP_TERMS, step
from advisor.search.stages import balanced_split
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, Knobs, Layout, grid, layout_columns, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload

MODELS = ("llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "nemotron-3-nano-30b-a3b", "gpt-oss-20b", "qwen3-next-80b-a3b")
GPUS = 64


def layout(model, workload, *, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, mbs=1, gbs=512) -> Layout:
    dp = GPUS // (tp * pp * cp)
    split = balanced_split(model, workload, pp, vpp, workload.mtp_depth)
    assert split is not None
    return Layout(
        tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, dp=dp, edp=GPUS // (etp * ep * pp), mbs=mbs, gbs=gbs,
        sp=tp > 1, split=split,
    )  # fmt: skip


def random_layout(draw, model, workload) -> Layout:
    tp = draw(st.sampled_from((1, 2, 4)))
    pp = draw(st.sampled_from((1, 2, 4)))
    cp = draw(st.sampled_from((1, 2)))
    ep = draw(st.sampled_from((1, 2, 8))) if model.is_moe else 1
    return layout(model, workload, tp=tp, pp=pp, cp=cp, ep=ep, mbs=draw(st.sampled_from((1, 2))))


@st.composite
def jobs(draw):
    model = load_model(draw(st.sampled_from(MODELS)))
    precision = PRECISIONS[draw(st.sampled_from(("bf16", "fp8-current")))]
    depth = 1 if model.mtp is not None and draw(st.booleans()) else 0
    workload = Workload(seq_len=4096, precision=precision, mtp_depth=depth)
    knobs = Knobs(
        recompute=draw(st.sampled_from(((), ("core_attn",), ("moe_act", "layernorm"), ("mlp", "moe")))),
        full_uniform=draw(st.sampled_from((0, 0, 1))),
        dispatcher=draw(st.sampled_from(tuple(Dispatcher)[1:])) if model.is_moe else Dispatcher.none,
        ep_overlap=draw(st.booleans()) and model.is_moe,
        fsdp=draw(st.sampled_from((Fsdp.none, Fsdp.none, Fsdp.optim_grads_params))),
        cuda_graph=draw(st.sampled_from(tuple(CudaGraph))),
        cp_comm=draw(st.sampled_from(tuple(CpComm))),
        tp_overlap=draw(st.booleans()),
        optimizer_offload=draw(st.sampled_from((0.0, 0.5))),
        offload_layers=draw(st.sampled_from((0, 0, 4))),
        offload_modules=draw(st.sampled_from(((), ("core_attn", "attn_proj"), ("expert_fc1", "moe_act")))),
    )
    return model, workload, random_layout(draw, model, workload), knobs


def cluster(system="dgx-h100", gpus=GPUS, **changes):
    found = load_system(system)
    return make_cluster(dataclasses.replace(found, **changes), gpus)


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_terms_sum_to_the_step_and_communication_adds_up(job) -> None:
    model, workload, rows, knobs = job
    place = cluster()
    found = step(model, place, workload, table([rows], [knobs]), load_profile(place.gpu))
    detail = found.detail(0)
    assert tuple(detail.terms) == STEP_TERMS
    assert detail.step_s == pytest.approx(float(found.step_s[0]), rel=1e-12)
    assert sum(term.value for term in detail.terms.values()) == pytest.approx(detail.step_s, rel=1e-12)
    for name, term in detail.terms.items():
        assert np.isfinite(term.value), name
        assert term.value >= 0, name
    for name, shown in detail.exposed_s.items():
        assert shown == detail.terms[f"exposed_{name}"].value
        assert detail.hidden_s[name] >= -1e-12
    assert detail.low_s < detail.step_s < detail.high_s
    assert 0 < detail.mfu <= 1


@settings(max_examples=20, deadline=None)
@given(jobs())
def test_faster_hardware_never_slows(job) -> None:
    model, workload, rows, knobs = job
    columns = table([rows], [knobs])
    place = cluster()
    profile = load_profile(place.gpu)
    base = step(model, place, workload, columns, profile).step_s[0]
    system = place.system
    faster_network = cluster(inter_domain_uni_gbs=system.inter_domain_uni_gbs * 2)
    faster_link = cluster(nvlink_uni_gbs=system.nvlink_uni_gbs * 1.5)
    rates = {key: dataclasses.replace(one, value=one.value * 1.3) for key, one in profile.gemm.items()}
    sharper = dataclasses.replace(profile, gemm=MappingProxyType(rates))
    wider = dataclasses.replace(profile, gpu=dataclasses.replace(profile.gpu, hbm_gbs=profile.gpu.hbm_gbs * 1.3))
    tolerance = 1 + 1e-9
    assert step(model, faster_network, workload, columns, profile).step_s[0] <= base * tolerance
    assert step(model, faster_link, workload, columns, profile).step_s[0] <= base * tolerance
    assert step(model, place, workload, columns, sharper).step_s[0] <= base * tolerance
    assert step(model, place, workload, columns, wider).step_s[0] <= base * tolerance


def test_a_grid_of_knobs_equals_its_rows_one_by_one() -> None:
    model = load_model("qwen3-30b-a3b")
    workload = Workload(seq_len=4096)
    place = cluster()
    profile = load_profile(place.gpu)
    layouts = [
        layout(model, workload, tp=1, pp=2, ep=8), layout(model, workload, tp=2, pp=4, vpp=2, ep=8, etp=1, mbs=2),
        layout(model, workload, tp=4, ep=4), layout(model, workload, cp=2, ep=16),
    ]  # fmt: skip
    axes = [
        [Knobs(dispatcher=d) for d in (Dispatcher.alltoall, Dispatcher.deepep, Dispatcher.hybridep)],
        [Knobs(dispatcher=Dispatcher.alltoall, cuda_graph=graph) for graph in CudaGraph],
        [Knobs(dispatcher=Dispatcher.alltoall, recompute=names) for names in ((), ("moe_act",), ("moe",))],
    ]
    columns = grid(*layout_columns(layouts), axes)
    found = step(model, place, workload, columns, profile)
    assert found.step_s.shape == columns.shape == (3, 3, 3, 4)
    flat = found.step_s.reshape(-1)
    for index in range(0, flat.size, 5):
        one = step(model, place, workload, columns.pick(np.array([index])), profile).step_s
        assert one[0] == pytest.approx(flat[index], rel=1e-12)
        assert found.detail(index).step_s == pytest.approx(flat[index], rel=1e-12)


def seconds(model, workload, rows, *, place=None, **knobs) -> float:
    place = place or cluster()
    base = {"dispatcher": Dispatcher.alltoall} if model.is_moe else {}
    columns = table([rows], [Knobs(**{**base, **knobs})])
    return float(step(model, place, workload, columns, load_profile(place.gpu)).step_s[0])


def test_every_knob_moves_the_step_the_way_it_should() -> None:
    model, workload = load_model("qwen3-30b-a3b"), Workload(seq_len=4096)
    rows = layout(model, workload, ep=8)
    base = seconds(model, workload, rows)
    assert seconds(model, workload, rows, full_uniform=1) > 1.15 * base
    assert (
        base
        < seconds(model, workload, rows, recompute=("moe_act",))
        < seconds(model, workload, rows, recompute=("moe",))
    )
    assert seconds(model, workload, rows, cuda_graph=CudaGraph.full_iteration) < 0.95 * base
    assert seconds(model, workload, rows, ep_overlap=True) < base
    assert seconds(model, workload, rows, grad_dtype="bf16") < base
    assert seconds(model, workload, rows, overlap_grad_reduce=False) > base
    assert seconds(model, workload, rows, fsdp=Fsdp.optim_grads_params) > base
    skewed = dataclasses.replace(workload, router_skew=1.5)
    assert seconds(model, skewed, rows) > 1.05 * base
    unfused = dataclasses.replace(workload, attention_impl="unfused")
    assert seconds(model, unfused, rows) > base


def test_dispatch_across_nodes_profits_from_removing_duplicates() -> None:
    model, workload = load_model("deepseek-v3"), Workload(seq_len=4096)
    rows = layout(model, workload, pp=4, ep=16)
    assert seconds(model, workload, rows, dispatcher=Dispatcher.hybridep) < 0.9 * seconds(
        model, workload, rows, dispatcher=Dispatcher.alltoall
    )


def test_mfu_is_of_the_running_precision() -> None:
    model, place = load_model("llama3-8b"), cluster()
    workload = Workload(seq_len=8192, precision=PRECISIONS["fp8-current"])
    columns = table([layout(model, workload)], [Knobs()])
    detail = step(model, place, workload, columns, load_profile(place.gpu)).detail(0)
    peaks = place.gpu.peak_tflops
    assert detail.mfu == pytest.approx(detail.tflops_per_gpu / peaks["fp8"])
    assert detail.mfu_bf16 == pytest.approx(detail.tflops_per_gpu / peaks["bf16"])
    tokens = 512 * 8192
    assert detail.tokens_per_s_per_gpu == pytest.approx(tokens / detail.step_s / GPUS)
    assert detail.model_flops == pytest.approx(tokens * 51.47e9, rel=1e-3)


def terms_of(model, workload, one, knobs=None) -> dict[str, float]:
    cluster = make_cluster(load_system("dgx-h100"), GPUS)
    found = step(model, cluster, workload, table([one], [knobs or Knobs()]), load_profile("h100")).detail(0)
    return {name: term.value for name, term in found.terms.items()} | {"step": found.step_s}


def test_tensor_parallel_traffic_shows_whole_without_any_overlap() -> None:
    model, workload = load_model("llama3-8b"), Workload(seq_len=8192)
    one = layout(model, workload, tp=8)
    shares = [
        terms_of(model, dataclasses.replace(workload, tp_async=asynchronous), one, Knobs(tp_overlap=overlap))
        for asynchronous, overlap in ((False, False), (True, False), (True, True))
    ]
    assert shares[0]["exposed_tp"] > shares[1]["exposed_tp"] > shares[2]["exposed_tp"] > 0


def test_latent_attention_gains_nothing_by_user_buffers() -> None:
    model, workload = load_model("deepseek-v2-lite"), Workload()
    one = layout(model, workload, tp=4, ep=8)
    plain, asked = (terms_of(model, workload, one, Knobs(tp_overlap=overlap)) for overlap in (False, True))
    assert plain == asked


def test_optimizer_states_on_the_host_cost_the_update_on_the_cpu() -> None:
    model, workload = load_model("llama3-8b"), Workload(seq_len=8192)
    one = layout(model, workload)
    on_gpu, half, on_host = (
        terms_of(model, workload, one, Knobs(optimizer_offload=share))["optimizer"] for share in (0.0, 0.5, 1.0)
    )
    shard = 8.03e9 / GPUS
    profile = load_profile("h100")
    by_hand = shard * (28 / profile.value("host_memory_Bps") + 6 / 64e9)
    assert on_host == pytest.approx(by_hand, rel=0.02)
    assert half == pytest.approx((on_gpu + on_host) / 2)
    assert on_host > 5 * on_gpu


def test_every_pass_of_a_chunk_costs_the_host() -> None:
    model, workload = load_model("llama3-8b"), Workload(seq_len=8192)
    few, many = (layout(model, workload, pp=4, vpp=vpp) for vpp in (1, 8))
    overhead = load_profile("h100").value("chunk_overhead_s")
    passes = 2 * few.num_microbatches
    assert terms_of(model, workload, many)["host"] - terms_of(model, workload, few)["host"] == pytest.approx(
        7 * passes * overhead, rel=1e-6
    )
    graphed = Knobs(cuda_graph=CudaGraph.full_iteration)
    assert terms_of(model, workload, many, graphed)["host"] == terms_of(model, workload, few, graphed)["host"]


def test_more_gpus_wait_longer_for_the_slowest() -> None:
    model, workload = load_model("llama3-8b"), Workload(seq_len=8192)
    one = layout(model, workload)
    steps = []
    for gpus in (64, 1024):
        cluster = make_cluster(load_system("dgx-h100"), gpus)
        grown = dataclasses.replace(one, dp=gpus, edp=gpus, gbs=8 * gpus)
        steps.append(step(model, cluster, workload, table([grown], [Knobs()]), load_profile("h100")).step_s[0])
    assert 0.005 < steps[1] / steps[0] - 1 < 0.05
