"""What a framework takes where the files are silent, and what it derives before it looks at anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from advisor.check.readers.flags import key_of
from advisor.check.reading import Note
from advisor.check.recipes import preset
from advisor.rules.lint import Setup, Value
from advisor.rules.lint.releases import release
from advisor.spec.load.megatron.arguments import by_dest

_TYPO = 0.9
# Sections that no recipe fills: their defaults hold wherever nothing is stated.
_ALWAYS = ("ft", "nvrx_straggler", "straggler", "inprocess_restart", "rerun_state_machine", "profiling", "comm_overlap")
# Classes whose defaults are those of the table; other providers set what describes their model.
_PLAIN_MODELS = ("GPTModelProvider", "TransformerConfig", "MLATransformerConfig", "GPTModelConfig", "MLAModelProvider")
_RUNTIME = ("tensor_model", "pipeline_model", "virtual_pipeline", "context_parallel", "expert_model", "expert_tensor",
            "sequence_parallel", "recompute", "cuda_graph", "cpu_offloading", "fine_grained", "num_layers_in",
            "account_for")  # fmt: skip
_OPEN = ("dataset", "peft", "logger", "tokenizer", "tensor_inspect", "optimizer_config_override_provider")


@lru_cache(maxsize=1)
def fields() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Fields of Bridge's configuration classes: section -> field -> {default, only}."""
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(preset("check/bridge_fields.json"))["sections"]
    return found


@lru_cache(maxsize=1)
def megatron_defaults() -> dict[str, Any]:
    """Defaults of Megatron-LM's parser under the keys of a Bridge configuration."""
    found = {key_of(dest): flag.default for dest, flag in by_dest().items()}
    found.update(dict.fromkeys(("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size",
        "model.context_parallel_size", "model.expert_model_parallel_size"), 1))  # fmt: skip
    return found


def bridge_defaults(setup: Setup) -> dict[str, Any]:
    """Defaults of the sections that are built in the files, and of those that no recipe fills."""
    found: dict[str, Any] = {}
    for section, names in fields().items():
        built = setup.facts.get(f"built.{section}")
        if built is not None or section in _ALWAYS:
            usual = {f"{section}.{name}": row["default"] for name, row in names.items() if "default" in row}
            if section == "rerun_state_machine" and built is None and setup.facts.get("recipe"):
                usual.pop("rerun_state_machine.check_for_nan_in_loss", None)
            if section == "model" and built is not None and built.value not in _PLAIN_MODELS:
                usual = {key: value for key, value in usual.items() if key.removeprefix("model.").startswith(_RUNTIME)}
            found |= usual
    for key in ("grad_reduce_in_fp32", "fp8_param_gather"):
        found.pop(f"ddp.{key}", None)
    for name in [name for name in setup.facts if name.startswith("unknown.")]:
        found.pop(name.removeprefix("unknown."), None)
    if "mixed_precision" in setup.values or setup.facts.get("recipe"):
        for key in ("bf16", "fp16", "fp8", "fp8_recipe"):
            found.pop(f"model.{key}", None)
    return found


def settle(setup: Setup) -> None:
    """Fill defaults in and derive what Megatron-LM's arguments imply."""
    if setup.framework == "megatron-lm":
        setup.defaults = megatron_defaults()
        _megatron(setup)
    elif setup.framework == "bridge":
        setup.defaults = bridge_defaults(setup)
        _bridge(setup)


def _bridge(setup: Setup) -> None:
    """A mixed precision that is named stands for its settings; `--moe_a2a_overlap` also delays wgrad."""
    name = setup.values.get("mixed_precision")
    text = name.value if name is not None else None
    if isinstance(text, str) and "mixed_precision.grad_reduce_in_fp32" not in setup.values and "_mixed" in text:
        setup.base.setdefault("mixed_precision.grad_reduce_in_fp32", True)
        if "fp8" not in text and "fp4" not in text:
            setup.base.setdefault("mixed_precision.fp8_param_gather", False)
    if isinstance(text, str) and "fp16" in text:
        setup.base.setdefault("model.fp16", True)
    elif isinstance(text, str) and "bf16" in text:
        setup.base.setdefault("model.bf16", True)
    if isinstance(text, str) and "delayed" in text:
        setup.base |= {"model.fp8": "hybrid", "model.fp8_recipe": "delayed"}
    for precise in ("fp8", "fp8_recipe", "bf16", "fp16"):
        stated = setup.values.get(f"mixed_precision.{precise}")
        if stated is not None:
            setup.base.setdefault(f"model.{precise}", stated.value)


def _megatron(setup: Setup) -> None:
    base = setup.base
    layers, per = setup.number("layers"), setup.number("num_layers_per_virtual_pipeline_stage")
    stages, layout = setup.number("num_virtual_stages_per_pipeline_rank"), setup.get("pipeline_model_parallel_layout")
    vpp: int | None = None
    if isinstance(layout, str):
        vpp = (layout.count("|") + 1) // setup.pp if "*" not in layout else _unrolled(layout) // setup.pp
    elif stages is not None:
        vpp = int(stages)
    elif per and layers and setup.pp:
        ends = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
        vpp = (int(layers) + sum(map(setup.on, ends))) // setup.pp // int(per)
    pattern = setup.get("hybrid_layer_pattern")
    if isinstance(pattern, str) and "|" in pattern:
        vpp = (pattern.split("/")[0].count("|") + 1) // setup.pp
    base["model.virtual_pipeline_model_parallel_size"] = vpp if vpp and vpp > 1 else None
    setup.values.pop("model.virtual_pipeline_model_parallel_size", None)
    setup.facts["interleaved"] = Value((vpp or 0) > 1 or bool(vpp and per))
    if not setup.on("group_query_attention"):
        base["model.num_query_groups"] = setup.number("num_attention_heads")
        setup.values.pop("model.num_query_groups", None)
    hidden = setup.number("hidden_size")
    if setup.number("ffn_hidden_size") is None and hidden:
        base["model.ffn_hidden_size"] = int(4 * hidden * 2 / 3 / 64) * 64 if setup.on("swiglu") else 4 * int(hidden)
    if setup.on("recompute_activations"):
        base.setdefault("model.recompute_granularity", "selective")
    if setup.number("experts") and setup.number("moe_ffn_hidden_size") is None:
        base["model.moe_ffn_hidden_size"] = setup.number("ffn_hidden_size")
    if setup.on("fp16") and not setup.get("optimizer.loss_scale"):
        base["rerun_state_machine.check_for_nan_in_loss"] = False
    if (setup.number("cpu_offloading_num_layers") or 0) > 0:
        base["model.cpu_offloading"] = True
    if setup.on("ddp.use_megatron_fsdp"):
        base.setdefault("ddp.use_distributed_optimizer", True)


def _unrolled(layout: str) -> int:
    """Stages of a layout string with repetitions."""
    from advisor.errors import InputError
    from advisor.spec.split import _unroll

    try:
        return _unroll(layout.replace(",", "").replace(" ", "")).count("|") + 1
    except InputError:
        return 1


def _elsewhere(row: Mapping[str, Any], setup: Setup) -> bool:
    """Whether a field belongs to another release of Bridge than the one that is stated."""
    stated = setup.releases.get("bridge")
    return stated is not None and "only" in row and stated != release(row["only"])


def unknown_fields(setup: Setup) -> list[tuple[Note, str]]:
    """Settings that no configuration class has: refused where they are built or overridden, lost where assigned."""
    found: list[tuple[Note, str]] = []
    if setup.framework != "bridge":
        return found
    for key, value in setup.values.items():
        section, _, name = key.partition(".")
        known = fields().get(section)
        if (
            known is None
            or not name
            or "." in name
            or section in _OPEN
            or f"added.{key}" in setup.facts
            or (name in known and not _elsewhere(known[name], setup))
        ):
            continue
        close = get_close_matches(name, list(known), 1, _TYPO)
        fix = f"did you mean {section}.{close[0]}?" if close else "check the spelling, or the version of Bridge"
        python = value.file.endswith(".py")
        message = f"{key} is no known field of {section}"
        if name in known:
            message, fix = f"{key} is a field of Bridge {known[name]['only']} only", "drop it, or run that version"
        severity = "info" if not close else "stop" if f"keyword.{key}" in setup.facts or not python else "silent"
        found.append((Note("unknown-field", severity, message, fix, value.line), value.file))  # type: ignore[arg-type]
    return found
