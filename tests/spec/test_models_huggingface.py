"""Plain Hugging Face files: what a `config.json` leaves out is what its model type implies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from advisor import data
from advisor.cost.params import total_params
from advisor.spec.load.model import load_model, model_from_config, model_names


def preset(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(data.listing("presets", "models", ".json")[name].read_text())
    return values


def plain(name: str) -> dict[str, Any]:
    """A preset without our own keys and without those that spell out what the model type implies."""
    values = preset(name)
    ours = set(values.get("_non_hf_keys", ()))
    return {key: value for key, value in values.items() if not key.startswith("_") and key not in ours}


@pytest.mark.parametrize("name", model_names())
def test_implied_keys_may_be_left_out(name):
    assert total_params(model_from_config(plain(name), name)) == total_params(load_model(name))


def test_by_path_of_a_file_and_of_its_directory(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(plain("qwen3-8b")))
    for path in (folder, folder / "config.json"):
        model = load_model(str(path))
        assert (model.name, total_params(model)) == ("my-model", 8_190_735_360)


def test_dbrx_in_its_own_nested_form():
    config = {
        "model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "max_seq_len": 32768,
        "vocab_size": 100352, "tie_word_embeddings": False,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }  # fmt: skip
    assert total_params(model_from_config(config, "dbrx")) == 131_596_523_520


def test_text_part_of_a_multimodal_file():
    text = {key: plain("gemma3-12b")[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    text |= {"num_attention_heads": 16, "num_key_value_heads": 8, "model_type": "gemma3_text"}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    assert total_params(model_from_config(config, "gemma3-12b")) == 11_766_034_176
    wrapped = {"model_type": "llama4", "text_config": plain("llama4-scout"), "vision_config": {}}
    assert total_params(model_from_config(wrapped, "scout")) == 107_769_861_120


@pytest.mark.parametrize(
    ("name", "remove", "add"),
    [
        ("nemotron-3-nano-30b-a3b", ["hybrid_override_pattern", "num_hidden_layers"], "blocks"),
        ("deepseek-v3", ["first_k_dense_replace", "moe_layer_freq"], "mlp_types"),
        ("minimax-m3", ["first_k_dense_replace"], "freq"),
        ("step3", ["moe_layers_enum"], "enum"),
        ("qwen3-next-80b-a3b", ["full_attention_interval"], "layer_types"),
        ("deepseek-v4-flash", ["compress_ratios", "num_hash_layers"], "v4"),
        ("hunyuan-large", ["moe_topk", "num_experts_per_tok"], "listed"),
    ],
)
def test_other_spellings_of_the_same_model(name, remove, add):
    blocks = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    values = plain(name)
    new = {
        "blocks": lambda: {"layers_block_type": [blocks[symbol] for symbol in values["hybrid_override_pattern"]]},
        "mlp_types": lambda: {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58},
        "freq": lambda: {"moe_layer_freq": [0] * 3 + [1] * 57},
        "enum": lambda: {"moe_layers_enum": ",".join(str(i) for i in range(4, 60))},
        "layer_types": lambda: {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12},
        "v4": lambda: {
            "layer_types": ["sliding_attention"] * 2
            + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
            + ["compressed_sparse_attention"],
            "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
        },
        "listed": lambda: {"moe_topk": [1] * 64},
    }[add]()
    config = {key: value for key, value in values.items() if key not in remove} | new
    assert total_params(model_from_config(config, name)) == total_params(load_model(name))


def test_gemma_and_mistral_files():
    gemma2 = {
        "model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 256000,
        "sliding_window": 4096,
    }  # fmt: skip
    assert total_params(model_from_config(gemma2, "gemma2-27b")) == 27_227_128_320
    mistral = {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096,
    }  # fmt: skip
    assert total_params(model_from_config(mistral, "mistral-7b")) == 7_241_732_096
