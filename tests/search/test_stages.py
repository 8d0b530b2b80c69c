"""The balance of layers over pipeline ranks: against brute force, its words, and its properties."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.search.stages import (
    balanced_split,
    even_split,
    hybrid_pattern,
    layout_string,
    megatron_flags,
    parse_layout_string,
    rank_loads,
)
from advisor.search.weights import stage_weights
from advisor.spec.load.model import load_model
from advisor.spec.model import DenseMlp, ExpertMlp, GroupedQueryAttention, Layer, Model, MultiTokenPrediction
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

JOB = Workload(seq_len=4096)
FULL = GroupedQueryAttention(16, 4, 64, 64)
WINDOW = GroupedQueryAttention(16, 4, 64, 64, window=512)
KINDS = (Layer(FULL, DenseMlp(8192)), Layer(FULL, ExpertMlp(64, 4, 1408)), Layer(WINDOW, DenseMlp(4096)))


def model_of(pattern: tuple[int, ...], vocab: int = 32_000, mtp: bool = False) -> Model:
    extra = MultiTokenPrediction(1, (pattern[-1],)) if mtp else None
    return Model("toy", "toy", 1024, vocab, KINDS, pattern, False, mtp=extra)


def heaviest(split: PipelineSplit, model: Model, depth: int = 0) -> float:
    return max(rank_loads(split, stage_weights(model, JOB, depth)))


def brute_force(model: Model, pp: int, vpp: int) -> float:
    """Heaviest rank of the best of all contiguous splits whose chunks, but for the last, hold a layer."""
    chunks, layers = pp * vpp, model.num_layers
    cuts = itertools.combinations_with_replacement(range(1, layers + 1), chunks - 1)
    best = float("inf")
    for cut in cuts:
        counts = tuple(b - a for a, b in itertools.pairwise((0, *cut, layers)))
        if min(counts[:-1]) >= 1:
            best = min(best, heaviest(PipelineSplit(pp, vpp, counts), model))
    return best


patterns = st.one_of(
    st.tuples(st.integers(0, 3), st.integers(4, 9)).map(lambda n: (0,) * n[0] + (1,) * n[1]),
    st.lists(st.sampled_from([0, 1, 2]), min_size=4, max_size=10).map(tuple),
)


@given(patterns, st.sampled_from([1_000, 32_000, 200_000]), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_without_interleaving_any_pattern_is_split_as_well_as_brute_force(pattern, vocab, pp):
    model = model_of(pattern, vocab)
    split = balanced_split(model, JOB, pp, 1, 0, close=1)
    assert split is not None
    assert heaviest(split, model) <= brute_force(model, pp, 1) * (1 + 1e-9)


@given(st.integers(0, 3), st.integers(5, 8), st.sampled_from([1_000, 32_000, 200_000]))
@settings(max_examples=40, deadline=None)
def test_interleaved_with_a_dense_lead_is_split_as_well_as_brute_force(lead, rest, vocab):
    model = model_of((0,) * lead + (1,) * rest, vocab)
    split = balanced_split(model, JOB, 2, 2, 0, close=1)
    assert split is not None
    assert heaviest(split, model) <= brute_force(model, 2, 2) * (1 + 1e-9)


def test_interleaved_alternating_kinds_stay_close_to_brute_force():
    worst = 1.0
    for period in ((2, 0), (2, 2, 0), (0, 1, 1), (2, 2, 2, 2, 0)):
        for layers in (8, 10, 11):
            model = model_of(tuple(itertools.islice(itertools.cycle(period), layers)))
            split = balanced_split(model, JOB, 2, 2, 0, close=1)
            worst = max(worst, heaviest(split, model) / brute_force(model, 2, 2))
    assert worst <= 1.05


@pytest.mark.parametrize("name", ["minimax-m2", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "gemma3-12b"])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (4, 4), (8, 2), (16, 2)])
def test_every_layer_is_dealt_once_and_the_string_says_the_same(name, pp, vpp):
    model = load_model(name)
    depth = 1 if model.mtp else 0
    split = balanced_split(model, JOB, pp, vpp, depth)
    if split is None:
        assert model.num_layers < pp * vpp - 2
        return
    assert sum(split.layers) == model.num_layers
    assert min(split.layers[1:-1], default=1) >= 1
    again = parse_layout_string(layout_string(split, depth), pp, model.num_layers, depth)
    assert (again.layers, again.vpp, again.mtp_chunk) == (split.layers, vpp, split.mtp_chunk)


def test_the_last_stage_gets_fewer_layers_because_of_the_logits():
    """MiniMax-M2: 62 layers and a vocabulary of 200,064, whose logits weigh 3.4 layers."""
    split = balanced_split(load_model("minimax-m2"), JOB, 4, 1, 0)
    assert split.layers == (17, 16, 16, 13)


def test_simplest_form_wins_among_equals():
    model = model_of((0,) * 12, vocab=1_000)
    assert balanced_split(model, JOB, 4, 1, 0).form == "even"
    assert megatron_flags(balanced_split(model, JOB, 4, 3, 0)) == {
        "pipeline_model_parallel_size": 4,
        "num_virtual_stages_per_pipeline_rank": 3,
    }
    one_short = model_of((0,) * 15, vocab=9_000)  # the logits weigh nearly a layer
    split = balanced_split(one_short, JOB, 4, 1, 0)
    assert (split.form, split.layers, split.account_loss) == ("account", (4, 4, 4, 3), True)
    assert megatron_flags(split)["account_for_loss_in_pipeline_split"] is True


def test_uneven_form_names_first_and_last_counts():
    split = balanced_split(load_model("minimax-m2"), JOB, 4, 1, 0)
    flags = megatron_flags(split)
    assert split.form == "uneven"
    assert (flags["decoder_first_pipeline_num_layers"], flags["decoder_last_pipeline_num_layers"]) == (17, 13)


def test_prediction_module_may_leave_the_loss_alone_on_the_last_stage():
    """DeepSeek-V3 with one module: the public layout for pp 16, vpp 2 also ends in `m|L`."""
    split = balanced_split(load_model("deepseek-v3"), JOB, 16, 2, 1)
    assert split.mtp_chunk == 30
    assert split.layers[-1] == 0
    assert layout_string(split, 1).endswith("m|L")
    with_loss = PipelineSplit(16, 2, (*split.layers[:-2], split.layers[-2], 0), "layout", 31)
    assert heaviest(split, load_model("deepseek-v3"), 1) <= heaviest(with_loss, load_model("deepseek-v3"), 1)


@pytest.mark.parametrize("name", ["deepseek-v3", "ling-1t", "qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_pipeline_that_layers_can_fill_has_a_split(name, depth):
    """Also where the dense lead is longer than the few chunks that may hold layers (pp 3, modules before the loss)."""
    model = load_model(name)
    for pp, vpp in ((2, 1), (3, 1), (3, 2), (4, 1), (5, 3), (6, 2)):
        split = balanced_split(model, JOB, pp, vpp, depth)
        assert sum(split.layers) == model.num_layers
        if depth:
            assert sum(split.layers[split.mtp_chunk + 1 :]) == 0


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(3, 8, 1), (30, 16, 4), (1, 4, 1), (61, 16, 4)])
def test_too_few_layers_have_no_split(layers, pp, vpp):
    assert balanced_split(model_of((0,) * layers), JOB, pp, vpp, 0) is None


def test_a_loss_alone_on_the_last_chunk_is_enough():
    split = balanced_split(model_of((0,) * 7), JOB, 8, 1, 0)
    assert split.layers == (1,) * 7 + (0,)


def test_even_split_only_where_layers_divide():
    assert even_split(62, 4, 1, 0) is None
    assert even_split(64, 4, 2, 1) == PipelineSplit(4, 2, (8,) * 8, mtp_chunk=7)


def test_list_form_of_bridge_reads_like_the_string():
    stages = [["embedding", "decoder", "decoder"], ["decoder"] * 3, ["Decoder", "mtp"], ["loss"]]
    split = parse_layout_string(stages, 2, 6, 1)
    assert split == parse_layout_string("Ett|t*3|tm|L", 2, 6, 1)
    assert (split.layers, split.vpp, split.mtp_chunk) == ((2, 3, 1, 0), 2, 2) if split else False


@pytest.mark.parametrize("stages", [[["embedding", "decodr", "loss"]], ["EtL"], [["embedding", 3, "loss"]]])
def test_bad_list_form_is_an_input_error(stages):
    with pytest.raises(InputError):
        parse_layout_string(stages, 1, 1)


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_any_split_survives_its_string(pp, vpp, data):
    counts = tuple(data.draw(st.lists(st.integers(0, 9), min_size=pp * vpp, max_size=pp * vpp)))
    depth = data.draw(st.integers(0, 2))
    split = PipelineSplit(pp, vpp, counts, "layout", pp * vpp - 1 if depth else None)
    assert parse_layout_string(layout_string(split, depth), pp, sum(counts), depth) == split


def test_hybrid_models_put_bars_into_their_pattern():
    model = load_model("nemotron-h-8b")
    split = balanced_split(model, JOB, 4, 1, 0)
    pattern = hybrid_pattern(model, split)
    assert split.form == "pattern"
    assert pattern.count("|") == 3
    assert len(pattern) == model.num_layers + 3
    assert set(pattern) == {"M", "*", "-", "|"}
    assert megatron_flags(split, model=model)["hybrid_layer_pattern"] == pattern
    with pytest.raises(InputError):
        megatron_flags(split)
