"""Properties of the memory columns over random layouts and knobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.activations import layer_activations
from advisor.cost.memory import memory
from advisor.spec.layout import (
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
    CudaGraph,
    Dispatcher,
    Fsdp,
    Knobs,
    Layout,
    grid,
    layout_columns,
    table,
)
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import Model
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

NAMES = (
    "llama3-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "minimax-m2",
    "nemotron-h-8b",
    "qwen3-next-80b-a3b",
    "gpt-oss-20b",
)
GPUS = 64
CLUSTER = make_cluster(load_system("dgx-h100"), GPUS)
POWERS = st.sampled_from((1, 2, 4, 8))


@st.composite
def layouts(draw: st.DrawFn, model: Model) -> Layout:
    """Layouts on 64 GPUs whose grids are whole."""
    tp, pp, cp = draw(POWERS), draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
    ep = draw(POWERS) if model.is_moe else 1
    vpp = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    dp = GPUS // (tp * pp * cp)
    microbatches = draw(st.sampled_from((1, 4, 8)))
    mbs = draw(st.sampled_from((1, 2)))
    one = layout_of(model, GPUS, tp=tp, pp=pp, cp=cp, ep=ep, vpp=vpp, mbs=mbs, gbs=mbs * dp * microbatches)
    return replace(one, sp=one.sp and draw(st.booleans()))


@st.composite
def knob_sets(draw: st.DrawFn) -> Knobs:
    """Any combination, legal or not: memory is defined for all."""
    full = draw(st.sampled_from(("no", "uniform", "block")))
    return Knobs(
        recompute=tuple(draw(st.sets(st.sampled_from(RECOMPUTE_MODULES)))),
        full_uniform=draw(st.integers(1, 4)) if full == "uniform" else 0,
        full_block=draw(st.integers(1, 4)) if full == "block" else 0,
        dispatcher=draw(st.sampled_from(Dispatcher)),
        ep_overlap=draw(st.booleans()),
        fsdp=draw(st.sampled_from(Fsdp)),
        cuda_graph=draw(st.sampled_from(CudaGraph)),
        optimizer_offload=draw(st.sampled_from((0.0, 0.5, 1.0))),
        offload_layers=draw(st.sampled_from((0, 0, 1, 5, 1000))),
        offload_modules=tuple(draw(st.sets(st.sampled_from(OFFLOAD_MODULES)))),
        optimizer_instances=draw(st.sampled_from((1, 2))),
        distributed_optimizer=draw(st.booleans()),
        grad_dtype=draw(st.sampled_from(("fp32", "bf16"))),
        moment_dtype=draw(st.sampled_from(("fp32", "bf16", "fp8"))),
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Model, Workload, list[Layout], list[Knobs]]:
    model = load_model(draw(st.sampled_from(NAMES)))
    workload = Workload(
        seq_len=draw(st.sampled_from((2048, 8192))),
        precision=PRECISIONS[draw(st.sampled_from(sorted(PRECISIONS)))],
        fp8_params=draw(st.booleans()),
        router_skew=draw(st.sampled_from((1.0, 1.5))),
        attention_impl=draw(st.sampled_from(("fused", "unfused"))),
        mode=draw(st.sampled_from(("train", "train", "inference", "weights"))),
        batch=draw(st.sampled_from((None, 8))),
        mtp_depth=draw(st.sampled_from((0, 1))),
        optimizer=draw(st.sampled_from(("adam", "sgd", "muon"))),
    )
    rows = draw(st.lists(layouts(model), min_size=1, max_size=4))
    return model, workload, rows, [draw(knob_sets()) for _ in rows]


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_a_row_is_the_same_alone_and_in_a_table(job):
    model, workload, rows, knobs = job
    together = memory(model, CLUSTER, workload, table(rows, knobs))
    for i, (row, knob) in enumerate(zip(rows, knobs, strict=True)):
        alone = memory(model, CLUSTER, workload, table([row], [knob]))
        for name in ("allocated_bytes", "device_bytes", "host_bytes"):
            np.testing.assert_allclose(getattr(alone, name)[0], getattr(together, name)[i], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_terms_sum_to_the_peak_and_are_not_negative(job):
    model, workload, rows, knobs = job
    found = memory(model, CLUSTER, workload, table(rows, knobs))
    for i in range(len(rows)):
        detail = found.detail(i)
        values = [term.value for term in detail.terms.values()]
        assert min(values) >= 0
        assert sum(values) == pytest.approx(detail.peak_device_bytes, rel=1e-12)
        assert detail.peak_device_bytes == pytest.approx(found.device_bytes[i], rel=1e-12)
        assert detail.peak_allocated_bytes == pytest.approx(found.allocated_bytes[i], rel=1e-12)
        assert detail.peak_allocated_bytes <= detail.peak_device_bytes
        shown = [value for stage in detail.stages for name, value in stage.items() if name != "rank"]
        assert max(shown) == detail.peak_device_bytes


@settings(max_examples=60, deadline=None)
@given(jobs(), st.sets(st.sampled_from(RECOMPUTE_MODULES)))
def test_recomputing_more_never_saves_more_bytes(job, modules):
    model, workload, rows, knobs = job
    more = [replace(knob, recompute=tuple(set(knob.recompute) | modules)) for knob in knobs]
    for kind in model.kinds:
        before = layer_activations(kind, model, workload, table(rows, knobs)).saved
        after = layer_activations(kind, model, workload, table(rows, more)).saved
        assert (after <= before * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(jobs(), st.floats(1.0, 4.0))
def test_more_memory_never_loses_a_feasible_layout(job, factor):
    """Nothing of the estimate depends on how much memory there is."""
    model, workload, rows, knobs = job
    larger = replace(CLUSTER, usable_gib=CLUSTER.usable_gib * factor)
    here, there = (memory(model, cluster, workload, table(rows, knobs)) for cluster in (CLUSTER, larger))
    feasible = here.device_bytes <= CLUSTER.usable_bytes
    assert (there.device_bytes[feasible] <= larger.usable_bytes).all()


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_a_larger_micro_batch_never_needs_less(job):
    model, workload, rows, knobs = job
    doubled = [replace(row, mbs=2 * row.mbs, gbs=2 * row.gbs) for row in rows]
    small = memory(model, CLUSTER, workload, table(rows, knobs)).allocated_bytes
    large = memory(model, CLUSTER, workload, table(doubled, knobs)).allocated_bytes
    assert (large >= small * (1 - 1e-12)).all()


def test_knob_axes_broadcast_to_the_full_table():
    """Every entry of a grid equals the row that says the same."""
    model = load_model("qwen3-30b-a3b")
    rows = [layout_of(model, GPUS, tp=tp, pp=pp, ep=8, gbs=256) for tp in (1, 2) for pp in (1, 2)]
    recompute = [Knobs(dispatcher=Dispatcher.alltoall, recompute=modules) for modules in ((), ("moe",), ("moe_act",))]
    dispatchers = [Knobs(dispatcher=one) for one in (Dispatcher.alltoall, Dispatcher.hybridep)]
    graphs = [Knobs(dispatcher=Dispatcher.alltoall, cuda_graph=one) for one in CudaGraph]
    columns = grid(*layout_columns(rows), [recompute, dispatchers, graphs])
    found = memory(model, CLUSTER, Workload(), columns)
    assert found.device_bytes.shape == columns.shape == (3, 2, 3, 4)
    for flat in range(found.device_bytes.size):
        a, b, c, row = np.unravel_index(flat, columns.shape)
        knobs = replace(recompute[a], dispatcher=dispatchers[b].dispatcher, cuda_graph=graphs[c].cuda_graph)
        alone = memory(model, CLUSTER, Workload(), table([rows[row]], [knobs]))
        assert alone.device_bytes[0] == pytest.approx(found.device_bytes[a, b, c, row], rel=1e-12)
        assert found.detail(flat).peak_device_bytes == pytest.approx(alone.device_bytes[0], rel=1e-12)
