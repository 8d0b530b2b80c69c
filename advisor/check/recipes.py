"""What a named recipe starts from: sizes of Bridge's recipes, and the facts of the model behind the name."""

from __future__ import annotations

import csv
import json
import re
from functools import lru_cache
from typing import Any

import yaml

from advisor import data
from advisor.errors import AdvisorError
from advisor.rules.grid import attention_heads, dense_widths, expert_parts, key_groups
from advisor.rules.lint.setup import SHORT
from advisor.spec.load.model import load_model
from advisor.spec.model import ExpertMlp

_NAME = re.compile(r"^(?P<model>.+?)_(?P<task>pretrain|sft|peft|lora|finetune)_?(?P<rest>.*?)_?config$")
_GPUS = re.compile(r"(\d+)gpu")


def preset(name: str) -> str:
    """Text of a file of presets. EnvironmentMissingError if the package lacks it."""
    return data.require("presets", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def library() -> dict[str, dict[str, Any]]:
    """Recipes of the library by function name."""
    found: dict[str, dict[str, Any]] = json.loads(preset("check/bridge_recipes.json"))["recipes"]
    return found


@lru_cache(maxsize=1)
def performance() -> dict[str, dict[str, Any]]:
    """Sizes of the vendor's performance recipes by function name."""
    found = {}
    for row in csv.DictReader(preset("vendor_recipes.csv").splitlines()):
        sizes = {
            SHORT[name]: int(row[name]) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs") if row[name]
        }
        found[row["recipe"]] = {**sizes, SHORT["seq"]: int(row["seq_len"]) if row["seq_len"] else None}
    return found


def is_recipe(name: str) -> bool:
    """Whether the name is that of a recipe function, so that its sizes are known and not those of a relative."""
    return name in performance() or name in library()


def recipe_values(name: str, mode: str | None) -> dict[str, Any]:
    """Settings a recipe starts from: of the function of that name, else of the smallest bf16 recipe of the model."""
    if name in performance():
        return performance()[name]
    if name in library():
        return _complete(library()[name])
    task = {"lora": "peft", "finetune": "sft", "train": "pretrain"}.get(mode or "pretrain", mode or "pretrain")
    prefix = f"{name.replace('-', '_').removesuffix('_config')}_"
    if not prefix.endswith(f"_{task}_"):
        prefix += f"{task}_"
    fits = [one for one in library() if one.startswith(prefix) and one.endswith("_bf16_config")]
    fits.sort(key=lambda one: (int(found[1]) if (found := _GPUS.search(one)) else 0, one))
    return _complete(library()[fits[0]]) if fits else {}


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe that does not set the per-token loss leaves Megatron-Core's default."""
    return {"model.calculate_per_token_loss": False, **values}


@lru_cache(maxsize=256)
def model_name(name: str) -> str:
    """The preset that a recipe's name stands for; the name itself where the table does not know it."""
    split = _NAME.match(name)
    base = (split["model"] if split else name).replace("-", "_").replace(".", "_")
    known = yaml.safe_load(preset("recipe_models.yaml"))["models"]
    same = {key.replace("-", "_").replace(".", "_"): value for key, value in known.items()}
    return same.get(base) or name


def model_values(name: str) -> dict[str, Any]:
    """Facts of the model that a recipe or preset name stands for; {} where there is no preset of it."""
    try:
        model = load_model(model_name(name))
    except (AdvisorError, OSError):
        return {}
    parts = expert_parts(model)
    values: dict[str, Any] = {"num_layers": model.num_layers, "hidden_size": model.hidden}
    values["num_moe_experts"] = max((part.experts for part in parts), default=None)
    values["moe_ffn_hidden_size"] = max((part.ffn for part in parts), default=None)
    if parts and all(isinstance(layer.mlp, ExpertMlp) for layer in model.kinds if layer.mlp is not None):
        values["moe_layer_freq"] = 1
    if model.has_mla:
        values["multi_latent_attention"] = True
    for key, counts in (
        ("num_attention_heads", attention_heads(model)), ("num_query_groups", key_groups(model)),
        ("ffn_hidden_size", dense_widths(model)),
    ):  # fmt: skip
        if len(counts) == 1:
            values[key] = counts[0]
    return {f"model.{key}": value for key, value in values.items()}
