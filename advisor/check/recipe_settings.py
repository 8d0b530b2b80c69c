"""What Bridge's recipes of our models set, release by release (presets/check/bridge_recipe_settings.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from advisor.check.recipes import preset


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(preset("check/bridge_recipe_settings.json"))[
        "versions"
    ]
    return found


@lru_cache(maxsize=64)
def recipe_settings(name: str, version: str) -> Mapping[str, Any]:
    """Settings by dotted key that the recipe of that function name holds in a release of Bridge; {} for one unknown."""
    table = _tables().get(version, {"usual": {}, "recipes": {}})
    if name not in table["recipes"]:
        return {}
    return {**table["usual"], **table["recipes"][name]}
