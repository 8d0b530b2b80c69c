"""What a rule over layouts says without the numbers of a row: its sentence and its fix, out of presets."""

from __future__ import annotations

from functools import lru_cache

import yaml

from advisor import data


@lru_cache(maxsize=1)
def _texts() -> dict[str, tuple[str, str]]:
    text = data.require("presets", "check/layout_rules.yaml").read_text(encoding="utf-8")
    return {id: (says, fix) for id, (says, fix) in yaml.safe_load(text)["rules"].items()}


def layout_text(id: str) -> tuple[str, str]:
    """Sentence and fix of a rule that is asked of layouts alone, or of a configuration as one of them.

    KeyError for an id that the preset lacks, EnvironmentMissingError where the package lacks the preset.
    """
    return _texts()[id]
