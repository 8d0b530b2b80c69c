"""Router statistics in the formulae: they agree with the skew, hotter is never better, columns agree with rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.memory import memory
from advisor.cost.profile import load_profile
from advisor.cost.router import Routed, load_table
from advisor.cost.stages import paced_stages, representative_stages, stage_of_rank
from advisor.cost.step import step
from advisor.spec.layout import CudaGraph, Dispatcher, Knobs, grid, layout_columns, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import ExpertMlp
from advisor.spec.router import RouterStats, normalised
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

GPUS = 64
QWEN, DEEPSEEK, NEXT = (load_model(name) for name in ("qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b"))
CLUSTER, PROFILE = make_cluster(load_system("dgx-h100"), GPUS), load_profile("h100")
MIXED = [
    layout_of(QWEN, GPUS, ep=8, gbs=256),
    layout_of(QWEN, GPUS, ep=16, pp=4, vpp=2, gbs=256),
    layout_of(QWEN, GPUS, ep=4, pp=2, tp=2, gbs=256, mbs=2),
    layout_of(QWEN, GPUS, ep=1, gbs=256),
]
DISPATCHERS = [Dispatcher.alltoall, Dispatcher.deepep, Dispatcher.hybridep, Dispatcher.allgather]
KNOBS = [Knobs(dispatcher=one, ep_overlap=at % 2 == 1) for at, one in enumerate(DISPATCHERS)]


def expert_layers(model):
    return tuple(at for at, kind in enumerate(model.pattern) if isinstance(model.kinds[kind].mlp, ExpertMlp))


def stats_of(model, loads, modules=()):
    layers = expert_layers(model)
    rows = tuple(normalised(np.asarray(loads(layer), dtype=np.float64)) for layer in layers)
    return RouterStats(layers, rows, tuple(modules))


def hot_rank(skew, ep, experts=128):
    """Experts of the first of `ep` ranks get `skew` times the mean, all others the same rest."""
    hot = experts // ep
    rest = (experts - skew * hot) / (experts - hot)
    return np.where(np.arange(experts) < hot, skew, rest)


def figures(model, workload, layouts, knobs):
    columns = table(layouts, knobs)
    sizes = memory(model, CLUSTER, workload, columns)
    return step(model, CLUSTER, workload, columns, PROFILE).step_s, sizes.device_bytes, sizes.allocated_bytes


@pytest.mark.parametrize("extra", [{}, {"routing": "token-drop", "capacity_factor": 1.0}])
def test_balanced_statistics_are_a_skew_of_one_exactly(extra):
    for tokens in (1.0, 33.3, 1e9 / 7):
        stats = stats_of(QWEN, lambda _, n=tokens: np.full(128, n))
        with_stats = figures(QWEN, Workload(router=stats, **extra), MIXED, KNOBS)
        plain = figures(QWEN, Workload(router_skew=1.0, **extra), MIXED, KNOBS)
        for one, other in zip(with_stats, plain, strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("extra", [{}, {"routing": "token-drop", "capacity_factor": 1.25}])
@pytest.mark.parametrize(("ep", "at"), [(8, 0), (16, 1), (4, 2)])
def test_the_same_hot_rank_in_every_layer_is_the_scalar_exactly(ep, at, extra):
    stats = stats_of(QWEN, lambda _: hot_rank(1.7, ep))
    with_stats = figures(QWEN, Workload(router=stats, **extra), [MIXED[at]], [KNOBS[at]])
    scalar = figures(QWEN, Workload(router_skew=1.7, **extra), [MIXED[at]], [KNOBS[at]])
    for one, other in zip(with_stats, scalar, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_ep_1_has_no_hot_rank():
    stats = stats_of(QWEN, lambda layer: 1 + np.arange(128) * layer)
    with_stats = figures(QWEN, Workload(router=stats), [MIXED[3]], [KNOBS[0]])
    assert with_stats == figures(QWEN, Workload(), [MIXED[3]], [KNOBS[0]])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), layer=st.integers(0, 47), even=st.floats(0.0, 1.0))
def test_hotter_is_never_faster_and_never_needs_less_memory(seed, layer, even):
    """Loads are drawn towards the mean by the same factor: in one layer for the time, in all of them for memory too."""
    hot = np.stack([normalised(row) for row in np.random.default_rng(seed).gamma(1.0, size=(48, 128))])
    cooler = 1 + (hot - 1) * even
    one = np.where(np.arange(48)[:, None] == layer, cooler, hot)
    high, middle, low = (
        figures(QWEN, Workload(router=stats_of(QWEN, lambda at, rows=rows: rows[at])), MIXED, KNOBS)
        for rows in (hot, one, cooler)
    )
    assert (high[0] >= middle[0] * (1 - 1e-12)).all()
    assert (middle[0] >= low[0] * (1 - 1e-12)).all()
    assert (high[1] >= low[1] * (1 - 1e-12)).all()


def test_columns_agree_with_single_rows():
    """EP is a column: every entry of a table is looked up at its own EP, whatever stands beside it."""
    rng = np.random.default_rng(3)
    counts = rng.gamma(2.0, size=(48, 128))
    workload = Workload(router=stats_of(QWEN, lambda layer: counts[layer]))
    columns, splits = layout_columns(MIXED)
    crossed = grid(columns, splits, [KNOBS, [Knobs(dispatcher=KNOBS[0].dispatcher)]])
    together = step(QWEN, CLUSTER, workload, crossed, PROFILE).step_s
    sizes = memory(QWEN, CLUSTER, workload, crossed).device_bytes
    for at, layout in enumerate(MIXED):
        for number, knobs in enumerate(KNOBS):
            alone = figures(QWEN, workload, [layout], [knobs])
            assert together[number, 0, at] == pytest.approx(alone[0][0], rel=1e-12)
            assert sizes[number, 0, at] == pytest.approx(alone[1][0], rel=1e-12)


def hot_stage(rank):
    """Of four equal stages of 12 layers one holds the hot ones."""
    return stats_of(QWEN, lambda layer: hot_rank(3.0, 16) if layer // 12 == rank else np.ones(128))


def test_a_hot_stage_in_the_middle_is_looked_at():
    layout = layout_of(QWEN, GPUS, ep=16, pp=4, gbs=256)
    columns = table([layout], [Knobs(dispatcher=Dispatcher.alltoall)])
    for hot in (1, 2):
        ranks = [int(stage.rank[0]) for stage in representative_stages(QWEN, columns, 0, Routed(hot_stage(hot), None))]
        assert ranks == [0, hot, 3]


@pytest.mark.parametrize(("model", "pp", "vpp"), [(QWEN, 4, 1), (QWEN, 8, 3), (DEEPSEEK, 8, 1), (NEXT, 4, 1)])
def test_one_stage_for_all_that_hold_as_much_is_as_slow_as_the_slowest_of_them(monkeypatch, model, pp, vpp):
    experts = next(kind.mlp.experts for kind in model.kinds if isinstance(kind.mlp, ExpertMlp))
    counts = np.random.default_rng(7).gamma(2.0, size=(len(model.pattern), experts))
    workload = Workload(router=stats_of(model, lambda layer: counts[layer]))
    layouts = [layout_of(model, GPUS, ep=ep, pp=pp, vpp=vpp, gbs=256) for ep in (1, 2, 4, 8)]
    columns = table(layouts, [Knobs(dispatcher=Dispatcher.alltoall)] * len(layouts))
    few = step(model, CLUSTER, workload, columns, PROFILE).step_s
    assert len(paced_stages(model, columns, 0, Routed(workload.router, None))) < pp

    def every_rank(model, columns, depth, router):
        return tuple(stage_of_rank(model, columns, depth, rank, router) for rank in range(pp))

    monkeypatch.setattr("advisor.cost.step.paced_stages", every_rank)
    assert few == pytest.approx(step(model, CLUSTER, workload, columns, PROFILE).step_s, rel=1e-12)


def test_the_slowest_stage_sets_the_time_and_only_the_rest_of_the_pipeline_is_shared():
    """Twelve hot layers in one stage cost more than spread over all, and less than a hot model."""
    layout = layout_of(QWEN, GPUS, ep=16, pp=4, gbs=256)
    spread = stats_of(QWEN, lambda layer: hot_rank(3.0, 16) if layer % 4 == 0 else np.ones(128))
    step_s = {
        name: figures(QWEN, workload, [layout], [KNOBS[0]])[0][0]
        for name, workload in {
            "even": Workload(), "spread": Workload(router=spread), "hot": Workload(router_skew=3.0),
            "one": Workload(router=hot_stage(1)), "two": Workload(router=hot_stage(2)),
        }.items()
    }  # fmt: skip
    assert step_s["one"] == pytest.approx(step_s["two"], rel=1e-12)
    assert step_s["even"] < step_s["spread"] < step_s["one"] < step_s["hot"]
    assert step_s["one"] - step_s["spread"] > 1.5 * (step_s["spread"] - step_s["even"])


def test_time_follows_each_layers_hottest_rank_and_memory_one_rank():
    """Rank 0 is hot in even layers, rank 1 in odd ones: every layer waits, no rank holds more than the mean of both."""
    swapped = hot_rank(1.8, 2)[::-1]
    stats = stats_of(QWEN, lambda layer: hot_rank(1.8, 2) if layer % 2 == 0 else swapped)
    time, held, hottest = load_table(Routed(stats, None), stats.layers)[:, 2]
    assert (time, held, hottest) == (1.8, 1.0, 1.8)


def test_prediction_modules_have_statistics_of_their_own():
    layouts = [layout_of(DEEPSEEK, GPUS, ep=32, pp=1, gbs=256)]
    knobs = [Knobs(dispatcher=Dispatcher.hybridep, cuda_graph=CudaGraph.scoped)]
    even = stats_of(DEEPSEEK, lambda _: np.ones(256))
    hot = replace(even, modules=(hot_rank(4.0, 32, 256),))
    plain, slower = (figures(DEEPSEEK, Workload(router=one, mtp_depth=1), layouts, knobs)[:2] for one in (even, hot))
    assert slower[0] > plain[0]
    assert slower[1] > plain[1]


def test_padding_to_the_capacity_makes_statistics_count_for_nothing():
    padded = {"routing": "token-drop", "capacity_factor": 1.5, "pad_to_capacity": True}
    stats = stats_of(QWEN, lambda _: hot_rank(1.2, 8))
    one = figures(QWEN, Workload(router=stats, **padded), MIXED, KNOBS)
    other = figures(QWEN, Workload(**padded), MIXED, KNOBS)
    assert all((a == b).all() for a, b in zip(one, other, strict=True))
