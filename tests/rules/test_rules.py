"""The form of rules, columns against single rows, fixes that fix, and verdicts that are known."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.rules import document_lines, experts, findings, grid, job_findings, legality, rule_of, rules
from advisor.rules.rule import Case, nearest, nearest_grid, partial_columns
from advisor.search.stages import balanced_split
from advisor.spec.layout import (
    COLUMN_NAMES,
    RECOMPUTE_MODULES,
    CpComm,
    CudaGraph,
    Dispatcher,
    Fsdp,
    Knobs,
    Layout,
    table,
)
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

MODELS = ("minimax-m2", "deepseek-v3", "llama3-8b", "gpt-oss-20b", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b")
JOB = Workload()
H100 = make_cluster(load_system("dgx-h100"), 64)


def layout_of(name: str, cluster: Any = H100, **sizes: Any) -> Layout:
    values = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "gbs": 512} | sizes
    values.setdefault("sp", values["tp"] > 1)
    split = balanced_split(load_model(name), JOB, values["pp"], values["vpp"], 0)
    split = split or PipelineSplit(values["pp"], values["vpp"], (0,) * (values["pp"] * values["vpp"]))
    dp = max(1, cluster.gpus // (values["tp"] * values["pp"] * values["cp"]))
    edp = max(1, cluster.gpus // (values["etp"] * values["ep"] * values["pp"]))
    return Layout(**values, dp=dp, edp=edp, split=split)


def broken(name: str, layout: Layout, knobs: Knobs = Knobs(), cluster: Any = H100, job: Workload = JOB) -> set[str]:  # noqa: B008
    found = findings(load_model(name), cluster, job, layout, knobs)
    return {one.rule for one in found if one.severity == "stop"}


sizes = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 3, 8, 16]),
        "pp": st.sampled_from([1, 2, 4, 5]),
        "vpp": st.sampled_from([1, 2, 3]),
        "cp": st.sampled_from([1, 2, 8]),
        "ep": st.sampled_from([1, 2, 7, 8, 64]),
        "etp": st.sampled_from([1, 2, 3]),
        "mbs": st.sampled_from([1, 2, 3]),
        "gbs": st.sampled_from([96, 512, 513]),
        "sp": st.booleans(),
    }
)
knob_choices = st.builds(
    Knobs,
    recompute=st.sets(st.sampled_from(RECOMPUTE_MODULES)).map(lambda s: tuple(m for m in RECOMPUTE_MODULES if m in s)),
    full_uniform=st.sampled_from([0, 1]),
    full_block=st.sampled_from([0, 0, 2]),
    dispatcher=st.sampled_from(Dispatcher),
    ep_overlap=st.booleans(),
    delay_wgrad=st.booleans(),
    shared_expert_overlap=st.booleans(),
    fsdp=st.sampled_from(Fsdp),
    cuda_graph=st.sampled_from(CudaGraph),
    optimizer_offload=st.sampled_from([0.0, 1.0]),
    offload_layers=st.sampled_from([0, 0, 2, 500]),
    offload_modules=st.sampled_from([(), (), ("attn_proj",), ("core_attn", "attn_proj"), ("attn_norm", "moe_act")]),
    optimizer_instances=st.sampled_from([1, 2, 3]),
    cp_comm=st.sampled_from(CpComm),
    distributed_optimizer=st.booleans(),
    overlap_param_gather=st.booleans(),
    moment_dtype=st.sampled_from(["fp32", "bf16"]),
)
jobs = st.builds(
    Workload,
    seq_len=st.sampled_from([4096, 4100]),
    precision=st.sampled_from([PRECISIONS[name] for name in ("bf16", "fp32", "fp8-delayed", "mxfp8")]),
    optimizer=st.sampled_from(["adam", "muon"]),
    fp8_params=st.booleans(),
    capacity_factor=st.sampled_from([None, 1.0]),
    pad_to_capacity=st.booleans(),
    attention_dropout=st.sampled_from([0.0, 0.1]),
    mtp_depth=st.sampled_from([0, 1]),
)


def test_every_rule_has_the_one_form():
    ids = [one.id for one in rules()]
    assert len(ids) == len(set(ids))
    for one in rules():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", one.id)
        assert one.severity in {"stop", "silent", "slow", "info"}
        assert set(one.fields) <= set(COLUMN_NAMES)
        assert one.source
        assert one.targets
        assert rule_of(one.id) is one


@given(st.sampled_from(MODELS), jobs, st.lists(st.tuples(sizes, knob_choices), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_columns_and_single_rows_get_the_same_verdict(name, job, rows):
    model = load_model(name)
    layouts = [layout_of(name, **values) for values, _ in rows]
    knobs = [choice for _, choice in rows]
    verdicts = legality(model, H100, job, table(layouts, knobs))
    assert verdicts.legal.shape == (len(rows),)
    for i, (layout, choice) in enumerate(zip(layouts, knobs, strict=True)):
        alone = broken(name, layout, choice, job=job)
        assert {one for one in verdicts.masks if verdicts.mask(one)[i]} == alone
        assert bool(verdicts.legal[i]) == (not alone)
    assert sum(verdicts.counts.values()) == int((~verdicts.legal).sum())


@given(st.sampled_from(MODELS), jobs, sizes, knob_choices)
@settings(max_examples=60, deadline=None)
def test_findings_say_something_with_numbers_about_every_broken_rule(name, job, values, knobs):
    for one in findings(load_model(name), H100, job, layout_of(name, **values), knobs):
        assert len(one.message) > 20
        assert "{" not in one.message
        assert one.fix


class Watched:
    """Columns that remember which fields were read."""

    def __init__(self, columns: Any) -> None:
        self.columns, self.read = columns, set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.columns, name)


@pytest.mark.parametrize("one", rules(), ids=lambda one: one.id)
def test_rules_read_only_the_fields_they_declare(one):
    """The search asks a rule as soon as its declared fields are known; the other columns hold placeholders then."""
    for name in MODELS:
        for job in (JOB, replace(JOB, precision=PRECISIONS["fp8-delayed"], hidden_dropout=0.1, attention_dropout=0.1)):
            model = load_model(name)
            watched = Watched(table([layout_of(name, cp=2, tp=2)], [Knobs()]))
            one.broken(Case(model, H100, replace(job, fp8_params=True, mtp_depth=1), watched))
            assert watched.read - {"splits"} <= set(one.fields)


FIXABLE = {
    "world-divides-model-grid", "expert-grid-divides-world", "heads-divide-by-tp", "kv-groups-multiple-or-divisor",
    "sequence-divides-by-tp", "sequence-divides-by-cp", "experts-divide-by-ep", "expert-ffn-divides-by-etp",
    "gbs-divides-by-mbs-dp", "interleave-needs-pp", "moe-tp-needs-sp", "sp-needs-tp",
}  # fmt: skip


@given(st.sampled_from(["minimax-m2", "deepseek-v3", "llama3-8b"]), sizes)
@settings(max_examples=80, deadline=None)
def test_the_fix_repairs_what_the_rule_found(name, values):
    model = load_model(name)
    knobs = Knobs(dispatcher=Dispatcher.alltoall) if model.is_moe else Knobs()
    for one in findings(model, H100, JOB, layout_of(name, **values), knobs):
        if one.rule not in FIXABLE:
            continue
        fixed = dict(values)
        for part in one.fix.split(","):
            field, _, value = part.partition("=")
            fixed[field] = value == "true" if field == "sp" else int(value)
        assert one.rule not in broken(name, layout_of(name, **fixed), knobs), one


def test_nearest_is_nearest_in_ratio_and_never_the_value_itself():
    assert nearest("tp", 6, [1, 2, 4, 8]) == "tp=8"
    assert nearest("tp", 3, [1, 2, 4]) == "tp=4"
    assert nearest("tp", 1, [1]) == ""
    assert nearest("tp", 1, [1], "sp=false") == "sp=false"


def test_nearest_grid_changes_as_little_as_it_can():
    assert nearest_grid(64, tp=3, pp=1, cp=1) == "tp=4"
    assert nearest_grid(64, tp=1, pp=5, cp=1) == "pp=4"
    assert nearest_grid(64, tp=3, pp=5, cp=1) == "pp=4,tp=4"
    assert nearest_grid(8, ep=8, etp=1, pp=2) in {"ep=4", "pp=1"}


def test_folding_puts_experts_over_the_whole_stage():
    """MiniMax-M2, tp 2, ep 32 on 64 GPUs: ep exceeds nothing, and dp is 32, not 64 / (2 * 32) = 1."""
    layout = layout_of("minimax-m2", tp=2, ep=32)
    assert (layout.dp, layout.edp) == (32, 2)
    assert broken("minimax-m2", layout, Knobs(dispatcher=Dispatcher.alltoall)) == set()


@pytest.mark.parametrize(
    ("gpus", "values", "expected"),
    [
        (8, {"tp": 1, "pp": 2, "ep": 8}, {"expert-grid-divides-world"}),
        (8, {"tp": 4, "ep": 4}, set()),
        (8, {"tp": 2, "pp": 2, "ep": 2, "etp": 4}, {"expert-grid-divides-world"}),
        (16, {"tp": 4, "cp": 8}, {"world-divides-model-grid"}),
    ],
)
def test_reported_grids(gpus, values, expected):
    """Grids of public reports, checked there with initialize_model_parallel."""
    cluster = make_cluster(load_system("dgx-h100"), gpus)
    layout = layout_of("qwen3-30b-a3b", cluster, **values)
    assert broken("qwen3-30b-a3b", layout, Knobs(dispatcher=Dispatcher.alltoall), cluster) == expected


def test_pipeline_rank_order_needs_equal_data_parallel_sizes():
    cluster = replace(H100, rank_order="tp-cp-ep-pp-dp")
    knobs = Knobs(dispatcher=Dispatcher.alltoall)
    assert broken("minimax-m2", layout_of("minimax-m2", pp=2, ep=8), knobs, cluster) == {"pp-inside-needs-equal-dp"}
    assert broken("minimax-m2", layout_of("minimax-m2", pp=2, tp=8, ep=8), knobs, cluster) == set()
    assert broken("minimax-m2", layout_of("minimax-m2", pp=1, ep=8), knobs, cluster) == set()


@pytest.mark.parametrize(
    ("system", "precision", "runs"),
    [
        ("dgx-a100-80gb", "bf16", True),
        ("dgx-a100-80gb", "fp8-current", False),
        ("dgx-h100", "fp8-blockwise", True),
        ("dgx-h100", "mxfp8", False),
        ("dgx-h100", "nvfp4", False),
        ("dgx-b200", "mxfp8", True),
        ("dgx-b200", "nvfp4", True),
    ],
)
def test_precision_needs_its_gpu(system, precision, runs):
    cluster = make_cluster(load_system(system), 8)
    job = replace(JOB, precision=PRECISIONS[precision])
    found = broken("llama3-8b", layout_of("llama3-8b", cluster), cluster=cluster, job=job)
    assert ("gpu-runs-precision" not in found) == runs


def test_speed_rules_name_what_crosses_a_domain():
    found = findings(load_model("llama3-8b"), H100, JOB, layout_of("llama3-8b", tp=16), Knobs())
    assert [(one.rule, one.severity, one.fix) for one in found] == [("tp-inside-nvlink", "slow", "tp=8")]
    rack = make_cluster(load_system("gb200-nvl72"), 144, used_per_domain=72)
    layout = layout_of("minimax-m2", rack, ep=16, gbs=144)
    found = findings(load_model("minimax-m2"), rack, JOB, layout, Knobs(dispatcher=Dispatcher.alltoall))
    assert "ep-straddles-domains" in {one.rule for one in found}
    wide = replace(rack, used_per_domain=64, gpus=128)
    layout = layout_of("minimax-m2", wide, ep=16)
    found = findings(load_model("minimax-m2"), wide, JOB, layout, Knobs(dispatcher=Dispatcher.alltoall))
    assert "ep-straddles-domains" not in {one.rule for one in found}


@pytest.mark.parametrize(
    ("name", "module", "finding"),
    [
        ("llama3-8b", "layernorm", "recompute-module-absent"),
        ("llama3-8b", "moe", "recompute-module-absent"),
        ("minimax-m2", "mlp", "recompute-module-absent"),
        ("minimax-m2", "layernorm", None),
        ("deepseek-v3", "mlp", None),
        ("llama3-8b", "core_attn", "core-attn-recompute-fused"),
        ("llama3-8b", "moe_act", "moe-act-needs-experts"),
        ("minimax-m2", "mla_up_proj", "mla-up-proj-needs-mla"),
    ],
)
def test_recompute_modules_that_do_nothing_are_named(name, module, finding):
    model = load_model(name)
    knobs = Knobs(recompute=(module,), dispatcher=Dispatcher.alltoall if model.is_moe else Dispatcher.none)
    found = {one.rule for one in findings(model, H100, JOB, layout_of(name), knobs)}
    assert found == ({finding} if finding else set())


def test_hybridep_is_warned_about_beyond_an_nvlink_domain():
    """Public report: EP64 over 8-GPU domains is a topology error; the vendor's H100 recipes run it over RDMA."""
    name, b200 = "nemotron-3-super-120b-a12b", make_cluster(load_system("dgx-b200"), 64)
    for ep, expected in ((64, {"slow"}), (8, set())):
        found = findings(
            load_model(name), b200, JOB, layout_of(name, b200, ep=ep), Knobs(dispatcher=Dispatcher.hybridep)
        )
        assert {one.severity for one in found if one.rule == "hybridep-inside-nvlink"} == expected


def test_microbatch_groups_of_a_split_replace_pp():
    """m = 10 over pp 4 in groups of 5 runs; in groups of pp it does not."""
    layout = layout_of("llama3-8b", pp=4, vpp=2, tp=2, gbs=80)
    assert broken("llama3-8b", layout) == {"microbatches-divide-by-pp"}
    assert broken("llama3-8b", replace(layout, split=replace(layout.split, group=5))) == set()
    assert broken("llama3-8b", replace(layout, split=replace(layout.split, group=3))) == {"microbatches-divide-by-pp"}


def test_embedding_and_loss_may_each_have_a_stage_of_their_own():
    """Llama 3.1 405B, pp 16 vpp 8: 126 layers and 128 chunks, as in the vendor's recipe."""
    model = load_model("llama3.1-405b")
    layout = layout_of("llama3.1-405b", tp=4, pp=16, vpp=8)
    assert (layout.split.form, layout.split.layers) == ("account", (0, *[1] * 126, 0))
    assert broken("llama3.1-405b", layout) == set()
    assert balanced_split(model, JOB, 16, 9, 0) is None


@pytest.mark.parametrize(
    ("mode", "gigabytes", "above"),
    [("weights", 59, False), ("weights", 61, True), ("inference", 39, False), ("inference", 41, True),
     ("train", 29, False), ("train", 31, True)],
)  # fmt: skip
def test_lines_of_the_multi_node_document(mode, gigabytes, above):
    found = document_lines(mode, gigabytes * 1e9)
    assert [(one.rule, one.severity) for one in found] == ([("parameter-line", "info")] if above else [])
    assert all("assumed" in one.message and f"{gigabytes}.0 GB" in one.message for one in found)


def test_masks_are_as_small_as_what_they_read():
    columns = partial_columns({"tp": np.array([1, 3, 8]), "ep": np.array([[1], [7]])})
    verdicts = legality(load_model("minimax-m2"), H100, JOB, columns)
    assert verdicts.masks["kv-groups-multiple-or-divisor"].shape == (3,)
    assert verdicts.masks["experts-divide-by-ep"].shape == (2, 1)
    assert verdicts.legal.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "gpus", "values", "rule_id"),
    [
        ("deepseek-v3", 576, {"pp": 4, "ep": 32}, "expert-grid-divides-world"),
        ("qwen3-30b-a3b", 24, {"tp": 4, "ep": 16}, "expert-grid-divides-world"),
        ("deepseek-v2-lite", 24, {"etp": 4, "pp": 4}, "expert-grid-divides-world"),
        ("gpt-oss-120b", 64, {"tp": 8, "cp": 3}, "sequence-divides-by-tp"),
        ("qwen3-next-80b-a3b", 24, {"pp": 4, "cp": 3}, "linear-heads-divide-by-tp-cp"),
        ("gpt-oss-120b", 24, {"tp": 8, "cp": 2}, "world-divides-model-grid"),
        ("qwen3-30b-a3b", 24, {"tp": 3, "pp": 8, "cp": 1}, "kv-groups-multiple-or-divisor"),
    ],
)
def test_a_fix_breaks_no_shape_of_the_model(name, gpus, values, rule_id):
    """The nearest grid is one that heads, widths, experts and the sequence divide by as well."""
    cluster = make_cluster(load_system("dgx-h100"), gpus)
    model, layout = load_model(name), layout_of(name, cluster, **values)
    found = {one.rule: one for one in findings(model, cluster, JOB, layout, Knobs())}
    changes = {field: int(value) for field, value in (part.split("=") for part in found[rule_id].fix.split(","))}
    fixed = layout_of(name, cluster, **values | changes)
    shapes = {one.id for one in (*grid.WORLD, *grid.SHAPES, *experts.SIZES) if one.severity == "stop"}
    after = {one.rule for one in findings(model, cluster, JOB, fixed, Knobs())} & shapes
    assert rule_id not in after
    assert after <= set(found)


def test_rules_about_the_job_are_asked_first():
    assert [bool(one.fields) for one in rules()] == sorted(bool(one.fields) for one in rules())
    a100 = make_cluster(load_system("dgx-a100-80gb"), 8)
    job = replace(JOB, precision=PRECISIONS["fp8-current"])
    assert [one.rule for one in job_findings(load_model("llama3-8b"), a100, job)] == ["gpu-runs-precision"]
    assert job_findings(load_model("llama3-8b"), H100, JOB) == ()
