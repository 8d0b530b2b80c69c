"""Reads values out of a model configuration and keeps every problem found, so that they are reported at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from advisor.errors import InputError, UnsupportedModelError

MOST = 2**24
MOST_LAYERS = 4096


class Config:
    """A Hugging Face style mapping seen through typed getters.

    A getter never raises: it notes the problem and returns a harmless stand-in, so one pass over a file finds all that
    is wrong with it. `finish` raises what was noted. `where` is the file or preset name that messages carry.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.missing: list[str] = []
        self.broken: list[str] = []

    def has(self, key: str) -> bool:
        """Whether `key` is there and not null."""
        return self.values.get(key) is not None

    def size(self, *keys: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """The first of `keys` that is there, as an integer between `least` and `most`; `default` when none is.

        A list of one repeated value (one entry per layer, as Hunyuan writes it) counts as that value.
        """
        for key in keys:
            if self.has(key):
                value = self.values[key]
                if isinstance(value, list) and value and all(item == value[0] for item in value):
                    value = value[0]
                return self._integer(key, value, least, most)
        if default is not None:
            return default
        self.missing.append(" or ".join(f"'{key}'" for key in keys))
        return least

    def optional_size(self, key: str) -> int | None:
        """`key` as a positive integer, or None when it is absent, null or 0."""
        value = self.size(key, default=0, least=0)
        return value or None

    def flag(self, *keys: str, default: bool) -> bool:
        """The first of `keys` that is there, as true or false."""
        for key in keys:
            if self.has(key):
                value = self.values[key]
                if isinstance(value, bool):
                    return value
                self.broken.append(f"'{key}' must be true or false, not {short(value)}")
                return default
        return default

    def text(self, *keys: str, default: str) -> str:
        """The first of `keys` that is there, as a string."""
        for key in keys:
            if self.has(key):
                value = self.values[key]
                if isinstance(value, str):
                    return value
                self.broken.append(f"'{key}' must be a string, not {short(value)}")
                return default
        return default

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """`key` as one of `choices`."""
        value = self.text(key, default=default)
        if value not in choices:
            self.broken.append(f"'{key}' is {short(value)}; known are {', '.join(choices)}")
            return default
        return value

    def sizes(self, key: str, least: int = 0, most: int = MOST) -> tuple[int, ...] | None:
        """`key` as a list of integers (or a comma-separated string of them), None when absent."""
        if not self.has(key):
            return None
        value = self.values[key]
        if isinstance(value, str):
            value = [int(part) if part.strip().isdecimal() else part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            self.broken.append(f"'{key}' must be a list of integers, not {short(value)}")
            return None
        return tuple(self._integer(key, item, least, most) for item in value)

    def lines(self, key: str) -> tuple[str, ...]:
        """`key` as free text: a string or a list of strings; nothing else is worth a complaint."""
        value = self.values.get(key, ())
        value = [value] if isinstance(value, str) else value
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()

    def names(self, key: str) -> tuple[str, ...] | None:
        """`key` as a list of strings, None when absent."""
        if not self.has(key):
            return None
        value = self.values[key]
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self.broken.append(f"'{key}' must be a list of strings, not {short(value)}")
            return None
        return tuple(value)

    def nested(self, key: str) -> Config:
        """The mapping under `key` as a configuration that reports into this one; empty when absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.broken.append(f"'{key}' must be a mapping, not {short(value)}")
            value = None
        inner = Config(value or {}, f"{self.where}:{key}")
        inner.missing, inner.broken = self.missing, self.broken
        return inner

    def problem(self, sentence: str) -> None:
        """Note something wrong that no getter can see."""
        self.broken.append(sentence)

    def finish(self) -> None:
        """Raise what was noted: UnsupportedModelError when a key is missing, InputError when a value is wrong."""
        sentences = [f"missing key {key}" for key in dict.fromkeys(self.missing)] + list(dict.fromkeys(self.broken))
        if not sentences:
            return
        listing = "; ".join(sentences)
        model_type = self.values.get("model_type")
        if self.missing:
            raise UnsupportedModelError(
                f"{self.where}: cannot count a model of type {short(model_type)}: {listing}",
                hint="add the key as Hugging Face names it, or start from a preset (advisor models list)",
            )
        raise InputError(f"{self.where}: {listing}", hint="correct the value in the file")

    def _integer(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.broken.append(f"'{key}' must be an integer, not {short(value)}")
            return max(least, 1)
        if not least <= value <= most:
            self.broken.append(f"'{key}' is {short(value)}; it must lie between {least} and {most}")
            return max(least, 1)
        return value


def short(value: object) -> str:
    """A value as messages show it: at most 40 characters, even of an integer too long for Python to print."""
    try:
        text = repr(value)
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."
