"""Intervals: classes, and that what is unknown makes them wider."""

from __future__ import annotations

import pytest

from advisor.cost.interval import error_class, interval
from advisor.cost.profile import load_profile
from advisor.spec.layout import CudaGraph, Dispatcher, Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload


def bounds(model_name="qwen3-30b-a3b", system="dgx-h100", graph=CudaGraph.full_iteration, oversubscription=1.0, **work):
    model = load_model(model_name)
    layout = Layout(
        tp=1, pp=1, vpp=1, cp=1, ep=8 if model.is_moe else 1, etp=1, dp=8, edp=1, mbs=1, gbs=8, sp=False,
        split=PipelineSplit(1, 1, (model.num_layers,)),
    )  # fmt: skip
    knobs = Knobs(dispatcher=Dispatcher.alltoall if model.is_moe else Dispatcher.none, cuda_graph=graph)
    cluster = make_cluster(load_system(system), 8, oversubscription=oversubscription)
    columns = table([layout], [knobs])
    return interval(Workload(**work), model, cluster, columns, load_profile(cluster.gpu))


def width(*args, **kwargs) -> float:
    low, high = bounds(*args, **kwargs)
    assert low < 1 < high
    return high - low


def test_classes_tell_families_and_fitted_gpus_apart() -> None:
    h100, h20, bf16, fp8 = load_profile("h100"), load_profile("h20"), PRECISIONS["bf16"], PRECISIONS["fp8-current"]
    assert error_class(load_model("llama3-8b"), h100, bf16) == "dense-16bit"
    assert error_class(load_model("llama3-8b"), h100, fp8) == "dense-hopper-low"
    assert error_class(load_model("qwen3-30b-a3b"), h20, bf16) == "moe-assumed"
    assert error_class(load_model("nemotron-3-nano-30b-a3b"), h100, bf16) == "hybrid-hopper-16bit"


@pytest.mark.parametrize(
    "less_known",
    [
        {"system": "dgx-h200"},
        {"graph": CudaGraph.none},
        {"oversubscription": 2.0},
        {"routing": "dropless"},
    ],
)
def test_unknowns_widen(less_known) -> None:
    assert width(**less_known) > width()


def test_experts_are_less_certain_than_dense_models() -> None:
    assert width("qwen3-30b-a3b") > width("llama3-8b")


def test_a_stated_skew_replaces_the_doubt_about_routing() -> None:
    assert bounds(routing="dropless", router_skew=1.3) == bounds()


def test_dense_models_do_not_care_about_graphs_of_experts() -> None:
    assert bounds("llama3-8b", graph=CudaGraph.none) == bounds("llama3-8b")
