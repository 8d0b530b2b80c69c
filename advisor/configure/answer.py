"""The answer of `advisor overlap`: fields, user buffers, environment, gains and interleaving of one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from advisor.configure.environment import Variable, variables
from advisor.configure.gain import Gain, gains
from advisor.configure.interleaving import Interleaving, interleavings
from advisor.configure.job import Job
from advisor.configure.overlap import Overlap, resolve
from advisor.configure.resolved import Asked, Field, asked_of
from advisor.search.options import EstimateOptions
from advisor.search.request import Request
from advisor.search.single import Choice, judge, single_request
from advisor.spec.plan import Finding, StepEstimate
from advisor.units import gib

SCHEMA_VERSION = 1
# Knobs that are on by default; somebody who names them sets the field by hand.
DATA_KNOBS = {
    "overlap_p2p_comm": "overlap_p2p",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
}


@dataclass(frozen=True, slots=True)
class OverlapAnswer:
    """How communication overlap of one layout resolves, and what it brings.

    `step` is the step with the knobs that really take effect, None where the layout is illegal or does not train;
    `findings` are those of the rules about the layout.
    """

    request: Request
    overlap: Overlap
    environment: tuple[Variable, ...]
    step: StepEstimate | None
    gains: tuple[Gain, ...]
    interleavings: tuple[Interleaving, ...]
    findings: tuple[Finding, ...]

    @property
    def negative(self) -> bool:
        """Whether something asked for is refused or silently lost, or the layout itself is illegal."""
        lost = any(one.outcome in ("stop", "silent") for one in self.overlap.fields)
        return lost or any(one.severity == "stop" for one in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """JSON form: times in seconds, sizes in GiB, null for what is not known."""
        buffers = self.overlap.buffers
        return {
            "schema_version": SCHEMA_VERSION,
            "request": {name: setting.value for name, setting in self.request.settings.items()},
            "target": self.overlap.asked.target,
            "fields": [_field(one) for one in self.overlap.fields],
            "user_buffers": {
                "match": buffers.match,
                "name": buffers.name,
                "reason": buffers.reason,
                "differences": list(buffers.differences),
                "gemms": {gemm: dict(values) for gemm, values in buffers.gemms.items()},
                "custom": {gemm: dict(values) for gemm, values in buffers.custom.items()} or None,
                "custom_kind": "assumed",
            },
            "environment": [asdict(one) for one in self.environment],
            "step_s": None if self.step is None else self.step.step_s,
            "gains": [asdict(one) for one in self.gains],
            "interleavings": [_interleaving(one) for one in self.interleavings],
            "findings": [asdict(one) for one in self.findings],
        }


def _field(one: Field) -> dict[str, Any]:
    return {"field": one.path, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(one).items()}}


def _interleaving(one: Interleaving) -> dict[str, Any]:
    found = asdict(one)
    found["peak_gib"] = gib(found.pop("peak_bytes"))
    return found


def overlap_answer(
    model: str | None, gpus: int | None, options: EstimateOptions, given: Mapping[str, Any], *, lora: bool = False
) -> OverlapAnswer:
    """Resolve the overlap of one layout.

    `options` are those of an estimate; `given` the fields of CommOverlapConfig that somebody sets by hand (and
    `transformer_engine`, `target`). Tensor-parallel overlap is asked for unless `options` say otherwise.
    """
    request, choice = single_request(model, gpus, None, options)
    if "tp_overlap" not in options:
        choice = replace(choice, knobs=replace(choice.knobs, tp_overlap=True))
    job = Job(request.model, request.cluster, request.workload, choice.layout, choice.knobs)
    by_hand: dict[str, Any] = {name: True for name, knob in DATA_KNOBS.items() if options.get(knob) is True}
    return _answer(request, choice, job, replace(asked_of(choice.knobs), **by_hand, **given), lora)


def _answer(request: Request, choice: Choice, job: Job, asked: Asked, lora: bool) -> OverlapAnswer:
    overlap = resolve(job, asked, lora=lora)
    held = replace(job, knobs=overlap.effective)
    verdict, candidate, found = judge(request, replace(choice, knobs=overlap.effective))
    trains = verdict != "illegal" and request.workload.mode == "train" and candidate is not None
    return OverlapAnswer(
        request=request,
        overlap=overlap,
        environment=variables(held),
        step=candidate.step if candidate is not None else None,
        gains=gains(held) if trains else (),
        interleavings=interleavings(held, request.budget_bytes) if trains else (),
        findings=found,
    )
