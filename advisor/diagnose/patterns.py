"""The patterns, causes, frames and Xid numbers of `presets/diagnose`, compiled."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from advisor import data
from advisor.errors import InputError
from advisor.logs.gate import Gate, shape_of

Role = Literal["root", "error", "symptom", "teardown", "fact", "context"]
Confidence = Literal["high", "medium", "low"]

SAID_ONCE: frozenset[Role] = frozenset({"root", "error", "symptom", "teardown"})
UNDETERMINED = "undetermined"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of line: `text` (any of) must be in it, `regex` must match, none of `without` may be in it."""

    index: int
    id: str
    role: Role
    cause: str
    text: tuple[str, ...]
    regex: re.Pattern[str] | None
    without: tuple[str, ...]
    recoverable: bool
    confidence: Confidence
    example: str
    source: str

    def may_match(self, line: str) -> bool:
        """Whether the words of the line allow it."""
        return any(text in line for text in self.text) and not any(text in line for text in self.without)

    def match(self, line: str, rest: str) -> Mapping[str, str] | None:
        """Named parts of the line, or None where the line is of another kind; `rest` is the line without tags."""
        if not self.may_match(line):
            return None
        if self.regex is None:
            return {}
        found = self.regex.search(rest) or self.regex.search(line)
        return None if found is None else {name: value for name, value in found.groupdict().items() if value}


@dataclass(frozen=True, slots=True)
class Cause:
    """What a cause id means and what to do; `exit_code` is what a process that dies of it returns, if that is known."""

    id: str
    title: str
    fix: str
    next_step: str
    not_to_blame: tuple[str, ...]
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class FrameRule:
    """A frame of a traceback that decides the cause; None = any."""

    cause: str
    path: re.Pattern[str] | None
    function: re.Pattern[str] | None

    def fits(self, path: str, function: str) -> bool:
        """Whether the frame is one of this kind."""
        return (self.path is None or self.path.search(path) is not None) and (
            self.function is None or self.function.fullmatch(function) is not None
        )


@dataclass(frozen=True, slots=True)
class Xid:
    """Kind (hardware, fabric, application, teardown, notice) and name of an Xid number."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All tables."""

    patterns: tuple[Pattern, ...]
    causes: Mapping[str, Cause]
    frames: tuple[FrameRule, ...]
    phases: Mapping[str, str]
    xids: Mapping[int, Xid]
    gate: Gate

    def confirm(self, line: str, marks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of `marks` that the words of the line allow."""
        return tuple(mark for mark in marks if self.patterns[mark].may_match(line))

    def named(self, *names: str) -> frozenset[int]:
        """Indices of patterns by id."""
        return frozenset(pattern.index for pattern in self.patterns if pattern.id in names)


@functools.cache
def knowledge() -> Knowledge:
    """The tables of `presets/diagnose`. Raises InputError where one of them is missing or malformed."""
    patterns = _read("patterns.yaml")
    causes = _read("causes.yaml")
    xids = _read("xid.yaml")
    try:
        compiled = tuple(_patterns(patterns["groups"]))
        return Knowledge(
            compiled,
            {name: _cause(name, row) for name, row in causes["causes"].items()},
            tuple(FrameRule(row["cause"], _regex(row, "path"), _regex(row, "function")) for row in causes["frames"]),
            causes["phases"],
            {int(number): Xid(row["kind"], row["name"]) for number, row in xids["numbers"].items()},
            Gate([(one.index, shape_of(text.encode())) for one in compiled for text in one.text]),
        )
    except (KeyError, TypeError, ValueError, re.error) as problem:
        raise InputError(f"presets/diagnose: {type(problem).__name__}: {problem}") from problem


def _read(name: str) -> Any:
    path = data.require("presets", f"diagnose/{name}")
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _patterns(groups: Iterable[Mapping[str, Any]]) -> Iterable[Pattern]:
    index = 0
    for group in groups:
        for row in group["patterns"]:
            yield Pattern(
                index, row["id"], row["role"], row.get("cause", ""), tuple(row["text"]), _regex(row, "regex"),
                tuple(row.get("not", ())), row.get("recoverable", False), row.get("confidence", "high"),
                row["example"], group["source"],
            )  # fmt: skip
            index += 1


def _regex(row: Mapping[str, Any], name: str) -> re.Pattern[str] | None:
    return re.compile(row[name]) if name in row else None


def _cause(name: str, row: Mapping[str, Any]) -> Cause:
    return Cause(name, row["title"], row["fix"], row["next_step"], tuple(row["not_to_blame"]), row["exit_code"])
