"""What is asked and what holds, by hand: the table that was measured on the real classes, and every reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from advisor.configure.answer import by_hand, overlap_answer
from advisor.configure.job import Job
from advisor.configure.overlap import resolve
from advisor.configure.resolved import Asked, asked_of
from advisor.errors import InputError
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Knobs, Layout
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.workload import Workload
from tests.configure.jobs import any_split
from tests.conftest import Ran


def job(model: str = "llama3-70b", system: str = "dgx-h100", knobs: Knobs | None = None, **sizes: Any) -> Job:
    values = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": 2} | sizes
    sp = values.pop("sp", values["tp"] > 1)
    layout = Layout(
        **values, etp=1, edp=1, mbs=1, gbs=64, sp=sp, split=any_split(values["pp"], values["vpp"])
    )  # fmt: skip
    found = load_system(system)
    cluster = replace(make_cluster(found, found.gpus_per_node), gpus=layout.gpus)
    return Job(load_model(model), cluster, Workload(seq_len=4096), layout, knobs or Knobs())


BUCKET_PARAMETERS = 134_217_728
# Rows that were read off CommOverlapConfig.setup() of megatron-bridge 0.3.1 and 0.6.2.
MEASURED = [
    ({"tp": 4, "pp": 4, "vpp": 2, "dp": 2}, True, (True, False), BUCKET_PARAMETERS, True, True),
    ({"tp": 4, "pp": 4, "dp": 2}, True, (False, True), BUCKET_PARAMETERS, True, False),
    ({"tp": 1, "pp": 4, "vpp": 2, "dp": 2}, False, (True, False), BUCKET_PARAMETERS, True, True),
    ({"tp": 4, "dp": 1}, True, (False, False), None, False, False),
    ({"tp": 2, "dp": 8, "sp": False}, False, (False, False), BUCKET_PARAMETERS, True, False),
]


@pytest.mark.parametrize(("sizes", "tensor", "pipeline", "bucket", "data", "aligned"), MEASURED)
def test_the_measured_table(
    sizes: dict[str, Any], tensor: bool, pipeline: tuple[bool, bool], bucket: int | None, data: bool, aligned: bool
) -> None:
    found = resolve(job(**sizes), Asked(tp_comm_overlap=True))
    held = {one.path: one.effective for one in found.fields}
    assert held["model.tp_comm_overlap"] is tensor
    assert (held["model.overlap_p2p_comm"], held["model.batch_p2p_comm"]) == pipeline
    assert held["ddp.bucket_size"] == bucket
    assert held["ddp.overlap_grad_reduce"] is held["ddp.overlap_param_gather"] is data
    assert held["ddp.align_param_gather"] is aligned
    assert held["optimizer.overlap_param_gather_with_optimizer_step"] is False


@pytest.mark.parametrize(
    ("sizes", "asked", "word"),
    [
        ({"tp": 1}, {}, "TP is 1"),
        ({"tp": 2, "sp": False}, {}, "sequence parallelism"),
        ({"tp": 2}, {"transformer_engine": None}, "Transformer Engine"),
    ],
)
def test_tensor_overlap_is_lost_silently_with_the_first_reason(
    sizes: dict[str, Any], asked: dict[str, Any], word: str
) -> None:
    one = resolve(job(**sizes), Asked(tp_comm_overlap=True, **asked)).field("model.tp_comm_overlap")
    assert (one.requested, one.effective, one.outcome) == (True, False, "silent")
    assert word in one.reason


@pytest.mark.parametrize(
    ("sizes", "asked", "path"),
    [
        ({"pp": 4}, {"overlap_p2p_comm": True, "batch_p2p_comm": False}, "model.overlap_p2p_comm"),
        ({"pp": 4}, {"overlap_p2p_comm": True}, "model.overlap_p2p_comm"),
        ({"pp": 4}, {"defer_embedding_wgrad_compute": True}, "model.defer_embedding_wgrad_compute"),
        ({}, {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 0}, "model.defer_embedding_wgrad_compute"),
    ],
)
def test_what_megatron_refuses_later(sizes: dict[str, Any], asked: dict[str, Any], path: str) -> None:
    one = resolve(job(**sizes), Asked(**asked)).field(path)
    assert (one.outcome, one.stopped_by) == ("stop", "megatron")


EXPERTS = Knobs(dispatcher=Dispatcher.alltoall)


@pytest.mark.parametrize(
    ("sizes", "knobs", "word"),
    [
        ({"ep": 1}, {}, "EP is 1"),
        ({"ep": 8, "pp": 4}, {}, "without VPP"),
        ({"ep": 8}, {"full_uniform": 1}, "full recompute"),
        ({"ep": 8}, {"recompute": ("moe",)}, "recomputed"),
        ({"ep": 8}, {"shared_expert_overlap": True}, "shared-expert"),
        ({"ep": 8}, {"dispatcher": Dispatcher.allgather}, "allgather"),
    ],
)
def test_expert_overlap_is_refused_with_its_reason(sizes: dict[str, Any], knobs: dict[str, Any], word: str) -> None:
    asked = Asked(overlap_moe_expert_parallel_comm=True)
    one = resolve(job("deepseek-v3", knobs=replace(EXPERTS, **knobs), **sizes), asked).field(
        "model.overlap_moe_expert_parallel_comm"
    )
    assert one.outcome == "stop"
    assert word in one.reason


def test_recomputed_experts_are_unchecked_by_the_older_bridge() -> None:
    of = job("deepseek-v3", knobs=replace(EXPERTS, recompute=("moe",)), ep=8)
    asked = Asked(overlap_moe_expert_parallel_comm=True)
    path = "model.overlap_moe_expert_parallel_comm"
    assert resolve(of, replace(asked, target="0.3")).field(path).stopped_by == "megatron"
    assert resolve(of, replace(asked, target="0.6")).field(path).stopped_by == "bridge"


def test_delayed_weight_gradients_need_expert_overlap() -> None:
    of = job("deepseek-v3", knobs=EXPERTS, ep=8)
    alone = resolve(of, Asked(delay_wgrad_compute=True)).field("model.delay_wgrad_compute")
    both = Asked(delay_wgrad_compute=True, overlap_moe_expert_parallel_comm=True)
    assert alone.stopped_by == "bridge"
    assert resolve(of, both).field("model.delay_wgrad_compute").outcome == "asked"
    old = resolve(of, replace(both, transformer_engine="2.6")).field("model.delay_wgrad_compute")
    assert (old.stopped_by, "2.7" in old.reason) == ("bridge", True)


@pytest.mark.parametrize(
    ("system", "backend", "held"),
    [
        ("dgx-h100", Dispatcher.deepep, Dispatcher.deepep),
        ("dgx-b200", Dispatcher.deepep, Dispatcher.deepep),
        ("gb200-nvl72", Dispatcher.deepep, Dispatcher.alltoall),
        ("gb200-nvl72", Dispatcher.hybridep, Dispatcher.hybridep),
        ("azure-nd96isr-mi300x-v5", Dispatcher.hybridep, Dispatcher.alltoall),
    ],
)
def test_flex_backends_fall_back_by_gpu(system: str, backend: Dispatcher, held: Dispatcher) -> None:
    found = resolve(job("deepseek-v3", system, Knobs(dispatcher=backend), ep=4), Asked())
    assert found.effective.dispatcher is held
    outcome = found.field("model.moe_flex_dispatcher_backend").outcome
    assert outcome == ("asked" if held is backend else "silent")


def test_a_flex_backend_switches_shared_expert_overlap_off() -> None:
    knobs = Knobs(dispatcher=Dispatcher.hybridep, shared_expert_overlap=True)
    found = resolve(job("deepseek-v3", knobs=knobs, ep=8), Asked())
    assert found.field("model.moe_shared_expert_overlap").outcome == "silent"
    assert not found.effective.shared_expert_overlap


def test_without_distributed_optimizer_requests_are_lost() -> None:
    found = resolve(job(knobs=Knobs(distributed_optimizer=False), dp=4), Asked(bucket_size=1000))
    assert found.field("ddp.bucket_size").outcome == "silent"


def test_a_value_by_hand_wins_and_says_what_bridge_would_do() -> None:
    one = resolve(job(dp=4), Asked(bucket_size=40_000_000)).field("ddp.bucket_size")
    assert (one.effective, one.outcome) == (40_000_000, "asked")
    assert str(BUCKET_PARAMETERS) in one.reason


def test_full_iteration_graphs_are_spelled_by_version() -> None:
    of = job(knobs=Knobs(cuda_graph=CudaGraph.full_iteration))
    old = {one.path: one.effective for one in resolve(of, Asked(target="0.3")).fields}
    new = {one.path: one.effective for one in resolve(of, Asked(target="0.6")).fields}
    assert (old["model.cuda_graph_impl"], old["model.cuda_graph_scope"]) == ("local", ("full_iteration",))
    assert new["model.cuda_graph_impl"] == "full_iteration"
    assert old["rerun_state_machine.check_for_nan_in_loss"] is False
    assert old["model.use_te_rng_tracker"] is old["rng.te_rng_tracker"] is True


@pytest.mark.parametrize(("tp", "cp", "sizes"), [(1, 16, (8, 2)), (2, 8, (4, 2)), (8, 4, (1, 4))])
def test_two_level_context_exchange_stays_inside(tp: int, cp: int, sizes: tuple[int, int]) -> None:
    of = job(knobs=Knobs(cp_comm=CpComm.a2a_p2p), tp=tp, cp=cp)
    assert resolve(of, Asked()).field("model.hierarchical_context_parallel_sizes").effective == sizes


def test_every_field_has_a_reason_and_a_source() -> None:
    for one in resolve(job("deepseek-v3", knobs=EXPERTS, tp=2, pp=4, vpp=2, cp=2, ep=4), Asked()).fields:
        assert one.reason
        assert one.source.startswith(("MB:", "ML:"))


def test_knobs_at_their_default_are_left_to_bridge() -> None:
    assert asked_of(Knobs()).given() == {"tp_comm_overlap": False}
    assert asked_of(Knobs(overlap_p2p=False)).overlap_p2p_comm is False


LLAMA = {"tp": 4, "pp": 4, "vpp": 5, "seq_len": 8192}


def test_gains_are_the_difference_of_two_steps() -> None:
    answer = overlap_answer("llama3-70b", 64, LLAMA, {})  # type: ignore[arg-type]
    by_name = {one.name: one for one in answer.gains}
    one = by_name["tp_overlap"]
    assert one.now
    assert one.with_s is not None
    assert one.without_s is not None
    assert one.saved_s == pytest.approx(one.without_s - one.with_s)
    assert one.low_s is not None
    assert one.high_s is not None
    assert 0 < one.low_s < one.saved_s < one.high_s
    assert answer.step is not None
    assert one.with_s == pytest.approx(answer.step.step_s)
    assert by_name["cp_comm a2a"].note == "CP is 1"


def test_what_is_lost_does_not_count_as_a_gain() -> None:
    answer = overlap_answer("llama3-70b", 64, {**LLAMA, "sp": False, "tp_overlap": True}, {})  # type: ignore[arg-type]
    assert answer.negative
    assert not next(one for one in answer.gains if one.name == "tp_overlap").now


def test_virtual_stages_trade_bubble_for_memory() -> None:
    answer = overlap_answer("llama3-70b", 256, {**LLAMA, "tp": 8}, {})  # type: ignore[arg-type]
    rows = answer.interleavings
    assert [one.vpp for one in rows] == sorted({one.vpp for one in rows})
    assert rows[0].bubble_s > rows[-1].bubble_s
    assert sum(one.chosen for one in rows) == 1
    fastest = min((one for one in rows if one.fits), key=lambda one: one.step_s)
    assert fastest.chosen
    assert all(one.imbalance >= 1 for one in rows)


def test_words_are_checked() -> None:
    assert by_hand({"wgrad_deferral_limit": "4", "te_version": "none", "target_version": "0.3.1"}) == {
        "wgrad_deferral_limit": 4, "transformer_engine": None, "target": "0.3",
    }  # fmt: skip
    for bad in (
        {"wgrad_deferral_limit": "-3"},
        {"te_version": "new"},
        {"target_version": "2"},
        {"tp_comm_overlap_cfg": "ub"},
    ):
        with pytest.raises(InputError):
            by_hand(bad)


def test_command_line(cli: Callable[..., Ran]) -> None:
    words = ["overlap", "--model", "llama3-70b", "--gpus", "64", "--tp", "4", "--pp", "4", "--vpp", "2"]
    ran = cli(*words)
    assert ran.code == 0
    assert "everything asked for takes effect" in ran.out
    assert cli(*words, "--explain").out.count("environment of every rank") == 1
    lost = cli(*words, "--no-sp")
    assert lost.code == 1
    assert "silently lost: model.tp_comm_overlap" in lost.out
    assert cli(*words, "--bucket-size", "none").code == 2
    assert cli(*words, "--format", "json").out.startswith("{")


def test_latent_attention_loses_user_buffers() -> None:
    asked = resolve(job("deepseek-v3", knobs=EXPERTS, tp=2, ep=8), Asked(tp_comm_overlap=True))
    lost = asked.field("model.tp_comm_overlap")
    assert (lost.requested, lost.effective, lost.outcome) == (True, False, "silent")
    assert "latent attention" in lost.reason
    assert not asked.effective.tp_overlap
    assert not asked.buffers.gemms
