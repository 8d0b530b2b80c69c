"""Every preset: its totals are those of the reference table, to the unit."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from advisor import data
from advisor.cost.params import active_params, mtp_params, total_params
from advisor.spec.load.model import load_model, model_names
from advisor.spec.model import DeltaNet, ExpertMlp, GroupedQueryAttention, LatentAttention, Mamba

DATA = Path(__file__).parent / "data"
RUN_MODELS = sorted((Path(__file__).parents[2] / "profiles/runs/models").glob("*.json"))


def reference() -> dict[str, dict[str, str]]:
    lines = [line for line in (DATA / "model_totals.csv").read_text().splitlines() if not line.startswith("#")]
    return {row["model"]: row for row in csv.DictReader(lines)}


TABLE = reference()


def test_every_preset_has_a_reference_and_the_other_way_round():
    assert set(model_names()) == set(TABLE)
    assert len(TABLE) == 67


@pytest.mark.parametrize("name", sorted(TABLE))
def test_total_is_the_reference(name):
    row = TABLE[name]
    assert total_params(load_model(name)) == int(row["total"]) + int(row["difference"])
    assert row["difference"] == "0" or row["reason"], "an exception needs its reason"


def test_at_most_two_exceptions():
    assert sum(row["difference"] != "0" for row in TABLE.values()) <= 2


def test_moonlight_by_hand():
    h, heads, vocab = 2048, 16, 163840
    attention = h * heads * 192 + h * (512 + 64) + 512 + 512 * heads * 256 + heads * 128 * h
    dense, sparse = 3 * h * 11264, 64 * 3 * h * 1408 + 2 * 3 * h * 1408 + 64 * h + 64
    assert (
        int(TABLE["moonlight-16b-a3b"]["total"]) == 27 * (attention + 2 * h) + dense + 26 * sparse + h + 2 * vocab * h
    )


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row["active_with_embedding_b"]])
def test_active_parameters_round_to_the_reference(name):
    model, row = load_model(name), TABLE[name]
    assert f"{active_params(model, True) / 1e9:.2f}" == row["active_with_embedding_b"]
    assert f"{active_params(model, False) / 1e9:.2f}" == row["active_without_embedding_b"]


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row["mtp_extra_b"]])
def test_prediction_modules_round_to_the_reference(name):
    assert f"{mtp_params(load_model(name)) / 1e9:.2f}" == TABLE[name]["mtp_extra_b"]


@pytest.mark.parametrize("name", sorted(TABLE))
def test_preset_is_within_three_percent_of_what_its_vendor_states(name):
    values = json.loads(data.listing("presets", "models", ".json")[name].read_text())
    assert values["_source"], "a preset names where it comes from"
    stated = values.get("_expected_total_params")
    if stated:
        assert total_params(load_model(name)) == pytest.approx(stated, rel=0.03)


@pytest.mark.parametrize("path", RUN_MODELS, ids=lambda path: path.stem)
def test_models_of_published_runs_load_by_path(path):
    model = load_model(str(path))
    assert model.name == path.stem
    h, layers = model.hidden, model.num_layers
    per_layer = 12 * h * h + 13 * h
    assert total_params(model) == layers * per_layer + (51200 + 2048) * h + 2 * h


def kinds_of(name: str) -> dict[str, int]:
    """How often each mixer or feed-forward class occurs."""
    model = load_model(name)
    found: dict[str, int] = {}
    for kind, count in zip(model.kinds, model.count, strict=True):
        for part in (kind.mixer, kind.mlp):
            if part is not None:
                found[type(part).__name__] = found.get(type(part).__name__, 0) + count
    return found


def test_shapes_of_the_families():
    assert kinds_of("deepseek-v3") == {"LatentAttention": 61, "DenseMlp": 3, "ExpertMlp": 58}
    assert kinds_of("llama4-maverick") == {"GroupedQueryAttention": 48, "DenseMlp": 24, "ExpertMlp": 24}
    assert kinds_of("nemotron-3-nano-30b-a3b") == {"Mamba": 23, "ExpertMlp": 23, "GroupedQueryAttention": 6}
    assert kinds_of("qwen3-next-80b-a3b") == {"DeltaNet": 36, "GroupedQueryAttention": 12, "ExpertMlp": 48}
    assert kinds_of("step3") == {"GroupedQueryAttention": 61, "DenseMlp": 5, "ExpertMlp": 56}
    assert kinds_of("ernie-4.5-300b-a47b") == {"GroupedQueryAttention": 54, "DenseMlp": 3, "ExpertMlp": 51}
    assert kinds_of("deepseek-v4-pro") == {"CompressedAttention": 61, "ExpertMlp": 61}


def test_details_that_cost_memory_or_time():
    minimax = load_model("minimax-m2")
    assert minimax.moe == ExpertMlp(experts=256, topk=8, ffn=1536, score="sigmoid", router_bias=True)
    attention = minimax.kinds[0].mixer
    assert isinstance(attention, GroupedQueryAttention)
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.qk_norm) == (48, 8, 128, "full")
    assert minimax.mtp is not None
    assert minimax.mtp.depth == 3
    deepseek = load_model("deepseek-v3")
    assert deepseek.kinds[0].mixer == LatentAttention(128, 1536, 512, 128, 64, 128)
    assert deepseek.mtp is not None
    assert isinstance(deepseek.kinds[deepseek.mtp.layers[0]].mlp, ExpertMlp)
    windows = [load_model("gemma3-27b").kinds[kind].mixer.window for kind in load_model("gemma3-27b").pattern]  # type: ignore[union-attr]
    assert windows[:6] == [1024] * 5 + [None]
    oss = load_model("gpt-oss-120b")
    assert [oss.kinds[kind].mixer.window for kind in oss.pattern[:4]] == [128, None, 128, None]  # type: ignore[union-attr]
    hunyuan = load_model("hunyuan-large")
    assert [hunyuan.kinds[kind].mixer.shares_kv for kind in hunyuan.pattern[:4]] == [False, True, False, True]  # type: ignore[union-attr]
    super_ = load_model("nemotron-3-super-120b-a12b")
    assert super_.is_hybrid
    assert super_.moe is not None
    assert (super_.moe.latent, super_.moe.shared_ffn, super_.moe.gated) == (1024, 5376, False)
    assert super_.mtp is not None
    assert [type(super_.kinds[i].mixer) for i in super_.mtp.layers] == [GroupedQueryAttention, type(None)]
    mamba = next(kind.mixer for kind in super_.kinds if isinstance(kind.mixer, Mamba))
    assert (mamba.heads, mamba.head_dim, mamba.state, mamba.groups, mamba.conv) == (128, 64, 128, 8, 4)
    delta = next(kind.mixer for kind in load_model("qwen3.5-27b").kinds if isinstance(kind.mixer, DeltaNet))
    assert (delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim) == (16, 48, 128, 128)
    v32 = load_model("deepseek-v3.2").kinds[0].mixer
    assert isinstance(v32, LatentAttention)
    assert v32.indexer is not None
    assert (v32.indexer.heads, v32.indexer.head_dim, v32.indexer.topk) == (64, 128, 2048)


def test_names_are_case_insensitive():
    assert load_model("MiniMax-M2") == load_model("minimax-m2")
