"""What a step waits for beside transfers and kernels: ranks of a collective, gaps between kernels, a host launching."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from advisor.cost.profile import Profile, load_profile
from advisor.cost.step import step
from advisor.spec.layout import Knobs, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.plan import StepEstimate
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of

MODEL = load_model("llama3-8b")
CLUSTER = make_cluster(load_system("dgx-b200"), 8)


def of(values: dict[str, float], knobs: Knobs, workload: Workload, **sizes: int) -> StepEstimate:
    profile: Profile = load_profile(CLUSTER.gpu)
    changed = {name: replace(profile.coefficients[name], value=value) for name, value in values.items()}
    profile = replace(profile, coefficients=MappingProxyType({**profile.coefficients, **changed}))
    columns = table([layout_of(MODEL, 8, **sizes)], [knobs])
    return step(MODEL, CLUSTER, workload, columns, profile).detail(0)


@pytest.mark.parametrize(("tp", "others"), [(1, 0), (2, 1), (8, 7)])
def test_blocking_collectives_wait_for_every_other_rank(tp: int, others: int) -> None:
    """Ten collectives per layer with sequence parallelism: two regions, two forward and three backward each."""
    workload = Workload(seq_len=4096, tp_async=False)
    with_it, without = (
        of({"collective_wait_s": wait}, Knobs(), workload, tp=tp, gbs=8) for wait in (5e-6, 0.0)
    )  # fmt: skip
    microbatches = 8 // (8 // tp)
    expected = microbatches * MODEL.num_layers * 10 * others * 5e-6
    more = with_it.terms["exposed_tp"].value - without.terms["exposed_tp"].value
    assert more == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_user_buffers_do_not_wait_for_all() -> None:
    workload, knobs = Workload(seq_len=4096), Knobs(tp_overlap=True)
    one, other = (of({"collective_wait_s": wait}, knobs, workload, tp=8, gbs=8) for wait in (5e-6, 0.0))
    assert one.step_s == other.step_s


def test_gaps_between_kernels_come_once_per_layer_and_microbatch() -> None:
    workload = Workload(seq_len=4096)
    one, other = (of({"layer_gap_s": gap}, Knobs(), workload, gbs=16) for gap in (2e-4, 0.0))
    more = one.terms["compute_memory_bound"].value - other.terms["compute_memory_bound"].value
    assert more == pytest.approx(2 * MODEL.num_layers * 2e-4)


def test_a_host_that_lags_launches_recomputed_layers_again() -> None:
    workload = Workload(seq_len=128)
    slow = {"host_dense_layer_s": 4e-3}
    plain, again = (of(slow, Knobs(full_uniform=on), workload, gbs=16) for on in (0, 1))
    assert again.step_s - plain.step_s == pytest.approx(2 * MODEL.num_layers * 0.4 * 4e-3, rel=0.01)


def test_fused_addition_of_expert_gradients_costs_nothing_of_its_own() -> None:
    model = load_model("qwen3-30b-a3b")
    columns = table([layout_of(model, 8, gbs=64)] * 2, [Knobs(grad_dtype="fp32"), Knobs(grad_dtype="bf16")])
    fp32, bf16 = (
        [step(model, CLUSTER, Workload(seq_len=4096, grad_accumulation_fused=fused), columns,
              load_profile(CLUSTER.gpu)).detail(i).terms["compute_memory_bound"].value for fused in (True, False)]
        for i in (0, 1)
    )  # fmt: skip
    fused, separate = fp32[0] - bf16[0], fp32[1] - bf16[1]
    assert 0 < fused < 0.2 * separate, "expert weights are most of the model"
