"""The sentences of `presets/check/readback.yaml`, compiled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from advisor.check.recipes import preset
from advisor.errors import EnvironmentMissingError
from advisor.logs.gate import Gate, shape_of


@dataclass(frozen=True, slots=True)
class Wording:
    """A kind of line: any of `text` is in it and `regex` matches; the rest says what it means."""

    id: str
    framework: str
    text: tuple[str, ...]
    regex: re.Pattern[str] | None
    holds: Mapping[str, Any]
    dropped: bool
    tells: str
    unit_bytes: float
    per_s: float
    example: str
    source: str

    def match(self, rest: str) -> Mapping[str, str] | None:
        """Named parts of a line without its tags; None where the line is of another kind."""
        if not any(text in rest for text in self.text):
            return None
        if self.regex is None:
            return {}
        found = self.regex.search(rest)
        return None if found is None else {name: value for name, value in found.groupdict().items() if value}


@dataclass(frozen=True, slots=True)
class Wordings:
    """All sentences, names of other programs by what they print, how far a measured peak may be off, what is shown.

    `told` are arguments that only one release of megatron-core has, with that release.
    """

    all: tuple[Wording, ...]
    others: tuple[tuple[str, str], ...]
    memory_share: float
    memory_source: str
    shown: tuple[str, ...]
    gate: Gate
    told: Mapping[str, str]

    def confirm(self, line: str, marks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of `marks` whose words are in the line."""
        return tuple(mark for mark in marks if any(text in line for text in self._texts(mark)))

    def other(self, marks: Sequence[int]) -> str | None:
        """The other program that printed the line, if any."""
        beyond = [mark - len(self.all) for mark in marks if mark >= len(self.all)]
        return self.others[beyond[0]][0] if beyond else None

    def id_of(self, mark: int) -> str:
        """Id of the sentence behind a mark; "" for what another program prints."""
        return self.all[mark].id if mark < len(self.all) else ""

    def by_id(self, name: str) -> Wording:
        """The sentence of that id."""
        return next(one for one in self.all if one.id == name)

    def _texts(self, mark: int) -> tuple[str, ...]:
        return self.all[mark].text if mark < len(self.all) else (self.others[mark - len(self.all)][1],)


@lru_cache(maxsize=1)
def wordings() -> Wordings:
    """The table. EnvironmentMissingError where it is missing or malformed."""
    try:
        table = yaml.safe_load(preset("check/readback.yaml"))
        found = tuple(_wording(row) for row in table["messages"])
        others = tuple((name, text) for name, texts in table["others"]["names"].items() for text in texts)
        texts = [*((index, text) for index, one in enumerate(found) for text in one.text),
                 *((len(found) + index, text) for index, (_, text) in enumerate(others))]  # fmt: skip
        gate = Gate([(mark, shape_of(text.encode())) for mark, text in texts])
        return Wordings(
            found, others, float(table["memory"]["share"]), str(table["memory"]["source"]), tuple(table["shown"]), gate,
            {name: version for version, names in table["versions"]["arguments"].items() for name in names},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, re.error, yaml.YAMLError) as problem:
        raise EnvironmentMissingError(f"presets/check/readback.yaml is malformed: {problem!r}") from problem


def _wording(row: Mapping[str, Any]) -> Wording:
    return Wording(
        row["id"], row["framework"], tuple(row["text"]), re.compile(row["regex"]) if "regex" in row else None,
        row.get("holds", {}), row.get("dropped", False), row.get("tells", ""), float(row.get("unit_bytes", 0)),
        float(row.get("per_s", 1)),
        row["example"], row["source"],
    )  # fmt: skip


@lru_cache(maxsize=1)
def core_defaults() -> Mapping[str, Any]:
    """Defaults of Megatron-Core's configuration classes: what a summary of differences leaves out."""
    found: Mapping[str, Any] = json.loads(preset("check/core_defaults.json"))["defaults"]
    return found
