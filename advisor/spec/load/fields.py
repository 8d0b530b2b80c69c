"""Reads a mapping field by field and collects every problem, so that a user sees all of them at once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from advisor.documents import read_text, read_yaml
from advisor.errors import InputError

MAX_FILE_BYTES = 1 << 20
_SHOWN = 60


def shown(value: object) -> str:
    """A value as it may stand in a message: quoted, one line, never long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def closest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Up to `count` names that resemble `name`, best first."""
    pool = list(names)
    by_lower = {one.lower(): one for one in pool}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=count, cutoff=0.5)
    return [by_lower[one] for one in found]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Hint with the closest names, or with all of them where they are few, or an empty string."""
    pool = list(names)
    found = closest(name, pool)
    if found:
        return "did you mean " + " or ".join(found) + "?"
    return "known: " + ", ".join(pool) if len(pool) <= 20 else ""


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Contents of a YAML file whose top level is a mapping with text keys.

    Raises InputError for a directory, a missing, huge or unreadable file, text that is not UTF-8, YAML that does not
    parse or grows beyond bounds by its aliases, and any other top level. Only plain values are built.
    """
    loaded = read_yaml(str(path), read_text(path, MAX_FILE_BYTES, "YAML description"))
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds {type(loaded).__name__}, a mapping of keys to values is needed")
    return {str(key): value for key, value in loaded.items()}


class Fields:
    """One mapping being read. Each getter returns a usable value even after a problem; `finish` raises them all."""

    def __init__(self, values: Mapping[str, Any], where: str, problems: list[str] | None = None) -> None:
        self.values = dict(values)
        self.where = where
        self.problems: list[str] = [] if problems is None else problems
        self._known: list[str] = []

    def _report(self, key: str, value: object, rule: str) -> None:
        self.problems.append(f"{self.where}{key}: {shown(value)} {rule}")

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        self._known.append(key)
        return self.values.get(key) is not None

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number within [low, high]; without `default` the key is required."""
        if not self.has(key):
            if default is None:
                self.problems.append(f"{self.where}{key} is missing (a number from {low:g} to {high:g})")
                return low
            return default
        raw = self.values[key]
        value = _as_float(raw)
        if value is None:
            self._report(key, raw, "is not a number")
        elif not math.isfinite(value) or not low <= value <= high:
            self._report(key, raw, f"is outside {low:g} to {high:g}")
        else:
            return value
        return low

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """As `number`, but None where the key is absent or null."""
        return self.number(key, low, high) if self.has(key) else None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number within [low, high]."""
        value = self.number(key, low, high, None if default is None else float(default))
        if value != int(value):
            self._report(key, self.values[key], "is not a whole number")
        return int(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; numbers are taken as written."""
        if not self.has(key):
            if default is None:
                self.problems.append(f"{self.where}{key} is missing (a text)")
            return default or ""
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._report(key, value, "is not a text")
            return default or ""
        return str(value)

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """One of the given texts."""
        value = self.text(key, default)
        if value in choices:
            return value
        self._report(key, value, f"is not one of {', '.join(choices)}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; a single text is a list of one."""
        if not self.has(key):
            return ()
        value = self.values[key]
        items = value if isinstance(value, list) else [value]
        if any(not isinstance(item, str | int | float) for item in items):
            self._report(key, value, "is not a list of texts")
            return ()
        return tuple(str(item) for item in items)

    def mapping(self, key: str, required: bool = True) -> Fields:
        """A nested mapping, read with the same list of problems."""
        value = self.values.get(key) if self.has(key) else None
        if value is None and required:
            self.problems.append(f"{self.where}{key} is missing (a mapping)")
        elif value is not None and not isinstance(value, dict):
            self._report(key, value, "is not a mapping")
        inner = {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
        return Fields(inner, f"{self.where}{key}.", self.problems)

    def ignore(self, *keys: str) -> None:
        """Names keys that are allowed and carry nothing the planner reads."""
        self._known.extend(keys)

    def refuse_unknown(self) -> None:
        """Notes every key that no getter asked for, with the nearest known one."""
        for key in self.values:
            if key not in self._known:
                hint = did_you_mean(key, dict.fromkeys(self._known))
                self.problems.append(
                    f"{self.where}{shown(key)[1:-1]} is not a known key" + (f"; {hint}" if hint else "")
                )

    def finish(self, subject: str, hint: str | None = None) -> None:
        """Raises InputError with every problem found, if there is one."""
        if self.problems:
            count = len(self.problems)
            head = f"{subject} has {count} problem{'s' if count > 1 else ''}"
            raise InputError(f"{head}: " + "; ".join(self.problems), hint)


def _as_float(value: object) -> float | None:
    """A number, also one that YAML 1.1 takes for text (1e3)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None if isinstance(value, str) else math.inf
