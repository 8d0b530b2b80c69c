"""What was asked of the framework, and what becomes of it: values shared by the modules beside."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from advisor.spec.layout import Knobs

Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None
Outcome = Literal["asked", "automatic", "silent", "stop"]

MB = "MB:src/megatron/bridge/training"
ML = "ML:megatron"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: `section.name` as Bridge spells it, what was asked (None = left to the framework), what holds.

    `outcome`: asked = as asked, automatic = decided by the framework, silent = asked and lost with at most a warning,
    stop = start-up refuses. `stopped_by` is "bridge" (CommOverlapConfig.setup raises) or "megatron" (later).
    `source` is ALIAS:path with MB = NVIDIA-NeMo/Megatron-Bridge@067f987d, ML = NVIDIA/Megatron-LM@2a75ac12.
    """

    section: str
    name: str
    requested: Value
    effective: Value
    outcome: Outcome
    reason: str
    source: str
    stopped_by: str = ""

    @property
    def path(self) -> str:
        """Dotted name, as an override spells it."""
        return f"{self.section}.{self.name}"


@dataclass(frozen=True, slots=True)
class Asked:
    """Fields of Bridge's CommOverlapConfig as a user gives them; None leaves a field to Bridge.

    `transformer_engine` is the installed version (None = absent); `target` the Bridge version, 0.3 or 0.6.
    """

    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: str | None = None
    overlap_p2p_comm: bool | None = None
    batch_p2p_comm: bool | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_param_gather_with_optimizer_step: bool | None = None
    align_param_gather: bool | None = None
    bucket_size: int | None = None
    defer_embedding_wgrad_compute: bool | None = None
    wgrad_deferral_limit: int | None = None
    overlap_moe_expert_parallel_comm: bool | None = None
    delay_wgrad_compute: bool | None = None
    transformer_engine: str | None = "2.12"
    target: str = "0.6"

    def given(self) -> dict[str, Value]:
        """The fields of CommOverlapConfig that are given."""
        outside = {"transformer_engine", "target", "tp_comm_overlap_cfg"}
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in outside}
        return {name: value for name, value in found.items() if value is not None}


def asked_of(knobs: Knobs, asked: Asked | None = None) -> Asked:
    """What the knobs of a plan ask for; a knob at its default leaves the field to Bridge."""
    return replace(
        asked or Asked(),
        tp_comm_overlap=knobs.tp_overlap,
        overlap_p2p_comm=None if knobs.overlap_p2p else False,
        overlap_grad_reduce=None if knobs.overlap_grad_reduce else False,
        overlap_param_gather=None if knobs.overlap_param_gather else False,
        overlap_moe_expert_parallel_comm=True if knobs.ep_overlap else None,
        delay_wgrad_compute=True if knobs.delay_wgrad else None,
    )


def settle(requested: Value, automatic: Value, why: str, override: str = "") -> tuple[Value, Outcome, str]:
    """Effective value, outcome and reason of a field that Bridge fills in unless somebody gives it."""
    if requested is None or requested == automatic:
        return automatic, "automatic" if requested is None else "asked", why
    return requested, "asked", override or f"given by hand, unchecked; Bridge would set {automatic}: {why}"
