"""YAML and JSON: a saved run_config.yaml, Megatron-LM arguments, our own plan, and files of other frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from advisor.check.readers import flags
from advisor.check.readers.foreign import refuse_foreign
from advisor.check.reading import SECTIONS, Reading
from advisor.documents import DEEPEST, SafeLoader, read_json, read_yaml
from advisor.errors import InputError
from advisor.rules.lint import Value
from advisor.spec.load.megatron import arguments as megatron

_CFG_SECTIONS = ("language_model", "model_parallel")
_ENV_KEYS = ("ENV_VARS", "env_vars", "environment", "env")


class _Safe(SafeLoader):
    """Takes tags of Python objects for what stands below them."""


def _any_tag(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    """Tags of Python objects in a saved configuration: the node's plain content, never an object."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_Safe.add_multi_constructor("tag:yaml.org,2002:python/", _any_tag)
_Safe.add_multi_constructor("!", _any_tag)


def load_mapping(path: str, text: str) -> dict[Any, Any] | None:
    """The mapping that a JSON or YAML text holds; None if it holds something else. InputError if it does not parse."""
    found = read_json(path, text) if text.lstrip().startswith("{") else read_yaml(path, text, _Safe)
    return found if isinstance(found, dict) else None


class KeyLines:
    """Lines of keys in a YAML or JSON text, by the innermost name."""

    def __init__(self, text: str) -> None:
        self.rows = [row.split(":")[0].strip().strip("\"'- ") for row in text.splitlines()]
        self.raw = text.splitlines()

    def of(self, word: str) -> int:
        """The first line whose key is `word`."""
        name = word.lstrip("-").rpartition(".")[2]
        for at, row in enumerate(self.rows, 1):
            if row.lstrip("-").replace("-", "_") == name.replace("-", "_"):
                return at
        return 0


def read_mapping(path: str, text: str, mapping: Mapping[Any, Any]) -> Reading:
    """Settings of a mapping. InputError if it belongs to another framework or holds no setting."""
    lines = KeyLines(text)
    if "candidates" in mapping or ("layout" in mapping and "schema_version" in mapping):
        return _plan(path, mapping, lines)
    keys = set(map(str, mapping))
    sections = [key for key in mapping if key in SECTIONS and isinstance(mapping[key], Mapping)]
    if "MODEL_ARGS" not in keys and len(sections) < 2:
        refuse_foreign(path, keys)
    if sections:
        return _bridge(path, mapping, lines)
    return _arguments(path, mapping, lines)


def _bridge(path: str, mapping: Mapping[Any, Any], lines: KeyLines) -> Reading:
    reading = Reading(path, "bridge-config", "bridge")
    for key, value in mapping.items():
        if key == "env_vars" and isinstance(value, Mapping):
            for name, text in value.items():
                reading.env[str(name)] = Value(None if text is None else str(text), path, lines.of(str(name)))
        elif key in SECTIONS:
            put_section(reading, str(key), value, lines.of)
    return reading


def put_section(reading: Reading, key: str, value: Any, line: Callable[[str], int]) -> None:
    """A section of Bridge as settings: an object by its class (`_target_`) and its fields."""
    for name, leaf in _leaves(key, value):
        section, _, inner = name.partition(".")
        if inner == "_target_" and isinstance(leaf, str):
            reading.know(f"built.{section}", leaf.rpartition(".")[2])
            reading.put(section, leaf.rpartition(".")[2], line(section))
        else:
            reading.put(name, leaf, line(name))


def _leaves(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value.get("_call_") is False:
        yield name, _dtype(value.get("_target_"))
    elif isinstance(value, Mapping) and depth < DEEPEST:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner, depth + 1)
    else:
        yield name, None if value in ("None", "null") else _dtype(value)


def _dtype(value: Any) -> Any:
    names = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
    return names.get(value, value) if isinstance(value, str) else value


def _parts(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Settings of the two sections that Megatron-LM's --yaml-cfg has, those that are arguments as well."""
    sections = [mapping[name] for name in _CFG_SECTIONS if isinstance(mapping.get(name), Mapping)]
    whole = {str(key): value for section in sections for key, value in section.items() if value is not None}
    known = {key: value for key, value in whole.items() if key in megatron.by_dest()}
    return known | ({"swiglu": True} if whole.get("activation_func") == "swiglu" else {})


def _arguments(path: str, mapping: Mapping[Any, Any], lines: KeyLines) -> Reading:
    reading = Reading(path, "megatron-yaml")
    for key in _ENV_KEYS:
        if isinstance(mapping.get(key), Mapping):
            for name, value in mapping[key].items():
                reading.env[str(name)] = Value(None if value is None else str(value), path, lines.of(str(name)))
    values = mapping.get("MODEL_ARGS", mapping)
    if not isinstance(values, Mapping):
        raise InputError(f"{path!r}: MODEL_ARGS holds no mapping of flags to values")
    values = {**_parts(values), **values}
    values = {key: value for key, value in values.items() if key not in _ENV_KEYS and not isinstance(value, Mapping)}
    names = [str(key).lstrip("-").replace("_", "-") for key in values]
    known = [name for name in names if name in megatron.flags() or name.replace("-", "_") in megatron.by_dest()]
    if flags.are_layout(names):
        words = [word for name, value in zip(names, values.values(), strict=True) for word in (f"--{name}", str(value))]
        flags.read(reading, words, lines, bridge=False)
        return reading
    if not known and not reading.env:
        raise InputError(f"{path!r} holds no setting of Megatron-Bridge or Megatron-LM")
    parsed = megatron.Arguments()
    megatron.from_mapping(parsed, values)
    flags.take(reading, parsed, lines)
    return reading


def _plan(path: str, mapping: Mapping[Any, Any], lines: KeyLines) -> Reading:
    """One of our own plans: the layout of its best candidate."""
    reading = Reading(path, "plan", "mcore")
    candidates = mapping.get("candidates")
    best = candidates[0] if isinstance(candidates, list) and candidates else mapping
    layout = best.get("layout") if isinstance(best, Mapping) else None
    if not isinstance(layout, Mapping):
        raise InputError(f"{path!r} holds no layout: a plan without candidates")
    words: list[str] = []
    table = flags.tables()["layout"]
    for key, value in layout.items():
        if str(key) in table and type(value) in (int, bool):
            words += [f"--{key}", str(value)]
    flags.read(reading, words, lines, bridge=False)
    request = mapping.get("request")
    for key in ("gpus", "system", "model", "seq_len"):
        value = request.get(key) if isinstance(request, Mapping) else mapping.get(key)
        value = value.get("value") if isinstance(value, Mapping) else value
        if isinstance(value, int | str) and value != "":
            flags.read(reading, [f"--{key.replace('_', '-')}", str(value)], lines, bridge=False)
    reading.kind = "plan"
    return reading
