"""Formulae of single terms against arithmetic by hand (bytes per token of one layer, bytes per parameter)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.cost.activations import expert_rows, layer_activations
from advisor.cost.buffers import nccl_bytes, workspace_bytes
from advisor.cost.inference import cache_bytes
from advisor.cost.memory import TERMS, memory
from advisor.cost.mixers import mixer_transient
from advisor.cost.params import layer_params
from advisor.cost.placeholders import placeholder_bytes
from advisor.cost.stages import representative_stages
from advisor.cost.states import stored_weight_bytes
from advisor.cost.tensors import local
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, Knobs, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import ExpertMlp, Layer, Model
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload
from advisor.units import GIB
from tests.cost.layouts import layout_of

TOKENS = 4096
H100 = load_system("dgx-h100")


def per_token(name: str, kind: int, knobs: Knobs, workload: Workload | None = None) -> float:
    """Saved bytes per token of one layer at tp 1."""
    model = load_model(name)
    columns = table([layout_of(model, 8)], [knobs])
    return float(layer_activations(model.kinds[kind], model, workload or Workload(), columns).saved[0]) / TOKENS


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("llama3-8b", 0, 139_392),
        ("llama3-70b", 0, 274_688),
        ("llama3.1-405b", 0, 520_704),
        ("mixtral-8x7b", 0, 241_904),
        ("qwen3-30b-a3b", 0, 115_488),
        ("qwen3-235b-a22b", 0, 226_208),
        ("minimax-m2", 0, 194_016),
        ("deepseek-v3", 0, 340_608),
        ("deepseek-v3", 1, 458_656),
    ],
)
def test_saved_bytes_per_token(name, kind, expected):
    """Figures computed tensor by tensor from Megatron-Core and Transformer Engine at 067f987 / d0067d0."""
    assert per_token(name, kind, Knobs()) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("modules", "kib"),
    [
        ((), 447.9),
        (("layernorm",), 419.9),
        (("moe_act",), 415.9),
        (("mla_up_proj",), 319.9),
        (("layernorm", "moe_act", "mla_up_proj"), 259.9),
    ],
)
def test_selective_recompute_of_a_deepseek_layer(modules, kib):
    assert per_token("deepseek-v3", 1, Knobs(recompute=modules)) / 1024 == pytest.approx(kib, rel=2e-3)


def test_layernorm_recompute_is_free_of_effect_where_norms_are_fused():
    assert per_token("llama3-8b", 0, Knobs(recompute=("layernorm",))) == per_token("llama3-8b", 0, Knobs())


def test_unfused_attention_keeps_five_bytes_per_score_with_dropout():
    workload = Workload(attention_impl="unfused", attention_dropout=0.1)
    extra = per_token("llama3-8b", 0, Knobs(), workload) - per_token("llama3-8b", 0, Knobs())
    assert extra == 5 * 32 * TOKENS - 4 * 32


@pytest.mark.parametrize(
    ("knobs", "bytes_per_parameter"),
    [
        (Knobs(distributed_optimizer=False), 18.0),
        (Knobs(), 6 + 12 / 8),
        (Knobs(grad_dtype="bf16"), 4 + 12 / 8),
        (Knobs(grad_dtype="bf16", moment_dtype="bf16"), 4 + 6 / 8),
        (Knobs(optimizer_offload=1.0), 6.0),
        (Knobs(optimizer_instances=2), 6 + 12 / 4),
        (Knobs(fsdp=Fsdp.optim_grads_params), 18 / 8),
    ],
)
def test_state_bytes_per_parameter(knobs, bytes_per_parameter):
    model = load_model("llama3-8b")
    detail = memory(model, make_cluster(H100, 8), Workload(), table([layout_of(model, 8)], [knobs])).detail(0)
    states = sum(detail.terms[name].value for name in ("weights", "gradients", "optimizer"))
    assert states / 8_030_261_248 == pytest.approx(bytes_per_parameter, rel=1e-4)


def test_quantised_weights_are_kept_beside_bf16_unless_they_are_the_parameters():
    model = load_model("llama3-8b")
    columns = table([layout_of(model, 8)], [Knobs()])
    sizes = {}
    for system in ("dgx-h100", "dgx-b200"):
        for stored in (False, True):
            workload = Workload(precision=PRECISIONS["fp8-current"], fp8_params=stored)
            detail = memory(model, make_cluster(load_system(system), 8), workload, columns).detail(0)
            sizes[system, stored] = detail.terms["weights"].value
    linear = 8_030_261_248 - 2 * 128256 * 4096
    assert sizes["dgx-h100", False] - sizes["dgx-h100", True] == pytest.approx(2 * linear, rel=1e-6)
    assert sizes["dgx-h100", False] - sizes["dgx-b200", False] == pytest.approx(linear, rel=1e-6)
    for mode, stored, each in (
        ("inference", True, 1),
        ("inference", False, 3),
        ("weights", True, 1),
        ("weights", False, 2),
    ):
        workload = Workload(precision=PRECISIONS["fp8-current"], fp8_params=stored, mode=mode)
        detail = memory(model, make_cluster(H100, 8), workload, columns).detail(0)
        assert detail.terms["weights"].value == pytest.approx(each * linear + 2 * 2 * 128256 * 4096, rel=1e-4)


def test_placeholders_exist_once_per_shape():
    """Two kinds of layers (dense and experts) share their attention shapes; experts add a pair, not one each."""
    model = load_model("deepseek-v3")
    columns = table([layout_of(model, 8, ep=8)], [Knobs()])
    (stage,) = representative_stages(model, columns, 0)
    h, attention = 7168, 7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168
    # One expert and the shared expert have the same width, but are divided by different groups and counted apart.
    expected = 2 * (attention + 3 * h * 18432 + 2 * 3 * h * 2048)
    assert placeholder_bytes(model, Workload(), columns, stage)[0] == expected
    assert placeholder_bytes(model, Workload(grad_accumulation_fused=False), columns, stage)[0] == 0


def test_expert_rows_by_routing():
    model = load_model("qwen3-30b-a3b")
    mlp = model.moe
    assert mlp is not None
    columns = table([layout_of(model, 8, ep=8)], [Knobs()])

    def rows(workload: Workload) -> float:
        return float(expert_rows(mlp, workload, local(workload, columns))[0]) / (TOKENS * 8)

    assert rows(Workload()) == 1
    assert rows(Workload(routing="dropless", router_skew=1.7)) == 1.7
    assert rows(Workload(routing="token-drop", router_skew=1.7, capacity_factor=1.2)) == 1.2
    assert rows(Workload(routing="token-drop", router_skew=1.0, capacity_factor=1.2)) == 1.0
    assert rows(Workload(routing="token-drop", capacity_factor=1.5, pad_to_capacity=True)) == 1.5


def test_expert_tensor_parallelism_gathers_rows_and_splits_widths():
    """With etp every rank holds the rows of all etp ranks and 1 / etp of each expert's width."""
    model = load_model("mixtral-8x7b")
    plain = table([layout_of(model, 8, tp=2, ep=4, etp=1)], [Knobs()])
    split = table([layout_of(model, 8, tp=2, ep=4, etp=2)], [Knobs()])
    kind = model.kinds[0]
    one = layer_activations(kind, model, Workload(), plain).saved[0]
    two = layer_activations(kind, model, Workload(), split).saved[0]
    assert two - one == 2 * TOKENS / 2 * (2 * 4096 + 4)


def test_kv_cache_of_minimax_per_token():
    model = load_model("minimax-m2")
    workload = Workload(mode="inference", batch=1, context=TOKENS)
    columns = table([layout_of(model, 16, tp=2, ep=8)], [Knobs()])
    cache = sum(
        count * float(cache_bytes(kind, workload, columns)[0])
        for kind, count in zip(model.kinds, model.count, strict=True)
    )
    assert cache / TOKENS == 124 * 1024


def test_kv_heads_are_replicated_beyond_their_number():
    """8 key-value heads on 16 ranks: every rank keeps one, as many as on 8 ranks."""
    model = load_model("llama3-70b")
    workload = Workload(mode="inference", batch=4, context=TOKENS)
    caches = [
        cache_bytes(model.kinds[0], workload, table([layout_of(model, 16, tp=tp)], [Knobs()]))[0] for tp in (4, 8, 16)
    ]
    assert caches[0] == 2 * caches[1]
    assert caches[1] == caches[2]


def test_communicators_are_counted():
    model = load_model("qwen3-30b-a3b")
    one = nccl_bytes(model, Workload(), table([layout_of(model, 1)], [Knobs()]))[0]
    data_parallel = nccl_bytes(model, Workload(), table([layout_of(model, 8)], [Knobs()]))[0]
    exchange = nccl_bytes(
        model, Workload(), table([layout_of(model, 8, ep=8)], [Knobs(dispatcher=Dispatcher.alltoall)])
    )[0]
    registered = nccl_bytes(
        model, Workload(), table([layout_of(model, 8, ep=8)], [Knobs(dispatcher=Dispatcher.hybridep)])
    )[0]
    assert one == 0
    # World, data parallel and expert data parallel; then world, data parallel and expert parallel.
    assert data_parallel == registered == 3 * 342e6
    assert exchange == registered + 3.3e9


def test_every_device_term_is_visible_with_its_kind():
    model = load_model("qwen3-30b-a3b")
    knobs = Knobs(dispatcher=Dispatcher.hybridep, cuda_graph=CudaGraph.full_iteration)
    columns = table([layout_of(model, 8, ep=8)], [knobs])
    detail = memory(model, make_cluster(H100, 8), Workload(), columns).detail(0)
    assert tuple(detail.terms) == TERMS
    outside = ("context", "nccl", "ep_buffers", "cuda_graph_pool", "fragmentation")
    assert all(detail.terms[name].value > 0 for name in outside)
    assert {detail.terms[name].kind for name in outside} <= {"measured", "assumed"}
    allocated = sum(term.value for name, term in detail.terms.items() if name not in outside)
    assert allocated == pytest.approx(detail.peak_allocated_bytes)


def test_host_memory_of_a_staged_checkpoint():
    """744e9 parameters on 16 nodes of 4: 650 GB of host memory per node at the first save (radixark/Megatron-LM#61)."""
    model = load_model("glm-5")
    system = replace(H100, gpus_per_node=4)
    columns = table([layout_of(model, 64, tp=8, pp=4, ep=16, etp=1)], [Knobs()])
    workers = 4 * 2 * 2e9
    staged = memory(model, make_cluster(system, 64), Workload(), columns).host_bytes[0] - workers
    assert staged == pytest.approx(650e9, rel=0.15)


def test_unsharded_units_of_fsdp_and_offloaded_state():
    model = load_model("llama3-8b")
    sharded = table([layout_of(model, 8)], [Knobs(fsdp=Fsdp.optim_grads_params)])
    detail = memory(model, make_cluster(H100, 8), Workload(), sharded).detail(0)
    layer = 218_112_000
    assert detail.terms["param_gather"].value == 2 * (2 + 4) * layer
    columns = table([layout_of(model, 8)] * 2, [Knobs(), Knobs(optimizer_offload=0.5)])
    found = memory(model, make_cluster(H100, 8), Workload(), columns)
    # Half of 12 bytes per parameter leaves the device; it is pinned on the host with as much of fp32 gradients.
    assert (found.allocated_bytes[0] - found.allocated_bytes[1]) / 8_030_261_248 == pytest.approx(6 / 8, rel=1e-4)
    assert np.diff(found.host_bytes)[0] == pytest.approx(8 * 8 / 8 * 8_030_261_248, rel=1e-4)


def test_reading_a_single_rank():
    """The last rank, which writes Megatron's logs, holds fewer microbatches than the first."""
    model = load_model("llama3-8b")
    columns = table([layout_of(model, 8, pp=4, gbs=64)], [Knobs()])
    cluster = make_cluster(H100, 8)
    first, last, worst = (memory(model, cluster, Workload(), columns, rank=rank) for rank in (0, -1, None))
    assert first.detail(0).worst_stage == 0
    assert last.detail(0).worst_stage == 3
    assert worst.allocated_bytes[0] == max(first.allocated_bytes[0], last.allocated_bytes[0])
    assert last.allocated_bytes[0] < first.allocated_bytes[0] - GIB


def test_context_parallel_buffers_by_exchange():
    """Bytes of attention's backward beyond p2p = 4 kv: all-gather 2 cp kv, all-to-all 2 (q + out + kv)."""
    model = load_model("llama3-8b")
    row = layout_of(model, 8, cp=4)
    kinds = (CpComm.p2p, CpComm.all_gather, CpComm.a2a, CpComm.a2a_p2p)
    columns = table([row] * 4, [Knobs(cp_comm=kind) for kind in kinds])
    sizes = mixer_transient(model.kinds[0], model, columns, local(Workload(), columns))
    kv, queries, tokens = 8 * 256, 32 * 256, TOKENS / 4
    base = sizes[0] - 2 * 4 * kv * tokens
    expected = (4 * kv, 8 * kv, 2 * (queries + kv), 4 * kv + 2 * (queries + kv))
    np.testing.assert_allclose(sizes - base, 2 * np.array(expected) * tokens)


def test_tensor_parallel_overlap_registers_buffers():
    model = load_model("llama3-70b")
    row = layout_of(model, 8, tp=4)
    plain, overlapped = nccl_bytes(model, Workload(), table([row] * 2, [Knobs(), Knobs(tp_overlap=True)]))
    assert overlapped - plain == 8 * 2 * 8192 * TOKENS


MOE_LAYERS = [
    ("deepseek", "bf16", Dispatcher.alltoall, 3.4428),
    ("deepseek", "fp8-blockwise", Dispatcher.alltoall, 4.4129),
    ("deepseek", "fp8-blockwise", Dispatcher.deepep, 3.7074),
    ("deepseek", "bf16", Dispatcher.hybridep, 2.4244),
    ("mixtral", "bf16", Dispatcher.alltoall, 2.8902),
    ("mixtral", "fp8-blockwise", Dispatcher.alltoall, 3.0959),
    ("mixtral", "fp8-blockwise", Dispatcher.deepep, 3.0954),
    ("mixtral", "bf16", Dispatcher.hybridep, 2.8896),
]
"""GB of one layer, EP8, 4096 tokens (Megatron-LM:tests/functional_tests/test_cases/common/moe_perf@d98e8a64)."""


def moe_layer_gb(name: str, precision: str, dispatcher: Dispatcher) -> float:
    """Weights, bf16 gradients, saved tensors, backward and dispatch of a single mixture-of-experts layer."""
    mlp = ExpertMlp(32, 8, 2048, shared_ffn=2048) if name == "deepseek" else ExpertMlp(8, 2, 14336)
    kind = Layer(None, mlp, norms=0)
    model = Model(name, "proxy", 7168 if name == "deepseek" else 4096, 32000, (kind,), (0,), False)
    workload = Workload(precision=PRECISIONS[precision])
    columns = table([layout_of(model, 8, ep=8)], [Knobs(dispatcher=dispatcher)])
    held = layer_params(kind, model, columns)
    cluster = make_cluster(H100, 8)
    parameters = float((held.dense + held.expert)[0])
    one = layer_activations(kind, model, workload, columns)
    buffers = float((one.saved + one.transient + one.dispatch)[0]) + workspace_bytes(model, cluster, workload)
    return (parameters * (stored_weight_bytes(workload, cluster)[1] + 2) + buffers) / 1e9


def test_single_expert_layers_are_within_a_fifth():
    """A sanity figure: the test bench behind it also holds inputs and first-iteration gradients that no job has."""
    errors = {case[:3]: moe_layer_gb(*case[:3]) / case[3] - 1 for case in MOE_LAYERS}
    assert max(abs(error) for error in errors.values()) < 0.22, errors
    assert abs(errors["deepseek", "bf16", Dispatcher.alltoall]) < 0.05
    assert abs(errors["deepseek", "bf16", Dispatcher.hybridep]) < 0.05
