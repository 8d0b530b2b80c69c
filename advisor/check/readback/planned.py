"""What a plan sets, under the keys of a Bridge configuration: what its export writes for the framework of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.check.defaults import megatron_defaults
from advisor.check.readback.observed import Observed
from advisor.check.readers import flags
from advisor.check.readers.mapping import KeyLines
from advisor.check.reading import Reading
from advisor.configure.chosen import Chosen
from advisor.errors import InputError
from advisor.export.bridge_values import OVERLAP_FIELDS, comm_overlap, sections
from advisor.export.megatron import flag_groups
from advisor.export.model_fields import model_facts, unsupported
from advisor.export.subject import Subject, subject
from advisor.export.words import plain

IDENTITY = ("model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.num_moe_experts")
"""A log that says otherwise here is of another model."""
_OF_PRECISION = ("model.bf16", "model.fp16", "model.fp8", "model.fp8_recipe", "ddp.grad_reduce_in_fp32")
# Counted or named otherwise by Megatron-LM, or a file of the user's.
_BRIDGE_ONLY = ("ddp.bucket_size", "ddp.align_param_gather", "model.wgrad_deferral_limit", "checkpoint.ckpt_format")
_PATHS = ("model.tp_comm_overlap_cfg",)


def planned(chosen: Chosen, observed: Observed) -> dict[str, Any]:
    """Settings of the plan by key, `gpus` included, for the framework and version that the log shows.

    Raises InputError where the log is of another model, and where the plan cannot be exported.
    """
    target = observed.framework if observed.framework == "megatron-lm" else "bridge"
    found = subject(chosen, target, observed.version)
    written = _flags(chosen, found)
    _require_same_model(chosen, written, observed)
    values: dict[str, Any] = {"gpus": chosen.cluster.gpus}
    values |= {key: plain(value) for _, rows in sections(found) for key, value in rows}
    values |= {path: comm_overlap(found)[name] for name, path in OVERLAP_FIELDS.items()}
    if target == "megatron-lm":
        known = megatron_defaults()
        both = {"gpus", "model.virtual_pipeline_model_parallel_size", *known} - {*_BRIDGE_ONLY}
        values = {key: one for key, one in values.items() if key in both}
        values |= written
    else:
        values |= {key: written[key] for key in (*IDENTITY, *_OF_PRECISION) if key in written}
    idle = (*_PATHS, "model.cp_comm_type") if chosen.layout.cp == 1 else _PATHS
    return {key: value for key, value in values.items() if key not in idle}


def _flags(chosen: Chosen, found: Subject) -> dict[str, Any]:
    """What Megatron-LM's flags for the plan set; of a model that they cannot describe only its size."""
    size = {"model.num_layers": chosen.model.num_layers, "model.hidden_size": chosen.model.hidden}
    facts = model_facts(chosen.model, str(chosen.request.settings["model"].value))
    if unsupported(chosen.model, facts):
        return size
    reading = Reading("plan", "megatron-args")
    words = [str(word) for _, rows in flag_groups(found, facts) for row in rows for word in row]
    flags.read(reading, words, KeyLines(""), bridge=False)
    return size | {key: value.value for key, value in reading.values.items()}


def _require_same_model(chosen: Chosen, written: Mapping[str, Any], observed: Observed) -> None:
    for key in IDENTITY:
        seen = observed.settings.get(key)
        if seen is None or seen.how == "default" or key not in written or seen.value == written[key]:
            continue
        name = key.removeprefix("model.")
        raise InputError(
            f"the log is of another model: {name} is {seen.value} there ({seen.file}:{seen.line}), "
            f"{written[key]} in {chosen.model.name}, which {chosen.source} plans",
            "give the plan that this job was started from",
        )
