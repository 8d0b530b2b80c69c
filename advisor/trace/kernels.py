"""What a kernel is, which collective it runs, which parallelism a group serves: by the tables of presets/trace."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from advisor import data
from advisor.errors import InputError
from advisor.trace.events import Group, Sort

Role = Literal["compute", "communication", "memory"]

KINDS = ("tp", "cp", "pp", "dp", "edp", "ep", "world", "other")
UNKNOWN_CLASS = "unknown"


@dataclass(frozen=True, slots=True)
class KernelRule:
    """A class of kernels; `kind` is what it serves where the trace names no group, None when that is open."""

    name: str
    role: Role
    pattern: re.Pattern[str]
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective; `synchronising` ones end on all ranks at once."""

    name: str
    pattern: re.Pattern[str]
    synchronising: bool


UNKNOWN = KernelRule(UNKNOWN_CLASS, "compute", re.compile(""))
BY_SORT = {Sort.memcpy: "memcpy", Sort.memset: "memset"}


def table(name: str) -> dict[str, Any]:
    """presets/trace/<name>.yaml.

    Raises:
        EnvironmentMissingError: the file is not installed.
        InputError: an own copy of it is no YAML mapping.
    """
    import yaml

    path = data.require("presets", f"trace/{name}.yaml")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise InputError(f"{path}: {' '.join(str(problem).split())}") from problem
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a mapping")
    return found


def _pattern(text: object, where: str) -> re.Pattern[str]:
    try:
        return re.compile(str(text), re.IGNORECASE)
    except re.error as problem:
        raise InputError(f"presets/trace/{where}: pattern {text!r}: {problem}") from problem


@cache
def kernel_rules() -> tuple[KernelRule, ...]:
    """The rules of kernels.yaml in their order."""
    return tuple(
        KernelRule(rule["class"], rule["role"], _pattern(rule["pattern"], "kernels.yaml"), rule.get("kind"))
        for rule in table("kernels")["rules"]
    )


@cache
def collectives() -> tuple[Collective, ...]:
    """The collectives of kernels.yaml in their order."""
    return tuple(
        Collective(entry["name"], _pattern(entry["pattern"], "kernels.yaml"), entry["synchronising"])
        for entry in table("kernels")["collectives"]
    )


@cache
def _group_rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((entry["kind"], _pattern(entry["pattern"], "groups.yaml")) for entry in table("groups")["groups"])


@cache
def step_patterns() -> tuple[re.Pattern[str], ...]:
    """Names of step ranges in nsys exports, the most certain first."""
    return tuple(_pattern(entry["pattern"], "steps.yaml") for entry in table("steps")["steps"])


@lru_cache(maxsize=1 << 16)
def classify(name: str, sort: Sort = Sort.kernel) -> KernelRule:
    """The rule of a device event; copies that no rule of communication claims go by their category."""
    for rule in kernel_rules():
        if rule.pattern.search(name) and (sort is Sort.kernel or rule.role != "compute"):
            return rule
    if sort in BY_SORT:
        return next(rule for rule in kernel_rules() if rule.name == BY_SORT[sort])
    return UNKNOWN


def collective_of(*names: str) -> Collective | None:
    """The collective that the first telling name tells."""
    for name in names:
        for entry in collectives():
            if entry.pattern.search(name):
                return entry
    return None


def kind_of(group: Group) -> str | None:
    """The kind of a process group by its description, else by its name; None when neither says."""
    for text in (group.description, group.name):
        for kind, pattern in _group_rules():
            if text and pattern.search(text):
                return kind
    return None


def kinds_present(groups: Iterable[Group], rank: int | None) -> set[str]:
    """Kinds of all groups with more than one member that this rank is in."""
    mine = (group for group in groups if len(group.ranks) > 1 and (rank is None or rank in group.ranks))
    return {kind for group in mine if (kind := kind_of(group)) is not None}


def only_kind(kinds: set[str]) -> str | None:
    """The one kind that traffic of an unnamed group can be, None when several can.

    The group of all ranks and groups of other use are there in every job and say nothing beside another; Megatron makes
    expert groups in dense jobs too (of the same ranks), so that they count only where no dense kind is left.
    """
    special = kinds - {"world", "other"}
    left = special - {"ep", "edp"} or special or kinds - {"other"}
    return next(iter(left)) if len(left) == 1 else None
