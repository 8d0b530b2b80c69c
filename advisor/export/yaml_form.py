"""The same values as a YAML file: what Megatron-Bridge merges with --config-file, and what people diff."""

from __future__ import annotations

from typing import Any

import yaml

from advisor.export.bridge_values import precision, sections
from advisor.export.overrides import overlap_object
from advisor.export.subject import Subject
from advisor.export.words import comment, plain


def yaml_text(subject: Subject) -> dict[str, str]:
    """One file with Bridge's sections as nested mappings, and the environment as a comment."""
    tree: dict[str, Any] = {}
    for _, values in sections(subject):
        for path, value in values:
            section, _, name = path.partition(".")
            tree.setdefault(section, {})[name] = plain(value)
    recipe, changed = precision(subject)
    tree["mixed_precision"] = {field: plain(value) for field, value in changed} if changed else recipe
    tree["comm_overlap"] = plain(overlap_object(subject))
    head = [
        comment(subject.title),
        f"Megatron-Bridge {subject.version}; from {comment(subject.origin)}",
        "environment of every rank:",
        *(f"  {one.name}={one.value}" for one in subject.environment),
    ]
    return {"bridge_config.yaml": "".join(f"# {line}\n" for line in head) + yaml.safe_dump(tree, sort_keys=False)}
