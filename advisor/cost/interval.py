"""The 80 % interval of a predicted step: committed quantiles of the error on runs of the same class."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from advisor import data
from advisor.cost.profile import Profile
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Columns, CudaGraph
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.model import Model
from advisor.spec.plan import StepEstimate
from advisor.spec.precision import Precision
from advisor.spec.workload import Workload

QUANTILES = "intervals.yaml"


@lru_cache(maxsize=1)
def _quantiles() -> dict[str, Any]:
    return read_yaml_mapping(data.require("profiles", QUANTILES))


def forget() -> None:
    """Read the quantiles anew when they are asked for next: their file has changed."""
    _quantiles.cache_clear()


ARCHITECTURES = {"a100": "ampere", "a800": "ampere", "h100": "hopper", "h200": "hopper", "h800": "hopper"}


def error_class(model: Model, profile: Profile, precision: Precision) -> str:
    """Class of runs that erred alike: dense, experts or hybrid, on one architecture, quantised or not.

    Dense models in 16 bit are one class on all of them. GPUs without fitted rates are a class of their own.
    """
    family = "hybrid" if model.is_hybrid else "moe" if model.is_moe else "dense"
    if profile.gemm["bf16"].kind != "fitted":
        return f"{family}-assumed"
    width = "low" if precision.quantised else "16bit"
    if (family, width) == ("dense", "16bit"):
        return "dense-16bit"
    return f"{family}-{ARCHITECTURES.get(profile.gpu.name.split('-')[0], 'blackwell')}-{width}"


def widening(workload: Workload, model: Model, cluster: Cluster, columns: Columns, unknown: bool) -> float:
    """By how much what is unknown of a job widens its interval.

    An eager mixture of experts (host time), a shared network, and a recipe whose graphs, dispatcher, routing or
    recompute are not stated (`unknown`).
    """
    widen = _quantiles()["widen"]
    factor = 1.0
    if model.is_moe and bool((columns.cuda_graph == CudaGraph.none).all()):
        factor *= float(widen["eager_moe"])
    if cluster.oversubscription > 1:
        factor *= float(widen["oversubscribed"])
    return factor * (float(widen["unknown_recipe"]) if unknown else 1.0)


def interval(
    workload: Workload, model: Model, cluster: Cluster, columns: Columns, profile: Profile, *,
    kind: str | None = None, unknown: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """Factors (low, high) on the step seconds of a one-row table between which 80 % of measured runs lie.

    `kind` names a class of runs of its own instead of `error_class`; `unknown` says that parts of the recipe are
    assumed. Real dropless routing makes the upper end slower. Source: errors of runs whose model was left out of the
    fit, see profiles/intervals.yaml.
    """
    classes = _quantiles()["classes"]
    entry = classes.get(kind) or classes.get(error_class(model, profile, workload.precision)) or _widest(model, classes)
    low, high = float(entry["low"]), float(entry["high"])
    if model.is_moe and workload.routing == "dropless" and workload.router is None and workload.router_skew == 1.0:
        high *= float(_quantiles()["widen"]["dropless_slower"])
    factor = widening(workload, model, cluster, columns, unknown)
    return 1 - (1 - low) * factor, 1 + (high - 1) * factor


def _widest(model: Model, classes: dict[str, Any]) -> dict[str, Any]:
    """For a class of too few runs: the family's class without any."""
    found: dict[str, Any] = classes[f"{'hybrid' if model.is_hybrid else 'moe' if model.is_moe else 'dense'}-assumed"]
    return found


def shifted(step: StepEstimate, factor: float, left: float) -> StepEstimate:
    """A step corrected by measured runs: everything times `factor`, of the interval the share `left` remains."""
    low, high = (step.step_s + left * (end - step.step_s) for end in (step.low_s, step.high_s))
    return replace(
        step,
        step_s=step.step_s * factor,
        low_s=low * factor,
        high_s=high * factor,
        bubble_s=step.bubble_s * factor,
        terms=MappingProxyType({name: replace(term, value=term.value * factor) for name, term in step.terms.items()}),
        exposed_s=MappingProxyType({name: value * factor for name, value in step.exposed_s.items()}),
        hidden_s=MappingProxyType({name: value * factor for name, value in step.hidden_s.items()}),
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu / factor,
        tflops_per_gpu=step.tflops_per_gpu / factor,
        mfu=step.mfu / factor,
        mfu_bf16=step.mfu_bf16 / factor,
    )
