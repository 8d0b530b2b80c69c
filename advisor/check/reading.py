"""What a reader found in one file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from advisor.rules.lint import Value
from advisor.rules.lint.setup import Framework
from advisor.spec.plan import Severity

Kind = Literal[
    "bridge-python", "bridge-overrides", "bridge-config", "megatron-args", "megatron-yaml", "sbatch", "shell",
    "environment", "layout", "plan",
]  # fmt: skip
SECTIONS = (
    "model", "train", "optimizer", "ddp", "scheduler", "dataset", "logger", "tokenizer", "checkpoint", "dist", "rng",
    "validation", "ft", "straggler", "nvrx_straggler", "profiling", "peft", "comm_overlap", "mixed_precision",
    "tensor_inspect", "inprocess_restart", "rerun_state_machine",
)  # fmt: skip
"""Sections of a Megatron-Bridge ConfigContainer."""
_NOT_A_WORD = re.compile(r"[\[\]{}*&!|>%@`#]")
_LONGEST_VALUE = 10_000
_COLON = re.compile(r"('(?:[^'\\]|\\.)*'|[\w.]+):(?=\S)")


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader itself has to report."""

    rule: str
    severity: Severity
    message: str
    fix: str = ""
    line: int = 0


@dataclass(slots=True)
class Reading:
    """Settings under the keys of a Bridge configuration, the environment, and facts beyond settings, of one file."""

    file: str
    kind: Kind
    framework: Framework | None = None
    values: dict[str, Value] = field(default_factory=dict)
    env: dict[str, Value] = field(default_factory=dict)
    facts: dict[str, Value] = field(default_factory=dict)
    packages: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    gpus: int | None = None
    system: str | None = None
    recipe: str | None = None
    launches: bool = False

    def put(self, key: str, value: Any, line: int = 0) -> None:
        """State a setting; a later statement wins."""
        self.values[key] = Value(value, self.file, line)

    def know(self, name: str, value: Any = True, line: int = 0) -> None:
        """Note a fact."""
        self.facts[name] = Value(value, self.file, line)

    def note(self, rule: str, severity: Severity, message: str, fix: str = "", line: int = 0) -> None:
        """Report something without a rule over settings."""
        self.notes.append(Note(rule, severity, message, fix, line))

    @property
    def empty(self) -> bool:
        """Whether nothing at all was understood."""
        return not (self.values or self.env or self.facts or self.notes or self.recipe or self.gpus)


def scalar(text: str) -> Any:
    """The value that an override writes: numbers, booleans, null, lists; text as it stands otherwise."""
    text = text.strip()
    if len(text) > _LONGEST_VALUE or text in ("None", "null", "~", ""):
        return None if len(text) < 10 else text
    if text in ("True", "False"):
        return text == "True"
    if (_NOT_A_WORD.search(text) and not text.startswith(("[", "{"))) or "*" in text or "&" in text:
        return text.strip("'\"")
    try:
        # Hydra takes a mapping without the blanks that YAML wants behind its colons.
        value = yaml.safe_load(re.sub(_COLON, r"\1: ", text) if text.startswith("{") else text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text.strip("'\"")
    if isinstance(value, str):
        return number(value)
    return [None if item == "None" else item for item in value] if isinstance(value, list) else value


def number(text: str) -> Any:
    """A number that YAML takes for text (1e-4, 1_000), else the text."""
    try:
        return int(text) if re.fullmatch(r"[+-]?\d[\d_]*", text) else float(text)
    except ValueError:
        return text


_PACKAGES = {
    "transformer-engine": "te", "transformer_engine": "te", "te": "te", "torch": "torch", "pytorch": "torch",
    "nccl": "nccl", "megatron-core": "mcore", "megatron_core": "mcore", "megatron-bridge": "bridge",
    "nvidia-resiliency-ext": "nvrx", "deepep": "deepep", "deep_ep": "deepep",
}  # fmt: skip
_NAMES = (
    "transformer[-_ ]engine|megatron[-_]core|megatron[-_]bridge|nvidia[-_]resiliency[-_]ext|deep_?ep|pytorch|torch"
    "|nccl|te"
)
_MISSING = re.compile(
    rf"\b({_NAMES})\b[^.;,\n]{{0,40}}\b(?:not installed|not available|missing|absent|unavailable)", re.I
)
_MISSING_BEFORE = re.compile(rf"\b(?:no|without)\s+({_NAMES})\b", re.I)
_VERSION = re.compile(rf"\b({_NAMES})\b\s*(?:version\s*|v|==|>=|=|:)?\s*(\d+\.\d+(?:\.\d+)?)", re.I)
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{3,})=(\S+)")


def comments(reading: Reading, text: str) -> None:
    """Facts that people write into comments: `# environment: transformer-engine is not installed`, `# torch 2.5.1`."""
    for at, row in enumerate(text.splitlines(), 1):
        mark, remark = row.partition("#")[::2]
        if not remark or remark.startswith(("!", "SBATCH")) or mark.count('"') % 2:
            continue
        for found in (*_MISSING.finditer(remark), *_MISSING_BEFORE.finditer(remark)):
            reading.packages[_package(found[1])] = None
        for found in _VERSION.finditer(remark):
            reading.packages.setdefault(_package(found[1]), tuple(map(int, found[2].split("."))))
        if re.match(r"\s*env(ironment)?\b", remark, re.I):
            for found in _VARIABLE.finditer(remark):
                reading.env.setdefault(found[1], Value(found[2].strip("'\",;"), reading.file, at))
            for found in re.finditer(r"\b([A-Z][A-Z0-9_]{3,})\s+(?:is\s+)?(?:unset|not set)", remark):
                reading.env.setdefault(found[1], Value(None, reading.file, at))


def _package(name: str) -> str:
    return _PACKAGES.get(name.lower().replace(" ", "-"), name.lower())
