"""The answer of `advisor overlap`: fields, user buffers, environment, gains and interleaving of one job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from advisor.configure.environment import Variable, variables
from advisor.configure.gain import Gain, gains
from advisor.configure.interleaving import Interleaving, interleavings
from advisor.configure.job import Job, preset
from advisor.configure.overlap import Overlap, resolve
from advisor.configure.prices import Price, field_prices, variable_prices
from advisor.configure.resolved import Asked, Field, asked_of
from advisor.configure.userbuffers import preset_gemms
from advisor.errors import InputError
from advisor.search.options import EstimateOptions
from advisor.search.request import Request
from advisor.search.single import Choice, judge, single_request
from advisor.search.values import choice, whole
from advisor.spec.plan import Finding, StepEstimate
from advisor.units import gib

SCHEMA_VERSION = 1
WORDS = {
    "tp_comm_overlap_cfg": "tp_comm_overlap_cfg",
    "batch_p2p": "batch_p2p_comm",
    "align_param_gather": "align_param_gather",
    "overlap_param_gather_with_optimizer_step": "overlap_param_gather_with_optimizer_step",
    "defer_embedding_wgrad": "defer_embedding_wgrad_compute",
    "wgrad_deferral_limit": "wgrad_deferral_limit",
    "te_version": "transformer_engine",
    "target_version": "target",
}
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
    `prices` says by name what every field and variable is worth in it, and is empty without a step; `findings` are
    those of the rules about the layout.
    """

    request: Request
    overlap: Overlap
    environment: tuple[Variable, ...]
    step: StepEstimate | None
    gains: tuple[Gain, ...]
    prices: Mapping[str, Price]
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
            "fields": [{**_field(one), "price": self._price(one.path)} for one in self.overlap.fields],
            "user_buffers": {
                "match": buffers.match,
                "name": buffers.name,
                "reason": buffers.reason,
                "differences": list(buffers.differences),
                "gemms": {gemm: dict(values) for gemm, values in buffers.gemms.items()},
                "custom": {gemm: dict(values) for gemm, values in buffers.custom.items()} or None,
                "custom_kind": "assumed",
            },
            "environment": [{**asdict(one), "price": self._price(one.name)} for one in self.environment],
            "step_s": None if self.step is None else self.step.step_s,
            "gains": [asdict(one) for one in self.gains],
            "interleavings": [_interleaving(one) for one in self.interleavings],
            "findings": [asdict(one) for one in self.findings],
        }

    def _price(self, name: str) -> dict[str, Any] | None:
        price = self.prices.get(name)
        return None if price is None else price.record()


def _field(one: Field) -> dict[str, Any]:
    return {"field": one.path, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(one).items()}}


def _interleaving(one: Interleaving) -> dict[str, Any]:
    found = asdict(one)
    found["peak_gib"] = gib(found.pop("peak_bytes"))
    return found


def by_hand(words: Mapping[str, str | bool | None]) -> dict[str, Any]:
    """Fields of `Asked` from the words of a command line or a call; None counts as not given. Raises InputError."""
    found = {name: value for name, value in words.items() if value is not None}
    out: dict[str, Any] = {}
    for name, field in WORDS.items():
        if name in found:
            out[field] = found[name]
    if "wgrad_deferral_limit" in out:
        out["wgrad_deferral_limit"] = whole("wgrad_deferral_limit", out["wgrad_deferral_limit"], -1, 2**40)
    if str(out.get("transformer_engine", "")).lower() == "none":
        out["transformer_engine"] = None
    elif "transformer_engine" in out and not re.match(r"\d+\.\d+", str(out["transformer_engine"])):
        raise InputError(f"te_version={out['transformer_engine']!r} is no version", "for example 2.12, or none")
    if "target" in out:
        known = list(preset("versions.yaml")["bridge"])
        out["target"] = choice("target_version", ".".join(str(out["target"]).split(".")[:2]), known)
    buffers = out.get("tp_comm_overlap_cfg")
    if buffers is not None and buffers != "custom":
        preset_gemms(str(buffers))
    return out


def overlap_answer(
    model: str | None, gpus: int | None, options: EstimateOptions, asked: Mapping[str, Any], *, lora: bool = False
) -> OverlapAnswer:
    """Resolve the overlap of one layout.

    `options` are those of an estimate; `asked` the fields of CommOverlapConfig that somebody sets by hand (and
    `transformer_engine`, `target`), as from `by_hand`. Tensor-parallel overlap is asked for with TP above 1, but for
    latent attention, unless `options` say otherwise.
    """
    request, chosen = single_request(model, gpus, None, options)
    if "tp_overlap" not in options:
        useful = chosen.layout.tp > 1 and not request.model.has_mla
        chosen = replace(chosen, knobs=replace(chosen.knobs, tp_overlap=useful))
    job = Job(request.model, request.cluster, request.workload, chosen.layout, chosen.knobs)
    on: dict[str, Any] = {name: True for name, knob in DATA_KNOBS.items() if options.get(knob) is True}
    return _answer(request, chosen, job, replace(asked_of(chosen.knobs), **on, **asked), lora)


def _answer(request: Request, chosen: Choice, job: Job, asked: Asked, lora: bool) -> OverlapAnswer:
    overlap = resolve(job, asked, lora=lora)
    held = overlap.held
    verdict, candidate, found = judge(
        request.replaced(workload=held.workload), replace(chosen, knobs=overlap.effective)
    )
    trains = verdict != "illegal" and request.workload.mode == "train" and candidate is not None
    environment, brought = variables(held), gains(held) if trains else ()
    prices: dict[str, Price] = {}
    if trains and candidate is not None and candidate.step is not None:
        prices = field_prices(overlap.fields, brought, candidate.step) | variable_prices(held, environment, candidate)
    return OverlapAnswer(
        request=request,
        overlap=overlap,
        environment=environment,
        step=candidate.step if candidate is not None else None,
        gains=brought,
        prices=MappingProxyType(prices),
        interleavings=interleavings(held, request.budget_bytes) if trains else (),
        findings=found,
    )
