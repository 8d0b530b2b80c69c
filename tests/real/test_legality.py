"""Legality against the real thing: initialize_model_parallel and the TransformerConfig of megatron-core 0.16.1.

Random cases must get the same verdict from the rules and from Megatron. Rules that fire outside these two (argument
parser of Megatron-LM, Transformer Engine, layers while they are built, experience) are named in `ELSEWHERE`, each with
a case of its own that the constructor lets pass.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("megatron.core")

from advisor.rules import rule_of, rules
from advisor.spec.hardware import Cluster
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, Knobs
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import DeltaNet, DenseMlp, Layer, Mamba, Model, SparseIndexer
from advisor.spec.precision import PRECISIONS
from advisor.spec.split import PipelineSplit
from tests.real.judges import (
    DENSE,
    EXPERTS,
    GQA,
    JOB,
    MLA,
    MOE,
    Case,
    accepts_config,
    accepts_grid,
    build_config,
    make_layout,
    make_model,
)
from tests.real.random_jobs import random_grids, random_jobs

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:full scope is deprecated")]

GRID = {
    "world-divides-model-grid",
    "expert-grid-divides-world",
    "pp-inside-needs-equal-dp",
    "interleave-needs-pp",
    "instances-divide-dp",
}
CONSTRUCTOR = {
    "heads-divide-by-tp",
    "kv-groups-multiple-or-divisor",
    "sp-needs-tp",
    "ep-needs-experts",
    "moe-bias-needs-etp1",
    "deepep-without-padding",
    "padding-needs-capacity",
    "shared-overlap-needs-alltoall",
    "ep-overlap-needs-ep",
    "ep-overlap-needs-alltoall",
    "ep-overlap-needs-vpp",
    "ep-overlap-needs-16-bit",
    "ep-overlap-without-full-recompute",
    "ep-overlap-xor-shared-overlap",
    "ep-overlap-one-mtp",
    "ep-overlap-mtp-needs-pp",
    "ep-overlap-without-full-graph",
    "delay-wgrad-needs-ep-overlap",
    "mla-up-proj-needs-mla",
    "moe-act-needs-experts",
    "shared-recompute-xor-shared-overlap",
    "delayed-fp8-without-output-recompute",
    "layer-offload-forbids-pp",
    "layer-offload-forbids-recompute",
    "layer-offload-below-layers",
    "graph-without-layer-offload",
    "fine-offload-xor-layer-offload",
    "fine-offload-projection-with-attention",
    "full-recompute-needs-full-graph",
    "router-graph-without-moe-recompute",
    "scoped-graph-without-synced-dispatch",
    "graph-without-dropout-recompute",
    "full-graph-without-mlp-dropout-recompute",
    "split-deals-all-layers",
    "layers-divide-by-pp",
    "modules-on-last-virtual-stage",
}


@pytest.fixture
def without_einops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups inside optimizer instances need einops to be built; their sizes are checked before that."""
    from megatron.core import parallel_state

    monkeypatch.setattr(parallel_state, "create_hierarchical_groups", lambda *_, **__: ([None, None], [None, None]))


@pytest.fixture(scope="module")
def with_engine() -> Iterator[None]:
    """Version questions about Transformer Engine are answered yes: the rules are about layouts, not about installs."""
    from megatron.core.transformer import transformer_config

    patch = pytest.MonkeyPatch()
    patch.setattr(transformer_config, "is_te_min_version", lambda *_, **__: True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    patch.undo()


def test_random_grids_get_megatrons_verdict(without_einops: None) -> None:
    counts: Counter[str] = Counter()
    for case in random_grids(2000, seed=1):
        broken = case.broken() & GRID
        assert accepts_grid(case) == (not broken), (case.layout, case.knobs.optimizer_instances, broken)
        counts.update(broken or {"legal"})
    assert counts["legal"] > 500
    assert set(counts) >= GRID


def test_smallest_world_is_pp_times_lcm_of_both_grids() -> None:
    """Folding: ep takes no part in dp, so 64 GPUs hold pp 2 with ep 32 and dp 32."""
    cluster = make_cluster(load_system("dgx-h100"), 64)
    case = Case(MOE, make_layout(pp=2, ep=32), Knobs(dispatcher=Dispatcher.alltoall), cluster=cluster)
    assert accepts_grid(case)
    assert not case.broken() & GRID
    assert (case.layout.dp, case.layout.edp) == (32, 1)


def test_random_jobs_get_the_constructors_verdict(with_engine: None) -> None:
    counts: Counter[str] = Counter()
    for case in random_jobs(3000, seed=2):
        broken = case.broken() & CONSTRUCTOR
        assert accepts_config(case) == (not broken), (broken, case)
        counts.update(broken or {"legal"})
    assert counts["legal"] > 600
    # Cannot come up here: every layer is dealt to some chunk, so only a file could hold a wrong sum.
    assert CONSTRUCTOR - set(counts) <= {"split-deals-all-layers"}


def with_layer(mixer: Any) -> Model:
    """A dense model whose second kind of layer has this mixer."""
    kinds = (Layer(GQA, DENSE), Layer(mixer, DENSE))
    return Model("toy", "toy", 512, 1024, kinds, (0, 1) * 4, False)


def cluster_of(system: str, gpus: int = 64) -> Cluster:
    return make_cluster(load_system(system), gpus)


A2A = Knobs(dispatcher=Dispatcher.alltoall)
FP8 = replace(JOB, precision=PRECISIONS["fp8-current"], fp8_params=True)
HYBRID = Model("toy", "toy", 512, 1024, (Layer(GQA, None, 1), Layer(None, DENSE, 1)), (0, 1) * 4, False)

ELSEWHERE: dict[str, Case] = {
    "linear-heads-divide-by-tp-cp": Case(with_layer(DeltaNet(6, 12, 32, 32, 4)), make_layout(tp=4), Knobs()),
    "mamba-heads-divide-by-tp": Case(with_layer(Mamba(8, 64, 16, 2, 4)), make_layout(tp=4), Knobs()),
    "mamba-heads-divide-by-cp": Case(with_layer(Mamba(12, 64, 16, 1, 4)), make_layout(cp=8), Knobs()),
    "ffn-divides-by-tp": Case(make_model(mlp=DenseMlp(1022)), make_layout(tp=4), Knobs()),
    "shared-ffn-divides-by-tp": Case(make_model(mlp=replace(EXPERTS, shared_ffn=258)), make_layout(tp=4), A2A),
    "expert-ffn-divides-by-etp": Case(make_model(mlp=replace(EXPERTS, ffn=258)), make_layout(etp=4), A2A),
    "moe-tp-needs-sp": Case(MOE, make_layout(tp=2, sp=False), A2A),
    "sequence-divides-by-tp": Case(make_model(), make_layout(tp=4), Knobs(), replace(JOB, seq_len=258)),
    "learned-positions-cover-sequence": Case(make_model(position_embeddings=128), make_layout(), Knobs()),
    "experts-divide-by-ep": Case(make_model(mlp=replace(EXPERTS, experts=12)), make_layout(ep=8), A2A),
    "sequence-divides-by-cp": Case(make_model(), make_layout(cp=4), Knobs(), replace(JOB, seq_len=252)),
    "cp-a2a-heads": Case(make_model(), make_layout(cp=8), Knobs(cp_comm=CpComm.a2a)),
    "a2a-p2p-needs-hierarchy": Case(make_model(), make_layout(cp=2), Knobs(cp_comm=CpComm.a2a_p2p)),
    "cp-window-needs-all-keys": Case(make_model(replace(GQA, window=64)), make_layout(cp=2), Knobs()),
    "cp-sinks-need-a2a": Case(make_model(replace(GQA, sinks=True)), make_layout(cp=2), Knobs()),
    "cp-indexer-needs-all-gather": Case(
        make_model(replace(MLA, indexer=SparseIndexer(4, 32, 64))), make_layout(cp=2), Knobs()
    ),
    "gbs-divides-by-mbs-dp": Case(make_model(), make_layout(gbs=96), Knobs()),
    "layers-fill-stages": Case(
        make_model(), make_layout(pp=8, vpp=2, split=PipelineSplit(8, 2, (1,) * 8 + (0,) * 8, "layout")), Knobs()
    ),
    "pp2-interleave-needs-overlap": Case(make_model(), make_layout(pp=2, vpp=2), Knobs(overlap_p2p=False)),
    "microbatches-divide-by-pp": Case(make_model(), make_layout(pp=4, vpp=2, gbs=16 * 6), Knobs()),
    "hybrid-split-by-pattern": Case(HYBRID, make_layout(pp=2, split=PipelineSplit(2, 1, (5, 3), "uneven")), Knobs()),
    "moe-needs-dispatcher": Case(MOE, make_layout(ep=8), Knobs()),
    "deepep-needs-ep": Case(MOE, make_layout(), Knobs(dispatcher=Dispatcher.deepep)),
    "deepep-runs-on-gpu": Case(
        MOE, make_layout(ep=8), Knobs(dispatcher=Dispatcher.deepep), cluster=cluster_of("rtx-5090-8x-pcie")
    ),
    "hybridep-runs-on-gpu": Case(
        MOE, make_layout(etp=1), Knobs(dispatcher=Dispatcher.hybridep), cluster=cluster_of("rtx-5090-8x-pcie")
    ),
    "rack-needs-hybridep": Case(
        MOE, make_layout(72, ep=8, gbs=144), Knobs(dispatcher=Dispatcher.deepep), cluster=cluster_of("gb300-nvl72", 72)
    ),
    "ep-overlap-without-moe-recompute": Case(MOE, make_layout(ep=8), replace(A2A, ep_overlap=True, recompute=("moe",))),
    "ep-overlap-fsdp-without-scoped-graph": Case(
        MOE, make_layout(ep=8), replace(A2A, ep_overlap=True, fsdp=Fsdp.optim, cuda_graph=CudaGraph.scoped)
    ),
    "full-recompute-one-method": Case(make_model(), make_layout(), Knobs(full_uniform=1, full_block=1)),
    "full-graph-needs-static-experts": Case(MOE, make_layout(ep=8), replace(A2A, cuda_graph=CudaGraph.full_iteration)),
    "fine-offload-inside-recomputed-experts": Case(
        MOE, make_layout(ep=8), replace(A2A, recompute=("moe",), offload_modules=("expert_fc1",))
    ),
    "param-gather-needs-distopt": Case(make_model(), make_layout(), Knobs(distributed_optimizer=False)),
    "param-gather-needs-grad-reduce": Case(make_model(), make_layout(), Knobs(overlap_grad_reduce=False)),
    "instances-need-distopt": Case(
        make_model(),
        make_layout(),
        Knobs(distributed_optimizer=False, overlap_param_gather=False, optimizer_instances=2),
    ),
    "offload-needs-precision-aware": Case(
        make_model(),
        make_layout(),
        Knobs(distributed_optimizer=False, overlap_param_gather=False, optimizer_offload=1.0),
    ),
    "precision-aware-needs-adam": Case(
        make_model(), make_layout(), Knobs(moment_dtype="bf16"), replace(JOB, optimizer="muon")
    ),
    "offload-fp8-params-need-delayed": Case(make_model(), make_layout(), Knobs(optimizer_offload=1.0), FP8),
    "fp8-params-need-distopt": Case(
        make_model(), make_layout(), Knobs(distributed_optimizer=False, overlap_param_gather=False), FP8
    ),
    "fp8-params-need-fp8": Case(make_model(), make_layout(), Knobs(), replace(JOB, fp8_params=True)),
    "fsdp-needs-plain-optimizer": Case(
        make_model(), make_layout(), Knobs(fsdp=Fsdp.optim), replace(JOB, optimizer="muon")
    ),
    "gpu-runs-precision": Case(
        make_model(),
        make_layout(),
        Knobs(),
        replace(JOB, precision=PRECISIONS["fp8-current"]),
        cluster_of("dgx-a100-80gb"),
    ),
    "fp8-shapes-divide": Case(
        make_model(mlp=DenseMlp(1048)), make_layout(tp=4), Knobs(), replace(JOB, precision=PRECISIONS["fp8-current"])
    ),
}


NEWER = "context-parallel-needs-newer-core"
ALSO = {"rack-needs-hybridep": {"deepep-runs-on-gpu"}, "cp-indexer-needs-all-gather": {NEWER}}
"""Rules that no case can break alone: every known rack holds GPUs on which deepep does not run, and 0.16 runs no
sparse attention over context-parallel ranks."""


def test_every_stop_rule_is_either_compared_or_a_named_difference() -> None:
    stop = {one.id for one in rules() if one.severity == "stop" or one.versions == "0.16"}
    assert stop == GRID | CONSTRUCTOR | set(ELSEWHERE) | {NEWER}
    assert not (GRID | CONSTRUCTOR) & set(ELSEWHERE)


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_named_difference_is_enforced_elsewhere(name: str, with_engine: None, without_einops: None) -> None:
    """The rule and no other fires, while group set-up and constructor of megatron-core 0.16.1 let the case pass."""
    case = ELSEWHERE[name]
    assert case.broken() - {name} == ALSO.get(name, set())
    assert name in case.broken()
    assert accepts_grid(case)
    assert accepts_config(case)


@pytest.mark.parametrize("variant", ["gated_delta_net", "dsa"])
def test_this_core_refuses_context_parallelism_that_later_ones_take(variant: str, with_engine: None) -> None:
    """The one difference in the other direction: a finding of severity info, not a rejection."""
    mixer = (
        DeltaNet(8, 8, 32, 32, 4) if variant == "gated_delta_net" else replace(MLA, indexer=SparseIndexer(4, 32, 64))
    )
    case = Case(with_layer(mixer), make_layout(cp=2), Knobs(cp_comm=CpComm.all_gather))
    words = {
        "experimental_attention_variant": variant,
        "linear_attention_freq": 2,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
    }
    assert case.broken() == {NEWER}
    assert rule_of(NEWER).severity == "info"
    with pytest.raises(AssertionError, match="context parallel"):
        build_config(case, **words)
    assert build_config(replace(case, layout=make_layout()), **words)
