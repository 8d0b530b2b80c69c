"""User buffers of tensor-parallel overlap: a preset that fits, the nearest one with its differences, or a custom one.

Nothing in Megatron-Bridge picks a preset or checks one against the layout, so a wrong one is silent. Architecture,
number format, hidden size and LoRA must agree: they decide which GEMMs exist and how long they take. TP, CP,
microbatch and sequence only scale the buffer of [sequence x microbatch / CP, hidden]; there the vendor's own recipes
take the preset of the same hidden size, and so does `nearest`, with the list of what differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low
from types import MappingProxyType
from typing import Any, Literal

from advisor.configure.job import Job, preset
from advisor.errors import UnknownNameError
from advisor.spec.load.fields import did_you_mean

Gemm = Mapping[str, bool | int | str]
Match = Literal["exact", "nearest", "custom", "none"]

FILE = "userbuffers.yaml"
LAYOUT_KEYS = ("tp", "cp", "mbs", "seq_len")
TE_DEFAULT = "Transformer Engine then uses its own default per GEMM"
WEIGHT_GRADIENTS = ("qkv_wgrad", "fc1_wgrad")
_FORMATS = {"bf16": "bf16", "fp8-delayed": "fp8", "fp8-current": "fp8", "fp8-blockwise": "fp8", "mxfp8": "fp8"}


@dataclass(frozen=True, slots=True)
class BufferChoice:
    """The user buffers of a job.

    `match` is exact, nearest (`differences` says what the name does not share with the layout), custom (generated,
    kind assumed) or none. `name` is the preset, `gemms` the settings by GEMM, `reason` a sentence, and `custom` the
    generated configuration that fits the shape when no preset does.
    """

    match: Match
    name: str | None
    reason: str
    differences: tuple[str, ...] = ()
    gemms: Mapping[str, Gemm] = field(default_factory=lambda: MappingProxyType({}))
    custom: Mapping[str, Gemm] = field(default_factory=lambda: MappingProxyType({}))


def preset_names() -> list[str]:
    """Names of the presets, in the order of the file."""
    return list(preset(FILE)["presets"])


def preset_gemms(name: str) -> Mapping[str, Gemm]:
    """Settings of a preset by GEMM; frozen weights have none. UnknownNameError for a name that does not exist."""
    table = preset(FILE)["presets"]
    if name not in table:
        raise UnknownNameError(f"no user-buffer preset is named {name!r}", did_you_mean(name, table))
    gemms = {key: _plain(value) for key, value in table[name]["gemms"].items() if value is not None}
    return MappingProxyType(gemms)


def _plain(row: Mapping[str, Any]) -> Gemm:
    return MappingProxyType({key: value for key, value in row.items() if key != "fp8_buf_upstream_is_tuple"})


def choose(job: Job, *, active: bool, why_not: str, named: str | None = None, lora: bool = False) -> BufferChoice:
    """The user buffers for `job`; `named` is a preset somebody asked for, or "custom" for a generated configuration."""
    if not active:
        return BufferChoice("none", None, f"tensor-parallel overlap is off: {why_not}")
    arch, fmt = _architecture(job), _FORMATS.get(job.workload.precision.name)
    custom = generate(job, lora=lora)
    if named == "custom":
        if not custom:
            return BufferChoice("none", None, f"no preset of this architecture and number format; {TE_DEFAULT}")
        return BufferChoice("custom", None, "generated for this shape, assumed", gemms=custom)
    if named is not None:
        found = preset_gemms(named)
        differences = _differences(preset(FILE)["presets"][named], job, arch, fmt, lora)
        said = "asked for and fits" if not differences else f"asked for; not its shape: {', '.join(differences)}"
        return BufferChoice("nearest" if differences else "exact", named, said, differences, found)
    if arch is None:
        return BufferChoice("none", None, f"no preset is written for {job.gpu.arch}; {TE_DEFAULT}")
    if fmt is None:
        return BufferChoice("none", None, f"no preset is written for {job.workload.precision.name}; {TE_DEFAULT}")
    return _nearest(job, arch, fmt, lora, custom)


def _nearest(job: Job, arch: str, fmt: str, lora: bool, custom: Mapping[str, Gemm]) -> BufferChoice:
    must = {"gpu_arch": arch, "precision": fmt, "hidden_size": job.model.hidden, "lora": lora}
    rows = {
        name: row
        for name, row in preset(FILE)["presets"].items()
        if all(row[key] == value for key, value in must.items())
    }
    if not rows:
        kind = " LoRA" if lora else ""
        why = f"no preset of {arch}, {fmt}{kind} has hidden size {job.model.hidden}; {TE_DEFAULT}"
        return BufferChoice("none", None, why, custom=custom)
    name = min(rows, key=lambda one: _distance(rows[one], job))
    differences = _differences(rows[name], job, arch, fmt, lora)
    if not differences:
        return BufferChoice("exact", name, "same architecture, format, hidden size and layout", (), preset_gemms(name))
    why = f"same architecture, format and hidden size; differs in {', '.join(differences)}"
    return BufferChoice("nearest", name, why, differences, preset_gemms(name), custom)


def _here(job: Job) -> dict[str, int]:
    layout = job.layout
    return {"tp": layout.tp, "cp": layout.cp, "mbs": layout.mbs, "seq_len": job.workload.seq_len}


def _distance(row: Mapping[str, Any], job: Job) -> tuple[float, float]:
    """TP first, which sets the chunk of a ring; then the rows of the buffer, in doublings."""
    here = _here(job)
    rows_there = row["seq_len"] * row["mbs"] / row["cp"]
    rows_here = here["seq_len"] * here["mbs"] / here["cp"]
    return abs(math.log2(row["tp"] / here["tp"])), abs(math.log2(rows_there / rows_here))


def _differences(row: Mapping[str, Any], job: Job, arch: str | None, fmt: str | None, lora: bool) -> tuple[str, ...]:
    here: dict[str, Any] = {
        "gpu_arch": arch or job.gpu.arch,
        "precision": fmt or job.workload.precision.name,
        "hidden_size": job.model.hidden,
        "lora": lora,
        **_here(job),
    }
    return tuple(f"{key} {row[key]} (here {value})" for key, value in here.items() if row[key] != value)


def _architecture(job: Job) -> str | None:
    """The architecture token of the presets for a GPU, None where no preset is written for it."""
    known = preset(FILE)["architectures"]
    return next((token for token, archs in known.items() if isinstance(archs, list) and job.gpu.arch in archs), None)


def generate(job: Job, *, lora: bool = False) -> Mapping[str, Gemm]:
    """A configuration for a shape without preset, kind assumed; empty when nothing is known of GPU or format.

    Gathers in front of a GEMM go round a ring inside it; scatters behind one are pipelined in bf16 and go round the
    ring in fp8; gathers and scatters of the backward pass run in bulk under another GEMM. Which method a GEMM gets,
    and its SMs, is what most presets of the architecture and format have (medians). Frozen weights have no
    weight-gradient GEMM. Source: presets/userbuffers.yaml.
    """
    arch, fmt = _architecture(job), _FORMATS.get(job.workload.precision.name)
    table = preset(FILE)
    rows = [
        row["gemms"]
        for row in table["presets"].values()
        if row["gpu_arch"] == arch and row["precision"] == fmt and not row["lora"]
    ]
    if not rows:
        return MappingProxyType({})
    found: dict[str, Gemm] = {}
    for gemm in table["schema"]["gemms"]:
        if lora and gemm in WEIGHT_GRADIENTS:
            continue
        found[gemm] = _typical([_plain(row[gemm]) for row in rows], int(table["assumed"]["num_splits"]))
    return MappingProxyType(found)


def _typical(settings: list[Gemm], num_splits: int) -> Gemm:
    """The most common method, with the lower median of its SMs."""
    methods = [str(one["method"]) for one in settings]
    method = max(sorted(set(methods)), key=methods.count)
    alike = [one for one in settings if one["method"] == method]
    made: dict[str, bool | int | str] = dict(alike[0])
    made["num_sm"] = median_low([int(one["num_sm"]) for one in alike])
    if method == "pipeline":
        made["num_splits"] = num_splits
    return MappingProxyType(made)
