"""The same values as a YAML file: what Megatron-Bridge merges with --config-file, and what people diff."""

from __future__ import annotations

from typing import Any

import yaml

from advisor.export.bridge_values import sections
from advisor.export.overrides import overlap_object, precision_object
from advisor.export.subject import Subject
from advisor.export.words import comment, plain


def yaml_text(subject: Subject) -> dict[str, str]:
    """One file with Bridge's sections as nested mappings, and the environment as a comment."""
    tree: dict[str, Any] = {}
    for _, values in sections(subject):
        for path, value in values:
            section, _, name = path.partition(".")
            tree.setdefault(section, {})[name] = plain(value)
    tree["mixed_precision"] = plain(precision_object(subject))
    tree["comm_overlap"] = plain(overlap_object(subject))
    head = [comment(subject.title), f"Megatron-Bridge {subject.version}; from {comment(subject.origin)}"]
    if tree["comm_overlap"]["tp_comm_overlap_cfg"] is not None:
        # A mapping would be merged into the user buffers of the recipe, GEMM by GEMM; a reference replaces them.
        tree["user_buffers"] = tree["comm_overlap"]["tp_comm_overlap_cfg"]
        tree["comm_overlap"]["tp_comm_overlap_cfg"] = "${user_buffers}"
        head.append("user_buffers is no section of Bridge, which says that it skips it: comm_overlap refers to it")
    head += [
        "environment of every rank:",
        *(f"  {one.name}={one.value}" for one in subject.environment),
    ]
    return {"bridge_config.yaml": "".join(f"# {line}\n" for line in head) + yaml.safe_dump(tree, sort_keys=False)}
