"""Megatron-LM arguments from any form people keep them in: a mapping, a text of flags, a launch script.

The names, kinds, choices and defaults of all flags are a table (presets/launch/megatron_arguments.json), generated from
Megatron's own argument parser. Values are typed here; what they mean is decided by the modules beside.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor import data
from advisor.documents import read_text, read_yaml
from advisor.errors import InputError
from advisor.spec.load.megatron.shell import Script, read_script
from advisor.spec.plan import Finding

TABLE = "launch/megatron_arguments.json"
_LARGEST_FILE_BYTES = 4 << 20
_LARGEST_COUNT = 10**12
_VARIABLE = re.compile(r"\$(\w+|[@*#?]|\{[^}]*\})")
_RECIPE_KEYS = ("MODEL_ARGS", "ENV_VARS")
# Keys of TransformerConfig and older spellings that people put into mappings, and the flag that says the same.
_ALSO_KNOWN_AS = {
    "num-moe-experts": "num-experts",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "fp8-param": "fp8-param-gather",
    "use-custom-fsdp": "use-megatron-fsdp",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `kind` is on, off, bool, int, float or str; `values` 1 (0 for switches), a count, or "many"."""

    name: str
    dest: str
    kind: str
    values: int | str
    choices: tuple[Any, ...]
    default: Any


@lru_cache(maxsize=1)
def flags() -> Mapping[str, Flag]:
    """All flags of Megatron-LM by name (dashes, no leading ones)."""
    rows = json.loads(data.require("presets", TABLE).read_text(encoding="utf-8"))["flags"]
    found = {}
    for name, row in rows.items():
        kind = row["kind"]
        values = row.get("values", 0 if kind in ("on", "off") else 1)
        default = {"on": False, "off": True}.get(kind, row.get("default"))
        dest = row.get("dest", name.replace("-", "_"))
        found[name] = Flag(name, dest, kind, values, tuple(row.get("choices", ())), default)
    return found


@lru_cache(maxsize=1)
def by_dest() -> Mapping[str, Flag]:
    """One flag of every destination name; the one that switches on where there are two."""
    return {flag.dest: flag for flag in sorted(flags().values(), key=lambda flag: flag.kind == "on")}


@dataclass(slots=True)
class Arguments:
    """Values by destination name as Megatron's parser would hold them, and what was noticed on the way.

    `read` marks the names some module has asked for; the rest has no effect on memory or time. `wrong` says what is
    wrong with a value by name: a problem if the name is read, else only a finding (choices differ between versions).
    """

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None
    read: set[str] = field(default_factory=set)
    wrong: dict[str, str] = field(default_factory=dict)

    def get(self, dest: str) -> Any:
        """The value given, else Megatron's default."""
        self.read.add(dest)
        return self.values[dest] if dest in self.values else by_dest()[dest].default

    def given(self, dest: str) -> bool:
        """Whether the value was stated."""
        self.read.add(dest)
        return dest in self.values

    def switch(self, dest: str) -> bool:
        """A switch as a bool."""
        return bool(self.get(dest))

    def count(self, dest: str, low: int = 1, fallback: int | None = None) -> int:
        """A whole number >= `low`; a problem is noted and `fallback` (or `low`) goes on where it is not."""
        value = self.get(dest)
        if value is None:
            if fallback is None and dest not in self.wrong:
                self.problem(dest, "is not stated and has no default")
            return low if fallback is None else fallback
        if not low <= value <= _LARGEST_COUNT:
            self.problem(dest, f"is {value}; it must be {low} or more")
            return max(low, min(int(value), _LARGEST_COUNT))
        return int(value)

    def problem(self, dest: str, text: str) -> None:
        """Note that the value of `dest` cannot be used."""
        self.problems.append(f"--{by_dest()[dest].name} {text}")

    def warn(self, rule: str, message: str, fix: str = "") -> None:
        """Add a finding that does not stop the reading."""
        self.findings.append(Finding(f"megatron-args.{rule}", "info", message, fix))

    def judge(self) -> list[str]:
        """All problems, once everything that matters has been read; values nobody needs only leave a finding."""
        for dest, text in self.wrong.items():
            if dest in self.read:
                self.problems.append(text)
            else:
                self.warn("value", text, "without effect on memory and time")
        return list(dict.fromkeys(self.problems))

    def unread(self) -> tuple[str, ...]:
        """Flags given that nothing asked for."""
        return tuple(sorted(f"--{by_dest()[dest].name}" for dest in self.values if dest not in self.read))

    def put(self, flag: Flag, given: Sequence[Any]) -> None:
        """Store the words (or values) given to `flag`, typed, or note what is wrong with them."""
        if flag.kind in ("on", "off"):
            self.values[flag.dest] = flag.kind == "on"
            return
        if not given:
            self.wrong[flag.dest] = f"--{flag.name} has no value"
            return
        if isinstance(flag.values, int) and flag.values > 1 and len(given) != flag.values:
            self.wrong[flag.dest] = f"--{flag.name} takes {flag.values} values, {len(given)} are given"
        typed = []
        for value in given:
            try:
                typed.append(_typed(flag, value))
            except ValueError as error:
                self.wrong[flag.dest] = f"--{flag.name} is {_shown(value)}: {error}"
        if typed:
            self.values[flag.dest] = typed[0] if flag.values == 1 else typed


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _typed(flag: Flag, value: Any) -> Any:
    """`value` as the kind of `flag`. ValueError says what it should be."""
    text = str(value).strip()
    if flag.kind == "str":
        if flag.choices and text not in [str(choice) for choice in flag.choices]:
            close = get_close_matches(text, [str(choice) for choice in flag.choices], 1, 0.5)
            raise ValueError("one of " + ", ".join(map(str, flag.choices)) + (f"; {close[0]}?" if close else ""))
        return text
    if re.search(r"\$[\w{(]", text):
        raise ValueError("the script does not define this variable; give it a value")
    if flag.kind == "bool":
        if text.lower() in ("true", "false", "1", "0"):
            return text.lower() in ("true", "1")
        raise ValueError("true or false is needed")
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    if flag.kind == "int":
        if not re.fullmatch(r"[+-]?\d{1,30}", text):
            raise ValueError("a whole number is needed")
        if flag.choices and int(text) not in flag.choices:
            raise ValueError("one of " + ", ".join(map(str, flag.choices)))
        return int(text)
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number is needed") from None
    if not math.isfinite(number):
        raise ValueError("a finite number is needed")
    return number


def _unknown(arguments: Arguments, name: str) -> None:
    """A flag that Megatron-LM does not have: a finding with the closest match, never silently dropped."""
    close = get_close_matches(name, list(flags()), 1, 0.75)
    fix = f"--{close[0]}?" if close else "check the spelling, or a patch of Megatron that adds it"
    arguments.warn("unknown-flag", f"--{name[:80]} is no flag of Megatron-LM and is left out of the estimate", fix)


def from_words(arguments: Arguments, words: Sequence[str]) -> None:
    """Take over flags and their values from command-line words."""
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if _VARIABLE.fullmatch(word):
            continue  # named by from_script
        if not word.startswith("--") or word == "--":
            arguments.warn("stray-word", f"{_shown(word)} belongs to no flag and is left out")
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        given = [value] if equals else []
        takes = flags()[name].values if name in flags() else "many"
        while at < len(words) and not words[at].startswith("--") and (takes == "many" or len(given) < int(takes)):
            given.append(words[at])
            at += 1
        if name in flags():
            arguments.put(flags()[name], given)
        else:
            _unknown(arguments, name)


def _items(value: Any) -> list[Any]:
    """The words of a mapping's value: lists as they are, "[a b]" and "a b" split by the caller's flag."""
    if isinstance(value, (list, tuple)):
        return list(value)
    text = str(value).strip()
    if text.startswith("[") and text.endswith("]"):
        return [part.strip("'\"") for part in re.split(r"[,\s]+", text[1:-1].strip()) if part]
    return text.split()


def from_mapping(arguments: Arguments, mapping: Mapping[Any, Any]) -> None:
    """Take over a mapping of flags (with or without dashes) or of destination names."""
    for key, value in mapping.items():
        name = str(key).strip().lstrip("-").replace("_", "-")
        name = _ALSO_KNOWN_AS.get(name, name)
        flag = flags().get(name)
        if flag is None and (flag := by_dest().get(name.replace("-", "_"))) is not None and flag.kind == "off":
            flag = Flag(flag.name, flag.dest, "bool", 1, (), flag.default)
        if flag is None:
            if value is not False and value is not None:
                _unknown(arguments, name)
        elif flag.kind in ("on", "off"):
            truth = str(value).strip().lower()
            if truth in ("true", "", "1"):
                arguments.put(flag, ())
            elif truth not in ("false", "none", "null", "0"):
                arguments.wrong[flag.dest] = f"--{flag.name} is {_shown(value)}: true or false is needed"
        elif isinstance(value, Mapping):
            arguments.wrong[flag.dest] = f"--{flag.name} is a mapping: a value is needed"
        elif value is not None:
            many = flag.values == "many" or (isinstance(flag.values, int) and flag.values > 1)
            arguments.put(flag, _items(value) if many else [value])


def _launcher(arguments: Arguments, words: Sequence[str], script: Script) -> None:
    """Number of GPUs from the torchrun line, else from the variables launch scripts use by habit."""
    found = dict.fromkeys(("nnodes", "nproc-per-node"), "")
    for at, word in enumerate(words):
        name, equals, value = word.lstrip("-").replace("_", "-").partition("=")
        if word.startswith("-") and name in found:
            found[name] = value if equals else "".join(words[at + 1 : at + 2])
    if found["nproc-per-node"].isdigit() and (found["nnodes"] or "1").isdigit():
        arguments.gpus = int(found["nproc-per-node"]) * int(found["nnodes"] or "1")
    elif (world := script.variables.get("WORLD_SIZE")) and world[0].isdigit():
        arguments.gpus = int(world[0])


def from_script(arguments: Arguments, text: str) -> None:
    """Take over the flags of the training command of a launch script, or of a plain text of flags."""
    script = read_script(text)
    for name, values in script.variables.items():
        arguments.environment[name] = " ".join(values)
    training = [command for command in script.commands if any(word.endswith(".py") for word in command)]
    training.sort(key=lambda command: sum(word.startswith("--") for word in command))
    if training:
        command = training[-1]
        start = next(at for at, word in enumerate(command) if word.endswith(".py"))
        _launcher(arguments, command[:start], script)
        words = command[start + 1 :]
    else:
        words = [word for command in script.commands if command[0].startswith("--") for word in command]
        if not words:
            words = [w for values in script.variables.values() for v in values for w in v.split()]
    if not any(word.startswith("--") for word in words):
        raise InputError("no Megatron-LM flag found", hint="flags look like --num-layers 32 --hidden-size 4096 ...")
    if script.conditional:
        arguments.warn("condition", "the script has conditions or loops; both branches were read as if they were taken")
    for name in sorted(script.undefined):
        if f"${name}" in words or f"${{{name}}}" in words:
            arguments.warn("undefined", f"${name} is used but not defined in the script; flags inside it are not seen")
    from_words(arguments, words)


def parse(source: str | Path | Mapping[Any, Any]) -> Arguments:
    """Typed arguments of a file (YAML, JSON, flags, shell script) or of a mapping. InputError if there is none."""
    arguments = Arguments()
    if isinstance(source, Mapping):
        mapping: Any = source
    else:
        text = read_text(source, _LARGEST_FILE_BYTES, "file of Megatron-LM arguments")
        mapping = _mapping_in(str(source), text)
        if mapping is None:
            from_script(arguments, text)
            return arguments
    if any(key in mapping for key in _RECIPE_KEYS):
        env = mapping.get("ENV_VARS")
        arguments.environment.update({str(k): str(v) for k, v in env.items()} if isinstance(env, Mapping) else {})
        mapping = mapping.get("MODEL_ARGS") or {}
    if not isinstance(mapping, Mapping) or not mapping:
        raise InputError("no Megatron-LM argument found: a mapping of flags to values is needed")
    from_mapping(arguments, mapping)
    return arguments


def _mapping_in(path: str, text: str) -> Any:
    """The mapping that a YAML or JSON text holds; None where the text is flags or a script."""
    declared = path.lower().endswith((".yaml", ".yml", ".json"))
    if not declared and (re.search(r"(^|\s)--[a-z]", text) or text.startswith("#!")):
        return None
    try:
        found = read_yaml(path, text)
    except InputError:
        if declared:
            raise
        return None
    if isinstance(found, Mapping):
        return found
    if declared:
        raise InputError(f"{path!r} holds no mapping of flags to values")
    return None
