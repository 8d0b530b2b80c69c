"""Hardware queues: as many as a layout needs cost nothing, another number loses the overlap that rests on it."""

from __future__ import annotations

import dataclasses

import pytest

from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.spec.layout import CpComm, Dispatcher, Fsdp, Knobs, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.plan import StepEstimate
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

GPUS = 16
DENSE, EXPERTS = "llama3-8b", "qwen3-30b-a3b"


def priced(model: str, knobs: Knobs, system: str = "dgx-h100", *, gpus: int = GPUS, workload: Workload | None = None,
           **sizes: int) -> StepEstimate:  # fmt: skip
    card, cluster = load_model(model), make_cluster(load_system(system), gpus)
    columns = table([layout_of(card, gpus, **({"gbs": 64} | sizes))], [knobs])
    return step(card, cluster, workload or Workload(), columns, load_profile(cluster.gpu)).detail(0)


def queued(connections: int | None, model: str, knobs: Knobs, system: str = "dgx-h100", **sizes: int) -> StepEstimate:
    return priced(model, knobs, system, workload=Workload(connections=connections), **sizes)


PLAIN, BUFFERS = Knobs(), Knobs(tp_overlap=True)
A2A = Knobs(dispatcher=Dispatcher.alltoall)
OVERLAPPED = dataclasses.replace(A2A, ep_overlap=True)


@pytest.mark.parametrize(
    ("model", "knobs", "sizes", "needed"),
    [
        (DENSE, PLAIN, {"tp": 2}, 1),
        (DENSE, BUFFERS, {"tp": 4, "pp": 2}, 1),
        (DENSE, PLAIN, {"cp": 2}, 1),
        (DENSE, PLAIN, {}, 32),
        (EXPERTS, OVERLAPPED, {"ep": 8}, 32),
        (EXPERTS, OVERLAPPED, {"tp": 2, "ep": 8}, 8),
        (DENSE, Knobs(fsdp=Fsdp.optim_grads_params), {}, 8),
    ],
)
def test_what_a_layout_needs_costs_what_saying_nothing_costs(model, knobs, sizes, needed) -> None:
    assert queued(needed, model, knobs, **sizes).step_s == queued(None, model, knobs, **sizes).step_s


def test_several_queues_before_blackwell_show_what_runs_beside_gradients() -> None:
    for knobs, hidden in ((PLAIN, 0.0), (BUFFERS, 1.0)):
        kept, lost = queued(1, DENSE, knobs, tp=2), queued(8, DENSE, knobs, tp=2)
        assert lost.step_s > kept.step_s
        assert (lost.hidden_s["tp"] > 0) is bool(hidden), "what is pipelined beside its own product stays hidden"
        assert lost.exposed_s["tp"] + lost.hidden_s["tp"] == pytest.approx(kept.exposed_s["tp"] + kept.hidden_s["tp"])
    assert queued(8, DENSE, PLAIN, "dgx-b200", tp=2).step_s == queued(1, DENSE, PLAIN, "dgx-b200", tp=2).step_s
    sharded = Knobs(fsdp=Fsdp.optim_grads_params)
    assert queued(8, DENSE, sharded, tp=2).step_s == queued(None, DENSE, sharded, tp=2).step_s


def test_several_queues_before_blackwell_show_the_whole_ring() -> None:
    kept, lost = queued(1, DENSE, PLAIN, cp=2), queued(8, DENSE, PLAIN, cp=2)
    assert lost.hidden_s["cp"] == 0.0 < kept.hidden_s["cp"]
    blocking = dataclasses.replace(PLAIN, cp_comm=CpComm.a2a)
    assert queued(8, DENSE, blocking, cp=2).exposed_s["cp"] == queued(1, DENSE, blocking, cp=2).exposed_s["cp"]


def test_one_queue_without_tensor_parallelism_serialises_data_parallel_traffic() -> None:
    apart = Knobs(overlap_grad_reduce=False, overlap_param_gather=False)
    assert queued(1, DENSE, PLAIN).step_s == pytest.approx(queued(None, DENSE, apart).step_s)
    assert queued(1, DENSE, PLAIN).step_s > queued(8, DENSE, PLAIN).step_s
    assert queued(1, DENSE, PLAIN, "dgx-b200").step_s == queued(8, DENSE, PLAIN, "dgx-b200").step_s


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-b200"])
def test_one_queue_keeps_the_measured_share_of_what_the_expert_overlap_hides(system: str) -> None:
    """NVIDIA/Megatron-LM pull 6311: 3.7 % of gain with 1, 7.8 % with 32."""
    plain, one, many = (
        queued(None, EXPERTS, A2A, system, ep=16, gbs=128).exposed_s["ep"],
        queued(1, EXPERTS, OVERLAPPED, system, ep=16, gbs=128).exposed_s["ep"],
        queued(32, EXPERTS, OVERLAPPED, system, ep=16, gbs=128).exposed_s["ep"],
    )
    assert (plain - one) / (plain - many) == pytest.approx(3.7 / 7.8, rel=0.002)


def test_experts_reached_by_nvlink_but_told_otherwise_cross_the_network() -> None:
    knobs = Knobs(dispatcher=Dispatcher.hybridep)
    shape = {"gpus": 64, "ep": 32, "gbs": 256, "system": "gb200-nvl72"}
    right = priced(EXPERTS, knobs, **shape)
    told = priced(EXPERTS, knobs, workload=Workload(ep_domain=4), **shape)
    same = priced(EXPERTS, knobs, workload=Workload(ep_domain=64), **shape)
    assert told.exposed_s["ep"] > 2 * right.exposed_s["ep"]
    assert same.step_s == pytest.approx(right.step_s)
