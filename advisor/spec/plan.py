"""What the advisor answers: candidates with named terms, findings, a whole plan."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from advisor.spec.layout import Knobs, Layout

Kind = Literal["datasheet", "measured", "fitted", "assumed"]
Severity = Literal["stop", "silent", "slow", "info"]


@dataclass(frozen=True, slots=True)
class Term:
    """A number that knows where it comes from; the unit is in the name of the mapping that holds it."""

    value: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer of one rule about one layout or configuration."""

    rule: str
    severity: Severity
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak of the worst stage at its worst moment, as named terms in bytes that sum to `peak_device_bytes`.

    `stages` holds, for every representative stage, the peak per moment; `host_bytes` is host RAM per node.
    """

    peak_allocated_bytes: float
    peak_device_bytes: float
    budget_bytes: float
    worst_stage: int
    worst_moment: str
    terms: MappingProxyType[str, Term]
    host_bytes: float
    padded_vocab: int
    stages: tuple[MappingProxyType[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Seconds of one step: named terms that sum to `step_s`; `exposed_s` and `hidden_s` per parallelism."""

    step_s: float
    low_s: float
    high_s: float
    interval_level: float
    terms: MappingProxyType[str, Term]
    exposed_s: MappingProxyType[str, float]
    hidden_s: MappingProxyType[str, float]
    bubble_s: float
    tokens_per_s_per_gpu: float
    model_flops: float
    tflops_per_gpu: float
    mfu: float
    mfu_bf16: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout with its knobs and what it costs; `step` is None outside training.

    `mtp_depth` is the number of prediction modules trained, which the layout string has to name.
    """

    rank: int
    layout: Layout
    knobs: Knobs
    memory: MemoryEstimate
    step: StepEstimate | None
    findings: tuple[Finding, ...] = ()
    mtp_depth: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A knob outside the default search: what `allow` name takes it and what it would bring.

    `gain` is the relative change of tokens/s/GPU against the best plan without it (0.05 = 5 % faster; None when the
    plan without it is empty); `freed_bytes` is the device memory of the same comparison; `candidate` the best with it.
    """

    allow: str
    title: str
    gain: float | None
    freed_bytes: float | None
    candidate: Candidate | None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a layout is rejected or slow.

    `of` is "rule", "memory" or "time"; `name` the rule id or the term; `value` and `reference` are the numbers of this
    layout and of what it is compared with, in `unit` ("bytes", "s" or "").
    """

    of: Literal["rule", "memory", "time"]
    name: str
    message: str
    value: float | None = None
    reference: float | None = None
    unit: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Dial:
    """One change of one setting: `gain` is the relative change of tokens/s/GPU (None when it is not comparable).

    `allow` names the allowance that a search needs to take it, for a change of the mathematics.
    """

    name: str
    before: str
    after: str
    verdict: Literal["fits", "oom", "illegal"]
    gain: float | None
    freed_bytes: float | None
    allow: str = ""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The best layout at one GPU count.

    `efficiency` is tokens/s/GPU over that of the smallest feasible count; `changed` lists the layout fields and knobs
    that differ from the count before; `grown_term` is the step term whose share of the step grew most since then, by
    `grown_share` (0.03 = 3 points of the step).
    """

    gpus: int
    gbs: int
    searched: int
    feasible: int
    candidate: Candidate | None
    efficiency: float | None
    changed: tuple[str, ...] = ()
    grown_term: str = ""
    grown_share: float | None = None
