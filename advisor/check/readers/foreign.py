"""Configurations of other programs, told by their keys (presets/check/foreign.yaml)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from advisor.check.recipes import preset
from advisor.documents import read_yaml
from advisor.errors import InputError

_OURS = "not of Megatron-Bridge or Megatron-LM"


@lru_cache(maxsize=1)
def _programs() -> tuple[Mapping[str, Any], ...]:
    return tuple(read_yaml("foreign.yaml", preset("check/foreign.yaml"))["programs"])


def refuse_foreign(path: str, keys: Iterable[str]) -> None:
    """Raises InputError where the keys are those of another program's configuration."""
    known = set(keys)
    for one in _programs():
        if known & set(one.get("alone", ())) or len(known & set(one.get("pairs", ()))) >= 2:
            raise InputError(f"{path!r} is a configuration of {one['name']}, {_OURS}", hint=one.get("hint"))


def refuse_toml(path: str, text: str) -> None:
    """Raises InputError for a TOML text: neither framework reads any."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path!r} is not valid TOML: {str(error)[:160]}") from None
    refuse_foreign(path, found)
    raise InputError(f"{path!r} is TOML, which neither Megatron-Bridge nor Megatron-LM reads")
