"""A Python snippet for Megatron-Bridge: `configure(cfg)` sets everything on a recipe, or on a container built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.configure.job import preset
from advisor.export.bridge_values import comm_overlap, precision, sections
from advisor.export.model_fields import WHOLE_NORM, Facts, model_fields, norms_all_heads, require_supported
from advisor.export.subject import Subject, recipe
from advisor.export.words import Code, fill, python

INSTEAD = "export flags of a model that Bridge has a recipe for, or write its provider by hand"
CLASSES = {
    "ring_exchange": "RingExchangeOverlapCfg",
    "pipeline": "PipelineOverlapCfg",
    "bulk": "BulkOverlapCfg",
}
ACTIVATION = {"silu": Code("F.silu", "silu"), "gelu": Code("F.gelu", "gelu")}
# Said by the sequence length in a provider.
NOT_IN_PROVIDER = {"max_position_embeddings"}


def bridge_text(subject: Subject, facts: Facts, more: str = "") -> dict[str, str]:
    """One file with `configure(cfg)` and, where Bridge has no recipe for the model, `recipe()` that builds a container.

    `more` are statements about `cfg` that come last in `configure`.
    Raises InputError for a model that has no recipe and no generic provider.
    """
    version = preset("versions.yaml")["bridge"][subject.version]
    found = recipe(subject.model.name, subject.version)
    from_hub = version["minimax_m2"] if subject.model.family == "minimax_m2" else None
    provider: dict[str, str] = {}
    if found is None and from_hub is None:
        provider = provider_arguments(subject, facts)
    name, changed = precision(subject)
    groups, buffers = sections(subject), user_buffers(subject)
    body = fill(
        "bridge.py.j2",
        subject=subject,
        sections=groups,
        uses_torch=any(isinstance(value, Code) for _, values in groups for _, value in values),
        overlap=comm_overlap(subject),
        buffers=buffers,
        precision=name,
        changed=changed,
        recipe=found,
        from_hub=from_hub,
        provider=provider,
        provider_class="MLAModelProvider" if subject.model.has_mla else "GPTModelProvider",
        provider_module="mla_provider" if subject.model.has_mla else "gpt_provider",
        needs_precision=bool(changed),
        activation_module="F." in provider.get("activation_func", ""),
        squared_relu=provider.get("activation_func") == "squared_relu",
        evaluation=version["evaluation"],
        mtp=subject.job.workload.mtp_depth,
        caveat=WHOLE_NORM if provider and norms_all_heads(subject.model) else "",
        vocab=subject.model.vocab_size,
        more=more,
    )
    return {"bridge_config.py": body}


def provider_arguments(subject: Subject, facts: Facts) -> dict[str, str]:
    """Arguments of the generic provider as Python expressions."""
    require_supported(subject.model, facts, INSTEAD)
    fields = model_fields(subject.model, subject.job.workload, facts)
    out: dict[str, str] = {}
    for name, value in fields.items():
        if name in NOT_IN_PROVIDER:
            continue
        if name == "activation_func":
            out[name] = "squared_relu" if value == "squared_relu" else ACTIVATION[value].python
        elif name == "window_size":
            out[name] = f"({value[0]}, {value[1]})"
        else:
            out[name] = _runs(value) if isinstance(value, tuple) else python(value)
    out["should_pad_vocab"] = "True"
    return out


def _runs(switches: tuple[int, ...]) -> str:
    """Per-layer switches as a sum of repeated lists."""
    runs: list[list[int]] = []
    for one in switches:
        if runs and runs[-1][0] == one:
            runs[-1][1] += 1
        else:
            runs.append([one, 1])
    if len(runs) > len(switches) // 2:
        return python(list(switches))
    return " + ".join(f"[{one}] * {count}" for one, count in runs)


def user_buffers(subject: Subject) -> Mapping[str, Any] | None:
    """How the snippet gets its user buffers: a preset by name, or custom ones by GEMM; None without."""
    found = subject.overlap.buffers
    if not subject.knobs.tp_overlap or not found.gemms:
        return None
    if found.name is not None:
        return {"preset": found.name, "custom": None, "said": found.reason}
    made = {}
    for gemm, row in found.gemms.items():
        arguments = {key: value for key, value in row.items() if key != "method"}
        made[gemm] = (CLASSES[str(row["method"])], arguments)
    return {"preset": None, "custom": made, "said": found.reason}
