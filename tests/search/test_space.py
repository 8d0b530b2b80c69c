"""The enumeration against plain loops, its counts, and the knob axes."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.rules import findings, legality
from advisor.rules.rule import divisors
from advisor.search.knobs import recompute_ladder
from advisor.search.space import groups, knob_axes, layouts, mbs_values, vpp_values
from advisor.search.stages import balanced_split
from advisor.spec.layout import LAYOUT_COLUMNS, CpComm, CudaGraph, Dispatcher, Fsdp, Knobs, Layout, grid, table
from advisor.spec.load.model import load_model, model_names
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload

JOB = Workload()
AXES = ("tp", "cp", "pp", "ep", "etp", "mbs", "vpp")


def cluster_of(gpus: int, system: str = "dgx-h100"):
    return make_cluster(load_system(system), gpus)


def rows_of(space) -> list[tuple[int, ...]]:
    return list(zip(*(space.columns[name].tolist() for name in AXES), strict=True))


def looped(model, cluster, gbs) -> set[tuple[int, ...]]:
    """All legal rows, one finding at a time."""
    sizes, bounds = divisors(cluster.gpus), {"tp-inside-nvlink", "etp-inside-nvlink", "cp-chunk-too-short"}
    knobs = Knobs(dispatcher=Dispatcher.alltoall) if model.is_moe else Knobs()
    experts = sizes if model.is_moe else [1]
    kept = set()
    for tp, cp, pp, ep, etp, mbs in itertools.product(sizes, sizes, sizes, experts, experts, mbs_values(JOB, gbs)):
        for vpp in vpp_values(model.num_layers, pp):
            dp, edp = cluster.gpus // (tp * cp * pp), cluster.gpus // (ep * etp * pp)
            split = balanced_split(model, JOB, pp, vpp, 0)
            if not dp or not edp or split is None:
                continue
            layout = Layout(tp, pp, vpp, cp, ep, etp, dp, edp, mbs, gbs, tp > 1, split)
            # Exchanges are chosen per group of rows; none of their rules may rule out a row.
            found = {
                one.rule
                for one in findings(model, cluster, JOB, layout, knobs)
                if (one.severity == "stop" and not one.rule.startswith("cp-")) or one.rule in bounds
            }
            if not found:
                kept.add((tp, cp, pp, ep, etp, mbs, vpp))
    return kept


@pytest.mark.parametrize(
    ("name", "gpus", "gbs"), [("llama3-8b", 16, 48), ("qwen3-30b-a3b", 8, 16), ("gpt-oss-20b", 8, 32)]
)
def test_rows_are_those_of_a_plain_loop(name, gpus, gbs):
    model, cluster = load_model(name), cluster_of(gpus)
    space = layouts(model, cluster, JOB, gbs, {})
    assert len(set(rows_of(space))) == space.rows
    assert set(rows_of(space)) == looped(model, cluster, gbs)


@pytest.mark.parametrize(
    ("name", "gpus"), [("minimax-m2", 64), ("minimax-m2", 24), ("llama3-70b", 96), ("deepseek-v3", 256)]
)
def test_every_candidate_is_a_row_or_counted_under_a_rule(name, gpus):
    model, cluster = load_model(name), cluster_of(gpus)
    gbs = gpus * 8
    space = layouts(model, cluster, JOB, gbs, {})
    experts = len(divisors(gpus)) if model.is_moe else 1
    vpps = sum(len(vpp_values(model.num_layers, pp)) for pp in divisors(gpus))
    assert space.searched == len(divisors(gpus)) ** 2 * vpps * experts**2 * len(mbs_values(JOB, gbs))
    assert space.searched - sum(space.rejected.values()) == space.rows > 0
    assert set(space.columns) == set(LAYOUT_COLUMNS)


@pytest.mark.parametrize(
    "name", ["minimax-m2", "llama3-8b", "nemotron-3-nano-30b-a3b", "gemma3-12b", "qwen3-next-80b-a3b"]
)
def test_rows_are_consistent_and_each_group_has_a_legal_choice_for_every_row(name):
    model, cluster = load_model(name), cluster_of(64)
    space = layouts(model, cluster, JOB, 512, {})
    x = space.columns
    assert (x["tp"] * x["pp"] * x["cp"] * x["dp"] == 64).all()
    assert (x["etp"] * x["ep"] * x["pp"] * x["edp"] == 64).all()
    assert (x["num_microbatches"] * x["mbs"] * x["dp"] == 512).all()
    pairs = [(space.splits[i].pp, space.splits[i].vpp) for i in x["split"]]
    assert pairs == list(zip(x["pp"].tolist(), x["vpp"].tolist(), strict=True))
    seen = 0
    for traits, index in groups(space):
        axes = knob_axes(model, cluster, JOB, {}, {}, traits)
        columns = grid({key: column[index[:50]] for key, column in x.items()}, space.splits, axes)
        verdicts = legality(model, cluster, JOB, columns)
        assert verdicts.legal.any(axis=tuple(range(len(axes)))).all(), verdicts.counts
        seen += len(index)
    assert seen == space.rows


def test_fixed_values_pin_a_field_and_lift_its_bound():
    model, cluster = load_model("minimax-m2"), cluster_of(64)
    pinned = layouts(model, cluster, JOB, 512, {"tp": 16, "ep": 4, "recompute": ("moe",)})
    assert pinned.rows > 0
    assert set(pinned.columns["tp"]) == {16}
    assert set(pinned.columns["ep"]) == {4}
    assert 16 not in layouts(model, cluster, JOB, 512, {}).columns["tp"]
    assert layouts(model, cluster, JOB, 512, {}).rejected["tp-inside-nvlink"] > 0
    nothing = layouts(model, cluster, JOB, 512, {"tp": 3})
    assert nothing.rows == 0
    assert set(nothing.rejected) <= {"world-divides-model-grid"}
    assert list(groups(nothing)) == []
    assert layouts(model, cluster, JOB, 512, {"sp": False}).rejected["moe-tp-needs-sp"] > 0


def test_rows_come_in_the_same_order_every_time():
    model, cluster = load_model("deepseek-v3"), cluster_of(64)
    first, second = (layouts(model, cluster, JOB, 512, {}) for _ in range(2))
    assert rows_of(first) == rows_of(second)
    assert first.rejected == second.rejected


@given(st.integers(1, 130), st.integers(1, 64))
def test_at_most_six_interleavings_that_fit(num_layers, pp):
    values = vpp_values(num_layers, pp)
    assert values[0] == 1
    assert len(values) <= 6
    assert list(values) == sorted(set(values))
    assert all(v == 1 or (pp > 1 and pp * v <= num_layers + 2) for v in values)


def test_interleavings_of_known_recipes_are_among_the_values():
    assert {5, 10} <= set(vpp_values(80, 4))  # Llama 3 70B, pp 4 vpp 5
    assert 8 in vpp_values(126, 8)  # Llama 3.1 405B, pp 8 vpp 8, with two virtual layers
    assert 4 in vpp_values(61, 4)  # DeepSeek-V3, pp 4 vpp 4


@pytest.mark.parametrize("seq_len", [512, 4096, 131072])
def test_microbatches_hold_a_bounded_number_of_tokens(seq_len):
    values = mbs_values(Workload(seq_len=seq_len), 768)
    assert values[0] == 1
    assert all(768 % n == 0 for n in values)
    assert all(n == 1 or n * seq_len <= 2**16 for n in values)


@pytest.mark.parametrize("name", model_names())
def test_ladders_have_at_most_ten_rungs_and_no_idle_module(name):
    model = load_model(name)
    knobs = Knobs(dispatcher=Dispatcher.alltoall) if model.is_moe else Knobs()
    ladder = recompute_ladder(model, JOB)
    assert 2 <= len(ladder) <= 10
    assert ladder[0] == {"recompute": (), "full_uniform": 0, "full_block": 0}
    assert ladder[-1]["full_uniform"] == 1
    split = balanced_split(model, JOB, 1, 1, 0)
    layout = Layout(1, 1, 1, 1, 1, 1, 8, 8, 1, 8, False, split)
    for rung in ladder:
        found = findings(model, cluster_of(8), JOB, layout, dataclasses.replace(knobs, **rung))
        assert not {one.rule for one in found} & {
            "recompute-module-absent",
            "mla-up-proj-needs-mla",
            "moe-act-needs-experts",
        }


def every_axes(name, cluster, job=JOB, fixed=None, extra=None, gbs=512):
    model = load_model(name)
    for traits, index in groups(layouts(model, cluster, job, gbs, fixed or {})):
        yield traits, index, knob_axes(model, cluster, job, fixed or {}, extra or {}, traits)


def test_axes_share_their_base_and_vary_different_fields():
    for _, _, axes in every_axes("deepseek-v3", cluster_of(64), extra={"moment_dtype": "bf16"}):
        base = dataclasses.asdict(axes[0][0])
        varied: Counter[str] = Counter()
        for axis in axes:
            assert dataclasses.asdict(axis[0]) == base
            assert len(axis) == len(set(axis))
            varied.update({key for one in axis for key, value in dataclasses.asdict(one).items() if value != base[key]})
        assert set(varied.values()) == {1}
        assert varied["moment_dtype"] == 1


def test_axes_follow_traits():
    for traits, index, axes in every_axes("deepseek-v3", cluster_of(64)):
        values = {
            field.name: {getattr(one, field.name) for axis in axes for one in axis}
            for field in dataclasses.fields(Knobs)
        }
        assert (Dispatcher.deepep in values["dispatcher"]) == traits.dispatched
        assert (Dispatcher.hybridep in values["dispatcher"]) == traits.dispatched
        assert (True in values["ep_overlap"]) == (traits.dispatched and traits.overlappable)
        assert (Fsdp.optim_grads_params in values["fsdp"]) == (traits.sharded and not traits.pipelined)
        assert (2 in values["optimizer_instances"]) == traits.halved
        assert (CpComm.all_gather in values["cp_comm"]) == traits.cp
        whole = {one.dispatcher for axis in axes for one in axis if one.cuda_graph == CudaGraph.full_iteration}
        assert whole == ({Dispatcher.hybridep} if traits.dispatched else set()), "static shapes need a rank budget"
        assert len(index)


def test_dropless_experts_run_in_no_whole_graph_unless_it_is_pinned():
    job = dataclasses.replace(JOB, routing="dropless")
    free = [one for *_, axes in every_axes("deepseek-v3", cluster_of(64), job) for axis in axes for one in axis]
    assert CudaGraph.full_iteration not in {one.cuda_graph for one in free}
    fixed = {"cuda_graph": CudaGraph.full_iteration}
    for traits, _, axes in every_axes("deepseek-v3", cluster_of(64), job, fixed):
        assert {one.cuda_graph for axis in axes for one in axis} == {CudaGraph.full_iteration}
        assert (Dispatcher.hybridep in {one.dispatcher for axis in axes for one in axis}) == traits.dispatched


def test_pinned_knobs_stay_and_the_rest_is_searched():
    fixed = {
        "dispatcher": Dispatcher.deepep,
        "recompute": ("moe_act",),
        "full_uniform": 0,
        "full_block": 0,
        "ep_overlap": True,
    }
    for traits, _, axes in every_axes("minimax-m2", cluster_of(64), fixed=fixed):
        choices = [one for axis in axes for one in axis]
        assert {one.dispatcher for one in choices} == {Dispatcher.deepep}
        assert {one.recompute for one in choices} == {("moe_act",)}
        assert {one.ep_overlap for one in choices} == {True}
        assert {one.full_uniform for one in choices} == {0}
        if traits.dispatched and traits.overlappable:
            assert {one.delay_wgrad for one in choices} == {True, False}
        assert len({one.cuda_graph for one in choices}) == 2


def test_systems_and_precisions_narrow_the_choices():
    rack = {
        one.dispatcher
        for *_, axes in every_axes("minimax-m2", make_cluster(load_system("gb200-nvl72"), 144))
        for one in axes[0]
    }
    assert rack == {Dispatcher.alltoall, Dispatcher.hybridep}
    delayed = Workload(precision=PRECISIONS["fp8-delayed"])
    rungs = {one["recompute"] for one in recompute_ladder(load_model("deepseek-v3"), delayed)}
    assert not any({"moe_act", "layernorm"} & set(rung) for rung in rungs)
    sinks = {
        one.cp_comm
        for traits, _, axes in every_axes("gpt-oss-120b", cluster_of(64))
        if traits.cp
        for axis in axes
        for one in axis
    }
    assert sinks == {CpComm.a2a} or CpComm.a2a in sinks
    weights = Workload(mode="weights")
    for *_, axes in every_axes("minimax-m2", cluster_of(16), job=weights):
        assert {one.recompute for axis in axes for one in axis} == {()}


def test_a_row_of_the_space_is_a_row_of_the_table():
    model, cluster = load_model("llama3-8b"), cluster_of(8)
    space = layouts(model, cluster, JOB, 64, {})
    i = space.rows // 2
    fields = {
        name: int(space.columns[name][i]) for name in LAYOUT_COLUMNS if name not in {"split", "sp", "num_microbatches"}
    }
    layout = Layout(**fields, sp=bool(space.columns["sp"][i]), split=space.splits[space.columns["split"][i]])
    columns = table([layout], [Knobs()])
    for name in set(LAYOUT_COLUMNS) - {"split"}:
        assert np.array_equal(getattr(columns, name), space.columns[name][i : i + 1])
