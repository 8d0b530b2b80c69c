"""Files and names that cannot be used: one clear error each, never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.params import total_params
from advisor.errors import AdvisorError, InputError, UnknownNameError, UnsupportedModelError
from advisor.spec.load.model import load_model, model_from_config, model_names
from tests.spec.test_models_huggingface import plain


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ("minimax-m", "minimax-m2"),
        ("llama3-7b", "llama3-8b"),
        ("deepseekv3", "deepseek-v3"),
        ("Qwen3-235B", "qwen3-235b"),
    ],
)
def test_unknown_names_get_the_closest(asked, offered):
    with pytest.raises(UnknownNameError) as caught:
        load_model(asked)
    assert offered in str(caught.value.hint)
    assert asked in caught.value.message


@pytest.mark.parametrize("name", ["", "  ", "x" * 10_000, "\x00", "a\nb", "~", "*"])
def test_strange_names(name):
    with pytest.raises(InputError):
        load_model(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1, 2]", "not a mapping"),
        (b"\xff\xfe\x00\x01binary", "not a text file"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"{}", "'model_type'"),
        (b'{"model_type": 7}', "not supported"),
        (b'{"model_type": "lama"}', "not supported"),
        (b'{"model_type": "llama"}', "missing key 'hidden_size'"),
    ],
)
def test_broken_files(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert words in caught.value.message
    assert str(path) in caught.value.message


def test_missing_file_and_directory_without_config(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_model(str(tmp_path / "none.json"))
    with pytest.raises(InputError, match=r"without a config\.json"):
        load_model(str(tmp_path))


def test_endless_file():
    with pytest.raises(InputError, match="no regular file"):
        load_model("/dev/zero")


def test_unsupported_type_names_the_closest():
    with pytest.raises(UnsupportedModelError) as caught:
        model_from_config({"model_type": "qwen3_mo"}, "mine")
    assert "qwen3_moe" in str(caught.value.hint)


def test_all_problems_are_reported_at_once():
    config = plain("qwen3-235b-a22b")
    del config["num_experts"], config["moe_intermediate_size"]
    config |= {"hidden_size": -1, "tie_word_embeddings": "yes"}
    with pytest.raises(UnsupportedModelError) as caught:
        model_from_config(config, "mine")
    for words in ("num_experts", "moe_intermediate_size", "'hidden_size' is -1", "'tie_word_embeddings'"):
        assert words in caught.value.message


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, 0, 0.5, 10**30, "many", True, [], {}, [1, 2]], ids=str
)
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_impossible_numbers(key, value):
    with pytest.raises(InputError) as caught:
        model_from_config({**plain("llama3-8b"), key: value}, "mine")
    assert f"'{key}'" in caught.value.message


def test_absurd_products_are_refused_before_columns_overflow():
    config = {
        **plain("mixtral-8x7b"),
        "intermediate_size": 2**24,
        "num_local_experts": 2**16,
        "num_hidden_layers": 4096,
    }
    with pytest.raises(InputError, match="1e18"):
        model_from_config(config, "mine")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(model_names()), data=st.data())
def test_fuzzed_files_give_a_model_or_one_clear_error(name, data):
    config: dict[str, Any] = json.loads(json.dumps(plain(name)))
    for key in data.draw(
        st.lists(st.sampled_from([*sorted(config), "layer_types", "text_config", "_source"]), max_size=3)
    ):
        value = data.draw(JSON | st.just(...))
        if value is ...:
            config.pop(key, None)
        else:
            config[key] = value
    try:
        model = model_from_config(config, name)
    except AdvisorError:
        return
    assert 0 < total_params(model) < 2**62
