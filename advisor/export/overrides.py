"""KEY=VALUE overrides for Megatron-Bridge's scripts/training/run_recipe.py, in Hydra's grammar, quoted for a shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from advisor.export.bridge import user_buffers
from advisor.export.bridge_values import comm_overlap, precision, sections
from advisor.export.subject import Subject, recipe
from advisor.export.words import fill, hydra

OVERLAP = "megatron.bridge.training.comm_overlap"


def overrides(subject: Subject) -> list[tuple[str, list[str]]]:
    """Overrides in titled groups, each `key=value`.

    A recipe's mixed precision may be a name or an object; a name replaces either, fields of it need the object, so a
    change of a field comes as fields alone. `comm_overlap` is built whole (`_target_`), since a recipe may have none.
    """
    groups = [(title, [f"{name}={hydra(value)}" for name, value in values]) for title, values in sections(subject)]
    name, changed = precision(subject)
    words = [f"mixed_precision.{field}={hydra(value)}" for field, value in changed] or [
        f"mixed_precision={hydra(name)}"
    ]
    groups.append(("precision", words))
    groups.append(("communication overlap", [f"++comm_overlap={hydra(overlap_object(subject))}"]))
    return groups


def overlap_object(subject: Subject) -> dict[str, Any]:
    """CommOverlapConfig as the mapping that Bridge instantiates (`_target_`), user buffers written out."""
    found: dict[str, Any] = {"_target_": f"{OVERLAP}.CommOverlapConfig", **comm_overlap(subject)}
    buffers = user_buffers(subject)
    if buffers is not None:
        found["tp_comm_overlap_cfg"] = dict(_buffers(subject))
    return found


def _buffers(subject: Subject) -> Iterator[tuple[str, Any]]:
    """User buffers written out: an override cannot name a Python object."""
    from advisor.export.bridge import CLASSES

    yield "_target_", f"{OVERLAP}.TransformerLayerTPOverlapCfg"
    gemms = subject.overlap.buffers.gemms
    for gemm, row in gemms.items():
        arguments = {key: value for key, value in row.items() if key != "method"}
        yield gemm, {"_target_": f"{OVERLAP}.{CLASSES[str(row['method'])]}", **arguments}


def overrides_text(subject: Subject) -> dict[str, str]:
    """One file: the overrides as a bash array."""
    found = recipe(subject.model.name, subject.version)
    name = re.sub(r"\W", "", found[1]) if found else None
    return {"bridge_overrides.sh": fill("overrides.sh.j2", subject=subject, groups=overrides(subject), recipe=name)}
