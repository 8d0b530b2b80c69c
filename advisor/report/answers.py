"""The answers of the Python functions: frozen values that know their JSON form, their frame and their table."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from advisor.report import record
from advisor.search.request import Request
from advisor.spec.plan import Candidate, Dial, Finding, Offer, Reason, ScalingPoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from advisor.fit.references import Measured
    from advisor.search.routing import Imbalance

Verdict = Literal["fits", "oom", "illegal"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Ranked layouts for one model on one cluster.

    `searched` counts row x knob combinations, `feasible` those that are legal and within the budget, `rejected` the
    others by rule id (`memory-<term>` names the term that broke the budget). `baseline` is the vendor's recipe
    `baseline_name` where one is published. `pareto` holds the layouts that no other beats in both time and memory,
    `families` the best layout of each kind of parallelism, `offers` what knobs outside the default search would bring,
    `findings` the rules that the job breaks whatever its layout, `imbalance` what router statistics cost the best one,
    `measured` what a rate that somebody reached says beside it.
    """

    request: Request
    searched: int
    feasible: int
    rejected: MappingProxyType[str, int]
    candidates: tuple[Candidate, ...]
    baseline: Candidate | None = None
    baseline_name: str = ""
    pareto: tuple[Candidate, ...] = ()
    families: tuple[Candidate, ...] = ()
    offers: tuple[Offer, ...] = ()
    findings: tuple[Finding, ...] = ()
    imbalance: Imbalance | None = None
    measured: Measured | None = None

    @property
    def best(self) -> Candidate | None:
        """The first candidate, or None when nothing fits."""
        return self.candidates[0] if self.candidates else None

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as in presets/schemas/plan.schema.json: sizes in GiB, times in seconds, null never NaN."""
        return record.plan_record(self)

    def to_frame(self) -> DataFrame:
        """One row per candidate as a pandas data frame (pandas is imported here)."""
        from advisor.report.frame import candidate_frame

        return candidate_frame(self.candidates)

    def plot_memory(self, rank: int = 1) -> Figure:
        """Memory of candidate `rank` as bars of GiB per term against the budget (matplotlib is imported here)."""
        from advisor.report.plots import memory_figure

        return memory_figure(self.candidates[rank - 1])

    def _repr_html_(self) -> str:
        from advisor.report.html import plan_html

        return plan_html(self)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one layout needs: verdict "fits", "oom" or "illegal"; `candidate` is None only when it is illegal.

    `imbalance` is what router statistics cost it, `measured` what a rate that somebody reached says beside it; None
    where neither is given.
    """

    request: Request
    verdict: Verdict
    candidate: Candidate | None
    findings: tuple[Finding, ...]
    imbalance: Imbalance | None = None
    measured: Measured | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as in presets/schemas/estimate.schema.json: sizes in GiB, times in seconds, null never NaN."""
        return record.estimate_record(self)

    def to_frame(self) -> DataFrame:
        """The candidate as a data frame of one row, none when the layout is illegal (pandas is imported here)."""
        from advisor.report.frame import candidate_frame

        return candidate_frame(() if self.candidate is None else (self.candidate,))

    def plot_memory(self) -> Figure:
        """Memory as bars of GiB per term against the budget (matplotlib is imported here); ValueError if illegal."""
        from advisor.report.plots import memory_figure

        if self.candidate is None:
            raise ValueError("an illegal layout has no memory to plot")
        return memory_figure(self.candidate)

    def _repr_html_(self) -> str:
        from advisor.report.html import estimate_html

        return estimate_html(self)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a layout is rejected or slower than the best, and what to do about it.

    `reasons` are ordered by weight; `nearest` is the feasible layout with the fewest and smallest changes (`changes`
    spells them); `dials` are single changes ranked by the tokens/s they bring; `best` is what plan would choose.
    """

    request: Request
    estimate: Estimate
    reasons: tuple[Reason, ...]
    nearest: Candidate | None
    changes: tuple[str, ...]
    dials: tuple[Dial, ...]
    best: Candidate | None

    def to_dict(self) -> dict[str, Any]:
        """JSON form: the estimate record with reasons, nearest, changes, dials and best added."""
        return record.explanation_record(self)

    def to_frame(self) -> DataFrame:
        """One row per dial as a pandas data frame (pandas is imported here)."""
        from advisor.report.frame import dial_frame

        return dial_frame(self.dials)

    def _repr_html_(self) -> str:
        from advisor.report.html import explanation_html

        return explanation_html(self)


@dataclass(frozen=True, slots=True)
class Scaling:
    """The best layout per GPU count; efficiency is tokens/s/GPU relative to the smallest feasible count."""

    request: Request
    batch_rule: Literal["fixed", "scaled"]
    points: tuple[ScalingPoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form: {schema_version, request, batch_rule, points:[{gpus, gbs, candidate, efficiency, ...}]}."""
        return record.scaling_record(self)

    def to_frame(self) -> DataFrame:
        """One row per GPU count as a pandas data frame (pandas is imported here)."""
        from advisor.report.frame import scaling_frame

        return scaling_frame(self.points)

    def _repr_html_(self) -> str:
        from advisor.report.html import scaling_html

        return scaling_html(self)
