"""Exported configurations started by the installed Megatron-Bridge, and what they hold once it has settled them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from advisor.configure.chosen import Chosen
from advisor.configure.job import preset
from advisor.export.bridge_values import precision, sections
from advisor.export.model_fields import Facts, model_facts
from advisor.export.subject import Subject, recipe
from advisor.export.words import Code
from tests.real.bridge_stack import VERSION, container, differing, on_gpus

# finalize() turns the text into the object it describes.
BECOMES_AN_OBJECT = {"model.pipeline_model_parallel_layout", "model.virtual_pipeline_model_parallel_size"}


def facts_of(chosen: Chosen) -> Facts:
    return model_facts(chosen.model, str(chosen.request.settings["model"].value))


def run_snippet(text: str) -> ModuleType:
    module = ModuleType("bridge_config")
    exec(compile(text, "bridge_config.py", "exec"), module.__dict__)
    return module


def settle(cfg: Any, made: Subject) -> Any:
    """What Bridge does with a container when training starts: precision, overlap, validation."""
    from megatron.bridge.training.config import runtime_config_update

    with on_gpus(made.job):
        runtime_config_update(cfg)
    return cfg


def wrong_values(cfg: Any, made: Subject) -> dict[str, tuple[Any, Any]]:
    """Exported values that the container does not hold once it is settled."""
    found = {}
    for _, values in sections(made):
        for path, value in values:
            if path in BECOMES_AN_OBJECT or "cuda_graph" in path:
                continue
            section, _, name = path.partition(".")
            held = getattr(getattr(cfg, section), name)
            said = value.text if isinstance(value, Code) else list(value) if isinstance(value, tuple) else value
            if (str(held) if isinstance(value, Code) else held) != said:
                found[path] = (said, held)
    return found


def wrong_precision(cfg: Any, made: Subject) -> dict[str, tuple[Any, Any]]:
    """Fields of mixed precision that are not those of the recipe of the plan and its changes."""
    name, changed = precision(made)
    if name is None:
        return {} if cfg.mixed_precision is None else {"mixed_precision": (None, cfg.mixed_precision)}
    table = preset("versions.yaml")["precision_fields"]
    said = table["defaults"] | table[name] | dict(changed)
    held = {field: str(getattr(cfg.mixed_precision, field)).removeprefix("torch.") for field in said}
    return {field: (value, held[field]) for field, value in said.items() if held[field] != str(value)}


def check(cfg: Any, made: Subject) -> None:
    assert wrong_values(cfg, made) == {}
    assert wrong_precision(cfg, made) == {}
    # The snippet asks for effective values, so what is asked and what holds are the same from here on.
    assert differing(made.overlap, cfg) == {}
    assert cfg.data_parallel_size == made.layout.dp


def start(chosen: Chosen, made: Subject) -> Any:
    """What the exported text is applied to: Bridge's recipe of the model, a container of ours where it has none."""
    own = recipe(chosen.model.name, VERSION)
    if own is None:
        return container(made, facts_of(chosen))
    with on_gpus(made.job):
        return getattr(importlib.import_module(own[0]), own[1])()
