"""The model that Bridge's recipe trains under an exported plan, field by field, against the one that was priced."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.api import estimate
from advisor.configure.chosen import Chosen
from advisor.configure.job import preset
from advisor.export.model_fields import model_fields
from advisor.export.subject import subject
from advisor.export.targets import export
from advisor.spec.load.model import load_model
from advisor.spec.model import GroupedQueryAttention, LatentAttention
from tests.real.bridge_run import facts_of, run_snippet, settle
from tests.real.bridge_stack import VERSION, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
ROWS = preset("versions.yaml")["recipes"]
RECIPES = [name for name, row in ROWS.items() if isinstance(row, dict) and VERSION in row["versions"]]
# Fields that cost nothing or that a recipe says in another way, and why they may differ from ours.
ANYWHERE = {
    "max_position_embeddings": "no table of positions is trained but where positions are learned",
    "make_vocab_size_divisible_by": "a vocabulary that the recipe states is not padded (should_pad_vocab is off)",
    "moe_router_load_balancing_type": "which auxiliary loss: a sum over the router's probabilities either way",
    "position_embedding_type": "yarn stretches rope; hybrid models have no rope",
    "activation_func": "the bridge class names the variant of the same element-wise function",
}
OF = {
    "ffn_hidden_size": ("qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-next-80b-a3b"),  # every layer has experts
    "add_qkv_bias": ("gpt-oss-20b", "gpt-oss-120b", "gpt3-175b"),  # add_bias_linear gives queries and keys theirs
    "window_attn_skip_freq": ("gpt-oss-20b", "gpt-oss-120b", "gemma3-1b"),  # every second layer; Gemma's own layers
    "window_size": ("gemma3-1b", "gpt-oss-20b", "gpt-oss-120b"),  # Bridge 0.3 counts the query too
    "rotary_base": ("gemma3-1b",),  # one base for local, one for global layers
    "qk_layernorm": ("gemma3-1b",),  # its layer specification of 0.3 holds the norms
    "linear_attention_freq": ("qwen3-next-80b-a3b",),  # every fourth layer
    "vocab_size": ("gpt3-175b", "nemotron-h-8b", "nemotron-h-56b", "nemotron-3-nano-30b-a3b"),  # the tokenizer's
    "moe_layer_freq": ("nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b"),  # the layer pattern says it
}
DEPTHS = {"deepseek-v3": (0, 1), "glm-4.5": (0, 1), "nemotron-3-super-120b-a12b": (0, 1, 2)}
# Mixers that no field of a GPT model describes are compared by their number of layers alone.
DESCRIBED = (GroupedQueryAttention, LatentAttention)


def trained(name: str, depth: int) -> tuple[Chosen, Any]:
    """A plan of a preset, and the settled container of its exported snippet."""
    more = {"mtp_depth": depth} if depth else {}
    answer = estimate(
        name, 64, ep=8 if load_model(name).is_moe else 1, tp=1, mbs=1, gbs=64, seq_len=2048, **more
    )  # fmt: skip
    assert answer.candidate is not None
    chosen = Chosen(answer.request, answer.candidate, f"{name}.json", 1)
    made = subject(chosen, "bridge", VERSION)
    module = run_snippet(export(chosen, "bridge", VERSION)["bridge_config.py"])
    with on_gpus(made.job):
        cfg = module.configure(module.recipe())
    return chosen, settle(cfg, made)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else getattr(value, "__name__", value)


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_trains_the_model_that_was_priced(name: str) -> None:
    chosen, cfg = trained(name, 0)
    assert cfg.model.num_layers == chosen.model.num_layers
    assert cfg.model.seq_length == chosen.workload.seq_len
    assert (cfg.model.attention_dropout, cfg.model.hidden_dropout) == (0.0, 0.0)
    assert cfg.optimizer.optimizer == chosen.workload.optimizer
    if not any(isinstance(layer.mixer, DESCRIBED) for layer in chosen.model.kinds):
        return
    said = model_fields(chosen.model, chosen.workload, facts_of(chosen))
    held = {field: plain(getattr(cfg.model, field, None)) for field in said}
    unlike = {field for field, value in said.items() if plain(value) != held[field]}
    unexplained = {one for one in unlike if one not in ANYWHERE and name not in OF.get(one, ())}
    assert {field: (plain(said[field]), held[field]) for field in unexplained} == {}


@pytest.mark.parametrize(("name", "depth"), [(name, one) for name in DEPTHS for one in DEPTHS[name]])
def test_prediction_modules_are_those_of_the_plan(name: str, depth: int) -> None:
    if name not in RECIPES:
        pytest.skip(f"Bridge {VERSION} has no recipe of it")
    _, cfg = trained(name, depth)
    assert (cfg.model.mtp_num_layers or 0) == depth
    pattern = getattr(cfg.model, "hybrid_layer_pattern", None)
    assert pattern is None or pattern.count("/") == depth
