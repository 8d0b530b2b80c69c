"""KEY=VALUE overrides for Megatron-Bridge's scripts/training/run_recipe.py, in Hydra's grammar, quoted for a shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from advisor.configure.job import preset
from advisor.export.bridge import user_buffers
from advisor.export.bridge_values import comm_overlap, precision, sections
from advisor.export.subject import Subject, recipe
from advisor.export.words import fill, hydra

OVERLAP = "megatron.bridge.training.comm_overlap"
PRECISION = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"


def overrides(subject: Subject) -> list[tuple[str, list[str]]]:
    """Overrides in titled groups, each `key=value`.

    Precision and overlap are objects that a recipe may hold under a name, in full or not at all. They are cleared and
    built whole (`_target_`): merged into the recipe's own, its user buffers and its precision would shine through.
    """
    groups = [(title, [f"{name}={hydra(value)}" for name, value in values]) for title, values in sections(subject)]
    for title, key, value in (
        ("precision", "mixed_precision", precision_object(subject)),
        ("communication overlap", "comm_overlap", overlap_object(subject)),
    ):
        groups.append((title, [f"++{key}=null", f"++{key}={hydra(value)}"]))
    return groups


def precision_object(subject: Subject) -> str | dict[str, Any] | None:
    """Mixed precision by the name of Bridge's recipe; where a field of it is changed, the object it stands for."""
    name, changed = precision(subject)
    if name is None or not changed:
        return name
    table = preset("versions.yaml")["precision_fields"]
    values = {**table["defaults"], **table[name], **dict(changed)}
    for field in ("params_dtype", "pipeline_dtype"):
        values[field] = {"_target_": f"torch.{values[field]}", "_call_": False}
    return {"_target_": PRECISION, **values}


def overlap_object(subject: Subject) -> dict[str, Any]:
    """CommOverlapConfig as the mapping that Bridge instantiates (`_target_`), user buffers written out."""
    buffers = dict(_buffers(subject)) if user_buffers(subject) is not None else None
    return {
        "_target_": f"{OVERLAP}.CommOverlapConfig",
        **comm_overlap(subject),
        "tp_comm_overlap_cfg": buffers,
    }


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
