"""Predictions of a job of which one run was measured: the same correction for what runs and for every change of it.

A change is judged by the ratio of two predictions, whose error is known (profiles/pairs.yaml); what is measured scales
both, so that seconds and bytes are those of this cluster while the ratio stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from advisor.cost.interval import shifted
from advisor.spec.plan import Candidate, MemoryEstimate, Term

LEFT = 0.9
"""Share of an interval that remains beside a measured run of the same job (as of an anchor of the same recipe)."""
UNPREDICTED = "measured_less_predicted"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of the job as it is showed: seconds of a step, and peak bytes that torch allocated; None = unknown."""

    step_s: float | None = None
    peak_allocated_bytes: float | None = None

    def correct(self, one: Candidate, now: Candidate) -> Candidate:
        """A candidate as the measured run corrects it; `now` is the uncorrected prediction of the job that ran."""
        step, memory = one.step, one.memory
        if self.step_s is not None and step is not None and now.step is not None:
            step = shifted(step, self.step_s / now.step.step_s, LEFT)
        if self.peak_allocated_bytes is not None:
            memory = _moved(memory, _more(self.peak_allocated_bytes, now.memory, memory))
        return replace(one, step=step, memory=memory)


def _more(measured_bytes: float, now: MemoryEstimate, memory: MemoryEstimate) -> float:
    """Bytes by which `memory` is corrected: as many as were measured above `now`, or the smaller share of them below.

    What is predicted too high is so in proportion: a change that needs a tenth cannot give back more than it needs.
    """
    more = measured_bytes - now.peak_allocated_bytes
    return more if more >= 0 else max(more, memory.peak_allocated_bytes * more / now.peak_allocated_bytes)


def _moved(memory: MemoryEstimate, more_bytes: float) -> MemoryEstimate:
    """A memory estimate with what the measured peak is above the predicted one, as a term of its own."""
    return replace(
        memory,
        peak_allocated_bytes=memory.peak_allocated_bytes + more_bytes,
        peak_device_bytes=memory.peak_device_bytes + more_bytes,
        terms=MappingProxyType({**memory.terms, UNPREDICTED: Term(more_bytes, "measured")}),
    )
