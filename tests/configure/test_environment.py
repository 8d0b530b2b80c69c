"""Environment variables by job: the conditions under which the vendor's recipes set them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from advisor.configure.environment import traits, variables
from advisor.configure.job import preset
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp, Knobs
from tests.configure.test_overlap import job

HYBRID, DEEP, ALL = Dispatcher.hybridep, Dispatcher.deepep, Dispatcher.alltoall


def values(**kwargs: Any) -> dict[str, str]:
    return {one.name: one.value for one in variables(job(**kwargs))}


@pytest.mark.parametrize(
    ("kwargs", "connections"),
    [
        ({"tp": 4}, "1"),
        ({"cp": 2}, "1"),
        ({"pp": 4}, "32"),
        ({"tp": 4, "system": "dgx-b200"}, "32"),
        ({"tp": 4, "knobs": Knobs(fsdp=Fsdp.optim_grads_params)}, "32"),
        ({"model": "deepseek-v3", "tp": 2, "ep": 8, "knobs": Knobs(dispatcher=ALL, ep_overlap=True)}, "8"),
        ({"model": "deepseek-v3", "tp": 2, "ep": 8, "knobs": Knobs(dispatcher=DEEP, ep_overlap=True)}, "32"),
        ({"model": "deepseek-v3", "tp": 2, "ep": 8, "knobs": Knobs(dispatcher=HYBRID)}, "1"),
        ({"model": "deepseek-v3", "ep": 8, "knobs": Knobs(dispatcher=HYBRID)}, "32"),
    ],
)
def test_connections(kwargs: dict[str, Any], connections: str) -> None:
    assert values(**kwargs)["CUDA_DEVICE_MAX_CONNECTIONS"] == connections


def test_hybridep_gets_the_domain_of_the_system() -> None:
    knobs = Knobs(dispatcher=HYBRID)
    node = values(model="deepseek-v3", ep=32, knobs=knobs, dp=64)
    assert (node["NVLINK_DOMAIN_SIZE"], node["USE_MNNVL"]) == ("8", "0")
    assert node["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "8"
    rack = values(model="deepseek-v3", ep=64, knobs=knobs, dp=64, system="gb200-nvl72")
    assert (rack["NVLINK_DOMAIN_SIZE"], rack["USE_MNNVL"]) == ("72", "1")
    assert rack["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "64"
    assert rack["NCCL_NET_GDR_LEVEL"] == "PHB"
    small = values(model="deepseek-v3", ep=4, knobs=knobs, dp=64)
    assert small["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "4"
    assert "USE_MNNVL" not in values(model="deepseek-v3", ep=8, knobs=Knobs(dispatcher=DEEP))


def test_full_iteration_graphs_change_allocator_and_streams() -> None:
    plain, graph = values(), values(knobs=Knobs(cuda_graph=CudaGraph.full_iteration))
    assert plain["TORCH_NCCL_AVOID_RECORD_STREAMS"] == "1"
    assert graph["TORCH_NCCL_AVOID_RECORD_STREAMS"] == "0"
    assert "graph_capture_record_stream_reuse:True" in graph["PYTORCH_CUDA_ALLOC_CONF"]
    assert plain["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_expandable_segments_come_with_graph_register_off() -> None:
    for found in (values(), values(knobs=Knobs(cuda_graph=CudaGraph.scoped))):
        assert found["NCCL_GRAPH_REGISTER"] == "0"


def test_conditions_name_known_traits_and_every_row_has_a_reason() -> None:
    every = set(traits(job(model="deepseek-v3", tp=2, pp=2, ep=8, knobs=Knobs(dispatcher=HYBRID, ep_overlap=True))))
    every |= {"sm100", "fsdp", "full_iteration", "rack", "large_dense", "nvfp4", "b300", "grace", "inference",
             "fine_offload"}  # fmt: skip
    for name, rows in preset("launch/environment.yaml")["variables"].items():
        for row in rows:
            assert {word.lstrip("-") for word in row["when"]} <= every, name
            assert row["why"]


def test_norm_margins_are_the_same_forward_and_backward() -> None:
    found = values(tp=4)
    assert found["NVTE_FWD_LAYERNORM_SM_MARGIN"] == found["NVTE_BWD_LAYERNORM_SM_MARGIN"] == "20"
    serving = job()
    serving = replace(serving, workload=replace(serving.workload, mode="inference"))
    assert "NVTE_FWD_LAYERNORM_SM_MARGIN" not in {one.name for one in variables(serving)}
