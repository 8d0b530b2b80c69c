"""Loads a model by preset name or from a Hugging Face `config.json`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor import data
from advisor.documents import read_json, read_text
from advisor.errors import InputError, UnknownNameError, UnsupportedModelError
from advisor.spec.load.huggingface import FAMILIES, Config
from advisor.spec.load.huggingface.config import short
from advisor.spec.model import ExpertMlp, Layer, Model

LARGEST_FILE_BYTES = 16 * 2**20
MOST_PARAMS = 2**60
TEXT_PART_KEYS = ("text_config", "llm_config", "language_config")
TEXT_PART_TYPES = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "minimax_m3_vl": "minimax_m3",
    "step3_vl": "step3_text",
}


def model_names() -> list[str]:
    """Names of all model presets, sorted."""
    return list(data.listing("presets", "models", ".json"))


def load_model(name_or_path: str) -> Model:
    """A preset by its name, or a `config.json` (or the directory that holds one) by its path.

    Raises UnknownNameError for a name that is neither (with the closest presets), UnsupportedModelError for an
    architecture or a missing key, InputError for a file that cannot be read or holds impossible values.
    """
    presets = data.listing("presets", "models", ".json")
    path = presets.get(name_or_path.lower())
    if path is not None:
        return model_from_config(_read(path), path.stem)
    path = Path(name_or_path)
    try:
        is_path = path.exists() or "/" in name_or_path or name_or_path.endswith(".json")
        if path.is_dir():
            path = _inside(path)
    except (OSError, ValueError):
        is_path = False
    if not is_path:
        raise UnknownNameError(f"no model preset is named {short(name_or_path)}", hint=_closest(name_or_path, presets))
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    config = _read(path)
    return model_from_config(config, name, where=str(path))


def model_from_config(config: Mapping[str, Any], name: str, where: str | None = None) -> Model:
    """The model that a configuration mapping describes; `where` (default `name`) is what messages call it."""
    where = where or name
    values = _text_part(config)
    values = {"_name": name, **values}
    model_type = values.get("model_type")
    if model_type is None:
        raise UnsupportedModelError(f"{where}: missing key 'model_type'", hint=f"one of {', '.join(sorted(FAMILIES))}")
    reader = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        near = difflib.get_close_matches(str(model_type)[:80], FAMILIES, n=3, cutoff=0.5)
        hint = f"closest: {', '.join(near)}" if near else f"supported: {', '.join(sorted(FAMILIES))}"
        raise UnsupportedModelError(f"{where}: 'model_type' {short(model_type)} is not supported", hint=hint)
    c = Config(values, where)
    model = reader(c)
    if _at_most(model) > MOST_PARAMS:
        c.problem("the sizes multiply to more than 1e18 parameters")
    c.finish()
    return model


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model of a multimodal configuration; the configuration itself otherwise."""
    for key in TEXT_PART_KEYS:
        part = config.get(key)
        if isinstance(part, Mapping):
            outer = {k: config[k] for k in ("tie_word_embeddings", "model_type", "_source") if k in config}
            merged = {**outer, **part}
            merged["model_type"] = _text_type(merged.get("model_type"))
            return merged
    values = dict(config)
    if "model_type" in values:
        values["model_type"] = _text_type(values["model_type"])
    return values


def _text_type(model_type: object) -> object:
    return TEXT_PART_TYPES.get(model_type, model_type) if isinstance(model_type, str) else model_type


def _at_most(model: Model) -> int:
    """An upper bound of the parameter count, to refuse absurd files before 64-bit columns overflow."""

    def width(layer: Layer) -> int:
        mlp = layer.mlp
        if isinstance(mlp, ExpertMlp):
            return mlp.experts * (mlp.ffn + 1) + mlp.shared_ffn
        return 0 if mlp is None else mlp.ffn

    def mixer(layer: Layer) -> int:
        sizes = [getattr(layer.mixer, slot) or 0 for slot in getattr(layer.mixer, "__slots__", ())]
        numbers = sorted((int(size) for size in sizes if isinstance(size, int)), reverse=True)
        return numbers[0] * numbers[1] if len(numbers) > 1 else 0

    per_layer = max((4 * width(layer) + 4 * mixer(layer) for layer in model.kinds), default=0)
    return model.hidden * (2 * model.vocab_size + model.num_layers * per_layer)


def _inside(directory: Path) -> Path:
    path = directory / "config.json"
    if not path.is_file():
        raise InputError(f"{directory} is a directory without a config.json", hint="give the path of the file itself")
    return path


def _read(path: Path) -> Mapping[str, Any]:
    values = read_json(str(path), read_text(path, LARGEST_FILE_BYTES, "config.json of a model"))
    if not isinstance(values, Mapping):
        raise InputError(f"{path} holds a {type(values).__name__}, not a mapping of keys")
    return values


def _closest(name: str, presets: Mapping[str, Path]) -> str:
    near = difflib.get_close_matches(name.lower()[:80], presets, n=4, cutoff=0.5)
    if not near:
        near = [preset for preset in presets if preset.startswith(name.lower()[:4])][:4]
    found = f"closest presets: {', '.join(near)}; " if near else ""
    return f"{found}list them with `advisor models list`, or give a path to a config.json"
