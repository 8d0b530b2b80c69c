"""Per-rank parameter columns: they add up to the model, and a row is the same alone and in a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.params import (
    layer_counts,
    layer_params,
    mtp_module_counts,
    padded_vocab,
    router_bias_params,
    stage_params,
    total_params,
    trained_params,
)
from advisor.cost.stages import representative_stages, stage_of_rank
from advisor.spec.layout import Columns, Knobs, Layout, grid, layout_columns, table
from advisor.spec.load.model import load_model, model_names
from advisor.spec.model import Model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

UNPADDED = Workload(vocab_divisor=1)


def split_of(model: Model, pp: int, vpp: int = 1) -> PipelineSplit:
    """Chunks as equal as they get, the larger ones first."""
    chunks = pp * vpp
    each, more = divmod(model.num_layers, chunks)
    return PipelineSplit(pp, vpp, tuple(each + (i < more) for i in range(chunks)), mtp_chunk=chunks - 1)


def layout(model: Model, tp: int = 1, pp: int = 1, vpp: int = 1, ep: int = 1, etp: int = 1) -> Layout:
    dp = max(1, ep * etp // tp)
    return Layout(
        tp=tp, pp=pp, vpp=vpp, cp=1, ep=ep, etp=etp, dp=dp, edp=dp * tp // (ep * etp), mbs=1, gbs=dp * pp, sp=tp > 1,
        split=split_of(model, pp, vpp),
    )  # fmt: skip


def one(layout: Layout) -> Columns:
    return table([layout], [Knobs()])


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize(("pp", "vpp", "ep", "depth"), [(1, 1, 1, 0), (4, 1, 2, 0), (2, 3, 4, 1)])
def test_stages_add_up_to_the_model(name, pp, vpp, ep, depth):
    model = load_model(name)
    columns = one(layout(model, pp=pp, vpp=vpp, ep=ep))
    stages = [stage_params(model, UNPADDED, columns, stage_of_rank(model, columns, depth, r)) for r in range(pp)]
    found = sum(int(stage.dense[0]) + ep * int(stage.expert[0]) for stage in stages)
    expected = trained_params(model) + depth * mtp_module_counts(model).total
    vocabulary = model.vocab_size * model.hidden
    if pp > 1 and model.tied_embeddings:
        expected += vocabulary
    if pp > 1 and depth:
        expected += vocabulary + model.position_embeddings * model.hidden
    assert found == expected


@pytest.mark.parametrize("name", model_names())
def test_tensor_ranks_add_up_to_a_layer(name):
    model = load_model(name)
    columns = one(layout(model, tp=2, ep=2, etp=2))
    for kind in model.kinds:
        counts, rank = layer_counts(kind, model), layer_params(kind, model, columns)
        assert 2 * int(rank.sharded[0]) == counts.sharded
        assert int(rank.replicated) == counts.replicated
        assert 4 * int(rank.expert[0]) == counts.expert + 2 * counts.expert_replicated


def test_published_total_counts_the_balancing_biases():
    model = load_model("deepseek-v3")
    assert router_bias_params(model) == 58 * 256
    assert trained_params(model) == 671_026_404_352
    assert total_params(model) == 671_026_419_200


def test_vocabulary_is_padded_to_divisor_times_tp():
    model = load_model("minimax-m2")
    columns = table([layout(model, tp=tp) for tp in (1, 2, 4, 8)], [Knobs()] * 4)
    assert padded_vocab(model, Workload(), columns).tolist() == [200064, 200192, 200192, 200704]
    kimi = padded_vocab(load_model("kimi-k2"), Workload(vocab_divisor=1280), columns)
    assert kimi.tolist() == [163840, 163840, 163840, 163840]


def test_embedding_and_head_are_part_of_dense():
    model = load_model("llama3.2-1b")
    columns = one(layout(model, tp=2, pp=2))
    first, last = (stage_params(model, Workload(), columns, stage_of_rank(model, columns, 0, r)) for r in (0, 1))
    share = 128256 * 2048 // 2
    assert (int(first.embedding[0]), int(first.head[0])) == (share, 0)
    assert (int(last.embedding[0]), int(last.head[0])) == (0, share), "the tied copy of the last stage"
    layers = 8 * (int(layer_params(model.kinds[0], model, columns).dense[0]))
    assert int(first.dense[0]) == share + layers
    assert int(last.dense[0]) == share + layers + 2048


@pytest.mark.parametrize("name", ["minimax-m2", "deepseek-v3", "nemotron-3-super-120b-a12b", "qwen3.5-122b-a10b"])
def test_a_row_is_the_same_alone_in_a_table_and_in_a_grid(name):
    model = load_model(name)
    layouts = [layout(model, tp, pp, 1, ep) for tp in (1, 2) for pp in (1, 2, 4) for ep in (1, 4)]
    workload = Workload(mtp_depth=1)
    together = table(layouts, [Knobs()] * len(layouts))
    columns, splits = layout_columns(layouts)
    crossed = grid(columns, splits, [[Knobs(), Knobs(recompute=("moe_act",))], [Knobs(), Knobs(ep_overlap=True)]])
    for i, row in enumerate(layouts):
        alone = representative_stages(model, one(row), 1)
        for slot, (stage, gridded) in enumerate(
            zip(representative_stages(model, together, 1), representative_stages(model, crossed, 1), strict=True)
        ):
            in_table = stage_params(model, workload, together, stage)
            in_grid = stage_params(model, workload, crossed, gridded)
            # A row with fewer representative ranks than the widest repeats its first.
            single = stage_params(model, workload, one(row), alone[slot if slot < len(alone) else 0])
            assert int(in_table.dense[i]) == int(single.dense[0])
            assert int(in_table.expert[i]) == int(single.expert[0])
            assert np.array_equal(np.broadcast_to(in_grid.total, crossed.shape)[..., i].ravel(), [single.total[0]] * 4)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(model_names()),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 8),
    vpp=st.integers(1, 3),
    ep=st.sampled_from([1, 2, 4, 8]),
)
def test_more_parallelism_never_means_more_parameters(name, tp, pp, vpp, ep):
    model = load_model(name)

    def worst(row: Layout) -> int:
        columns = one(row)
        ranks = representative_stages(model, columns, 0)
        return max(int(stage_params(model, UNPADDED, columns, rank).total[0]) for rank in ranks)

    base = worst(layout(model, tp, pp, vpp if pp > 1 else 1, ep))
    assert worst(layout(model, 2 * tp, pp, vpp if pp > 1 else 1, ep)) <= base
    assert worst(layout(model, tp, pp, vpp if pp > 1 else 1, 2 * ep)) <= base


def test_counts_are_64_bit_integers():
    model = load_model("deepseek-v4-pro")
    columns = one(layout(model))
    params = stage_params(model, Workload(), columns, stage_of_rank(model, columns, 0, 0))
    assert params.total.dtype == np.int64
    assert int(params.total[0]) == trained_params(model)


def test_prediction_module_of_a_model_that_names_none_is_like_its_last_layer():
    model = load_model("mixtral-8x7b")
    module, last = mtp_module_counts(model), layer_counts(model.kinds[model.pattern[-1]], model)
    assert module.total == last.total + 2 * 4096 * 4096 + 3 * 4096
    assert mtp_module_counts(replace(model, norm_bias=True)).replicated > module.replicated
