"""The 80 % interval of a predicted step: committed quantiles of the error on runs of the same class."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from advisor import data
from advisor.cost.profile import Profile
from advisor.errors import InputError
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Columns, CudaGraph
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.model import Model
from advisor.spec.workload import Workload

QUANTILES = "intervals.yaml"


@lru_cache(maxsize=1)
def _quantiles() -> dict[str, Any]:
    path = data.find("profiles", QUANTILES)
    if path is None:
        raise InputError(f"profiles/{QUANTILES} is missing from this installation", "reinstall the package")
    return read_yaml_mapping(path)


def error_class(model: Model, profile: Profile) -> str:
    """Class of runs that erred alike: dense, experts or hybrid, on a GPU with fitted or only assumed rates."""
    family = "hybrid" if model.is_hybrid else "moe" if model.is_moe else "dense"
    fitted = profile.gemm["bf16"].kind == "fitted"
    return f"{family}-{'fitted' if fitted else 'assumed'}"


def interval(
    workload: Workload, model: Model, cluster: Cluster, columns: Columns, profile: Profile
) -> tuple[float, float]:
    """Factors (low, high) on the step seconds of a one-row table between which 80 % of measured runs lie.

    Unknowns widen the interval by their own factor: real dropless routing, an eager mixture of experts (host time),
    a network with oversubscription. Source: leave-one-model-out errors of profiles/runs, see profiles/intervals.yaml.
    """
    table = _quantiles()
    entry = table["classes"][error_class(model, profile)]
    low, high = float(entry["low"]), float(entry["high"])
    widen = table["widen"]
    factor = 1.0
    if model.is_moe and workload.routing == "dropless" and workload.router_skew == 1.0:
        high *= float(widen["dropless_slower"])
    if model.is_moe and bool((columns.cuda_graph == CudaGraph.none).all()):
        factor *= float(widen["eager_moe"])
    if cluster.oversubscription > 1:
        factor *= float(widen["oversubscribed"])
    return 1 - (1 - low) * factor, 1 + (high - 1) * factor
