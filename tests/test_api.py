"""The Python functions: what they answer, in which form, and what they say to bad input."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import jsonschema
import pytest

import advisor
from advisor import api, data
from advisor.errors import AdvisorError, InputError, UnknownNameError
from advisor.search.rank import EQUAL_TIME
from advisor.spec.load.system import load_system, system_names

HEAVY = ("torch", "megatron", "pandas", "optuna", "scipy", "matplotlib")


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("ADVISOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def plan():
    return advisor.plan(model="minimax-m2", gpus=64)


@pytest.fixture(scope="module")
def vendor_plan():
    return advisor.plan(model="llama3-70b", gpus=64, seq_len=8192, fix="tp=4", top=3)


def _schema(name):
    return json.loads(data.find("presets", f"schemas/{name}.schema.json").read_text())


def _validate(record, name):
    text = json.dumps(record, allow_nan=False)
    jsonschema.Draft202012Validator(_schema(name)).validate(json.loads(text))


@pytest.mark.parametrize("name", ["plan", "estimate"])
def test_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(_schema(name))


def test_a_plan_follows_its_schema(plan, vendor_plan):
    for one in (plan, vendor_plan):
        _validate(one.to_dict(), "plan")
    assert plan.to_dict()["baseline"] is None
    assert vendor_plan.to_dict()["baseline"]["layout"]["tp"] == 4
    assert vendor_plan.baseline_name == "llama3_70b_pretrain_64gpu_h100_bf16_config"


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"tp": 2, "ep": 32}, "oom"),
        ({"tp": 2, "ep": 32, "grad_dtype": "bf16", "moment_dtype": "bf16", "recompute": "full"}, "fits"),
        ({"tp": 7, "ep": 32}, "illegal"),
        ({"tp": 2, "ep": 32, "mode": "weights"}, "fits"),
        ({"tp": 2, "ep": 32, "mode": "inference", "batch": 8, "context": 4096}, "fits"),
    ],
)
def test_an_estimate_follows_its_schema(options, verdict):
    found = advisor.estimate("minimax-m2", 64, **options)
    assert found.verdict == verdict
    assert (found.candidate is None) == (verdict == "illegal")
    record = found.to_dict()
    _validate(record, "estimate")
    if verdict == "illegal":
        assert [one["rule"] for one in record["findings"] if one["severity"] == "stop"]
    elif options.get("mode"):
        assert record["candidate"]["step"] is None
        assert record["candidate"]["mfu"] is None


@pytest.mark.parametrize(
    "breakage",
    [
        lambda record: record["candidates"][0].pop("layout"),
        lambda record: record["candidates"][0]["memory"].update(peak_device_gib=None),
        lambda record: record["candidates"][0]["step"]["terms_s"].update(magic={"value": 1, "kind": "assumed"}),
        lambda record: record["candidates"][0]["memory"]["terms_gib"]["weights"].update(kind="guessed"),
        lambda record: record.update(searched=-1),
    ],
)
def test_the_schema_can_fail(plan, breakage):
    record = json.loads(json.dumps(plan.to_dict()))
    breakage(record)
    with pytest.raises(jsonschema.ValidationError):
        _validate(record, "plan")


def test_terms_sum_to_their_totals(plan, vendor_plan):
    candidates = [*plan.candidates, *plan.pareto, *plan.families, *vendor_plan.candidates, vendor_plan.baseline]
    assert len(candidates) > 15
    for candidate in candidates:
        record = api.Plan.to_dict(plan)["candidates"][0] if candidate is None else _record(candidate)
        memory, step = record["memory"], record["step"]
        assert sum(term["value"] for term in memory["terms_gib"].values()) == pytest.approx(memory["peak_device_gib"])
        assert sum(term["value"] for term in step["terms_s"].values()) == pytest.approx(step["step_s"])
        for name, seconds in step["exposed_s"].items():
            assert step["terms_s"][f"exposed_{name}"]["value"] == pytest.approx(seconds)
        assert step["terms_s"]["bubble"]["value"] == pytest.approx(step["bubble_s"])
        assert step["low_s"] <= step["step_s"] <= step["high_s"]
        assert memory["peak_allocated_gib"] <= memory["peak_device_gib"] + 1e-9
        assert memory["headroom_gib"] == pytest.approx(memory["budget_gib"] - memory["peak_device_gib"])
        tokens = candidate.layout.gbs * (8192 if candidate in vendor_plan.candidates else 4096)
        if candidate is not vendor_plan.baseline:
            assert record["tokens_per_s_per_gpu"] == pytest.approx(tokens / step["step_s"] / 64)


def _record(candidate):
    from advisor.report.record import candidate_record

    return candidate_record(candidate)


def in_order(steps):
    """The fastest first; among times that differ by less than 1 % the roomier layout may stand before a faster one."""
    return all(first <= EQUAL_TIME * second for first, second in itertools.combinations(steps, 2))


def test_a_plan_for_minimax_on_64_gpus_keeps_the_mathematics(plan):
    assert plan.feasible > 0
    assert plan.searched == plan.feasible + sum(plan.rejected.values())
    assert len(plan.candidates) == 5
    budget = 0.92 * 79.19 * 2**30
    for one in plan.candidates:
        assert one.memory.peak_device_bytes <= one.memory.budget_bytes == pytest.approx(budget, rel=1e-3)
        assert one.knobs.grad_dtype == one.knobs.moment_dtype == "fp32"
        assert one.layout.gpus == 64
    assert in_order([one.step.step_s for one in plan.candidates])
    assert any(rule.startswith("memory-") for rule in plan.rejected)
    assert "moment-bf16" in {offer.allow for offer in plan.offers}


def test_offers_can_be_taken(vendor_plan):
    gains = {offer.allow: offer.gain for offer in vendor_plan.offers}
    taken = advisor.plan("llama3-70b", 64, seq_len=8192, fix="tp=4", allow="fp8")
    assert gains["fp8"] > 0
    assert taken.best.step.step_s < vendor_plan.best.step.step_s
    assert taken.request.settings["precision"].value == "fp8-current"
    assert taken.request.settings["precision"].origin == "allow fp8"
    assert "fp8" not in {offer.allow for offer in taken.offers}


def test_more_allowances_never_lose():
    fixed = "tp=1,cp=1,cuda_graph=none"
    plain = advisor.plan("minimax-m2", 64, fix=fixed)
    allowed = advisor.plan("minimax-m2", 64, fix=fixed, allow=["grad-bf16", "moment-bf16", "gbs"])
    rate = [one.best.step.tokens_per_s_per_gpu for one in (plain, allowed)]
    assert rate[1] >= rate[0]


@pytest.mark.parametrize(("model", "most"), [("llama3.2-1b", 1), ("llama3-8b", 8), ("minimax-m2", 64)])
def test_the_fewest_gpus_that_fit(model, most):
    found = advisor.plan(model, "auto", fix="cp=1")
    gpus = found.request.cluster.gpus
    assert found.candidates
    assert gpus <= most
    assert found.request.settings["gpus"].origin == "auto"
    if gpus > 8:
        assert not advisor.plan(model, gpus - 8, fix="cp=1").candidates


def test_the_fewest_gpus_that_reach_a_rate():
    found = advisor.plan("llama3-8b", "auto", fix="cp=1,pp=1", target_tokens_per_s=250_000)
    gpus = found.request.cluster.gpus
    assert found.best.step.tokens_per_s_per_gpu * gpus >= 250_000
    fewer = advisor.plan("llama3-8b", gpus - 8, fix="cp=1,pp=1")
    assert not fewer.candidates or fewer.best.step.tokens_per_s_per_gpu * (gpus - 8) < 250_000
    with pytest.raises(InputError, match="gpus=auto"):
        advisor.plan("llama3-8b", 8, target_tokens_per_s=1e6)


def test_pinned_sizes_ask_for_gpus():
    found = advisor.plan("qwen3-30b-a3b", "auto", fix="ep=32,tp=2,pp=2,cp=1,etp=1")
    assert found.request.cluster.gpus == 64


@pytest.mark.parametrize(
    "options",
    [
        {"fix": "tp=1,pp=1,ep=1,fsdp=none,optimizer_offload=0,recompute=none,cp=1", "model": "llama3-70b"},
        {"fix": "tp=1,pp=1,cp=1,mbs=1", "model": "llama3-8b", "gbs": 64, "target_tokens_per_s": 1e9},
        {"fix": "tp=3", "model": "llama3-8b"},
    ],
)
def test_giving_up_is_an_empty_answer(options):
    found = advisor.plan(gpus="auto", **options)
    assert found.candidates == ()
    assert "no number of GPUs" in found.request.settings["gpus"].note


@pytest.mark.parametrize("rule", ["fixed", "scaled"])
def test_a_scaling_curve(rule):
    curve = api.scale("llama3-8b", [32, 8, 16], rule, fix="cp=1", gbs=64)
    assert [point.gpus for point in curve.points] == [8, 16, 32]
    assert [point.gbs for point in curve.points] == ([64, 64, 64] if rule == "fixed" else [64, 128, 256])
    assert curve.points[0].efficiency == 1
    first, *_, last = curve.points
    expected = last.candidate.step.tokens_per_s_per_gpu / first.candidate.step.tokens_per_s_per_gpu
    assert last.efficiency == pytest.approx(expected)
    for before, point in zip(curve.points, curve.points[1:], strict=False):
        for change in point.changed:
            name, old, _, new = change.split()
            if hasattr(point.candidate.layout, name):
                assert getattr(before.candidate.layout, name) == int(old)
                assert getattr(point.candidate.layout, name) == int(new)
        if point.grown_term:
            shares = [one.candidate.step.terms[point.grown_term].value / one.candidate.step.step_s
                      for one in (before, point)]  # fmt: skip
            assert shares[1] - shares[0] == pytest.approx(point.grown_share)
    record = curve.to_dict()
    json.dumps(record, allow_nan=False)
    assert record["points"][2]["candidate"]["layout"]["gbs"] == curve.points[2].gbs


def test_megatron_arguments_as_an_estimate(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
        "--seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm "
        "--untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope "
        "--vocab-size 128256 --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 "
        "--global-batch-size 64 --bf16 --use-distributed-optimizer\n"
    )
    found = advisor.estimate(megatron_args=script, system="dgx-h100")
    assert found.request.cluster.gpus == 8
    assert found.candidate.layout.tp == 2
    assert found.candidate.layout.gbs == 64
    assert found.request.settings["seq_len"].value == 8192
    assert found.request.settings["seq_len"].origin == "megatron arguments"
    _validate(found.to_dict(), "estimate")
    changed = advisor.estimate(megatron_args=script, system="dgx-h100", gpus=16, tp=4, seq_len=4096)
    assert (changed.candidate.layout.tp, changed.candidate.layout.dp) == (4, 4)
    assert changed.request.workload.seq_len == 4096


def test_default_batch_of_an_estimate_fits_the_layout():
    found = advisor.estimate("llama3-8b", 24, mbs=5)
    assert found.verdict != "illegal"
    assert found.candidate.layout.gbs % (5 * 24) == 0
    assert "multiple of" in found.request.settings["gbs"].note
    asked = advisor.estimate("llama3-8b", 24, mbs=5, gbs=512)
    assert asked.verdict == "illegal"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: advisor.plan("minimax-m3000", 64), UnknownNameError),
        (lambda: advisor.plan("minimax-m2", 63), InputError),
        (lambda: advisor.plan("minimax-m2", 64, gbs="many"), InputError),
        (lambda: advisor.plan("minimax-m2", 64, tp=4), UnknownNameError),
        (lambda: advisor.plan("minimax-m2", -1), InputError),
        (lambda: advisor.plan("minimax-m2", "automatic"), InputError),
        (lambda: advisor.estimate("minimax-m2", 64, pp=10**6), InputError),
        (lambda: advisor.estimate("minimax-m2", 64, pp=2, pipeline_layout="Et*3|tL"), InputError),
        (lambda: advisor.estimate("minimax-m2", 64, dispatcher="pigeon"), UnknownNameError),
        (lambda: advisor.estimate("minimax-m2", 64, context=8192), InputError),
        (lambda: advisor.estimate(None, 64), InputError),
        (lambda: advisor.estimate("minimax-m2"), InputError),
        (lambda: advisor.estimate(megatron_args="/no/such/file"), InputError),
        (lambda: api.scale("llama3-8b", [8]), InputError),
        (lambda: api.scale("llama3-8b", [8, 16], "random"), InputError),
    ],
)
def test_bad_input_is_one_clear_error(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, AdvisorError)
    assert len(str(caught.value)) < 2000


def test_values_are_frozen(plan):
    for value in (plan, plan.best, plan.request):
        with pytest.raises((AttributeError, TypeError)):
            value.anything = 1
    with pytest.raises(TypeError):
        plan.rejected["x"] = 1


def test_frames_and_figures(plan):
    frame = plan.to_frame()
    assert list(frame["rank"]) == [1, 2, 3, 4, 5]
    assert in_order(list(frame["step_s"]))
    figure = plan.plot_memory(2)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    memory = plan.candidates[1].memory
    assert labels == [name.replace("_", " ") for name, term in memory.terms.items() if term.value > 0]
    assert math.isclose(sum(bar.get_width() for bar in figure.axes[0].patches), memory.peak_device_bytes / 2**30)
    with pytest.raises(ValueError, match="illegal"):
        advisor.estimate("minimax-m2", 64, tp=7).plot_memory()


def test_notebook_tables_hold_the_figures(plan, vendor_plan):
    text = plan._repr_html_()
    assert text.count("<tr>") == 1 + len(plan.candidates)
    assert f"{plan.best.step.step_s:.3f}" in text
    assert "crimson" in text
    assert "vendor: llama3_70b" in vendor_plan._repr_html_()
    assert "illegal" in advisor.estimate("minimax-m2", 64, tp=7)._repr_html_()


def test_a_plan_imports_nothing_heavy():
    code = (
        "import sys, advisor; advisor.plan('olmoe-1b-7b', 8, fix='tp=1,cp=1').to_dict();"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("precision", ["bf16", "fp8-current"])
@pytest.mark.parametrize("system", system_names())
def test_every_system_has_an_answer(system, precision):
    node, gpu = load_system(system).gpus_per_node, load_system(system).gpu
    for model, ep in (("llama3-8b", 1), ("qwen3-30b-a3b", node)):
        answer = advisor.estimate(model, node, system=system, precision=precision, ep=ep)
        if precision == "fp8-current" and answer.verdict == "illegal":
            assert [one.rule for one in answer.findings if one.severity == "stop"] == ["gpu-runs-precision"]
            assert gpu.capability_major == 8
            continue
        assert answer.verdict in {"fits", "oom"}, answer.findings
        assert answer.candidate.memory.peak_device_bytes > 0
        assert answer.candidate.step.step_s > 0


def test_a_gpu_of_unknown_capability_has_an_answer(tmp_path):
    (tmp_path / "own.yaml").write_text(
        json.dumps(
            {
                "gpu": {
                    "name": "mine",
                    "peak_dense_tflops": {"bf16": 500},
                    "hbm": {"capacity_gb": 640, "bandwidth_gbs": 2000},
                },
                "gpus_per_node": 8,
                "nic_gbps_per_gpu": 200,
            }
        )
    )
    assert advisor.estimate("llama3-8b", 8, system=str(tmp_path / "own.yaml"), tp=2).verdict == "fits"


@pytest.mark.parametrize("gpus", [8, "auto"])
def test_a_job_that_no_layout_repairs_says_so(gpus):
    answer = advisor.plan("llama3-8b", gpus, system="dgx-a100-80gb", precision="fp8")
    assert answer.candidates == ()
    assert answer.rejected == {"gpu-runs-precision": answer.searched}
    assert answer.request.cluster.gpus <= 8
    assert [(one.rule, one.fix) for one in answer.findings] == [("gpu-runs-precision", "precision=bf16")]


def test_a_scaling_curve_tells_every_knob_that_turns():
    """Twice the GPUs make room: what was recomputed, offloaded or sharded before is said to change."""
    curve = api.scale("llama3-70b", [8, 64], top=1)
    before, after = (point.candidate.knobs for point in curve.points)
    assert (before.optimizer_offload, after.optimizer_offload) == (1.0, 0.0)
    assert "optimizer_offload 1.0 -> 0.0" in curve.points[1].changed


def test_offers_bring_what_is_asked_for():
    fast = advisor.plan("qwen3-30b-a3b", 16, top=1).offers
    assert fast
    assert all(one.gain > -0.01 for one in fast)
    assert list(fast) == sorted(fast, key=lambda one: -one.gain)
    small = advisor.plan("qwen3-30b-a3b", 16, objective="memory", fix="optimizer_offload=0", top=1).offers
    assert small
    assert all(one.freed_bytes > 0 for one in small)
    assert list(small) == sorted(small, key=lambda one: -one.freed_bytes)
