"""From benchmarks to a system and a profile that plans are made with; and the benchmarks themselves, briefly."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
import yaml

from advisor.cost.elementwise import elementwise
from advisor.cost.profile import load_profile
from advisor.fit.own_system import own_system
from advisor.search.stages import even_split
from advisor.spec.layout import Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import ExpertMlp
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload
from advisor.trial.measure.card import card_profile
from advisor.trial.measure.host import FRAMEWORK, bubble_share, host_system, layer_bytes
from advisor.trial.measure.run import CARD_JOB, EXPERTS, GEMMS, HOST_JOB, LAYERS
from tests.trial.layouts import write_model

RATE, RAMPS, UNFUSED = 50e9, {"m": 40.0, "n": 20.0, "k": 10.0}, 7.0
CALLS_S, DENSE_S, EXPERT_S, ROUTING_S = 2e-4, 1e-3, 2e-4, 5e-4
MEMORY_BYTES = 32 * 2**30


def small_layer_s(experts: int) -> float:
    return DENSE_S + (ROUTING_S + experts * EXPERT_S if experts else 0.0)


def synthetic(ranks: int = 2) -> dict:
    """Benchmarks of a host that is exactly of the form that the profile assumes; bf16 takes half as long, or as noted.

    Forward attention in bf16 takes a third, its backward pass twice the multiple; adding gradients takes the same.
    """

    def gemm_s(m, n, k, rate):
        return 2 * m * n * k / rate * (1 + RAMPS["m"] / m + RAMPS["n"] / n + RAMPS["k"] / k)

    def message_s(n_bytes):
        return 1e-4 + n_bytes / 1e9

    sizes = HOST_JOB["collective_bytes"]
    ops = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    return {
        "device": "cpu", "ranks": ranks, "threads": 1, "cores": 2, "torch": "0", "memory_Bps": 4e9, "operation_s": 1e-5,
        "optimizer_s": 10e-9,
        "accumulation": [{"dtype": dtype, "element_s": 4e-9} for dtype in ("fp32", "bf16")],
        "layer": [
            row | {"both_s": (UNFUSED * layer_bytes(row) / 4e9 + CALLS_S) * factor}
            for dtype, factor in (("fp32", 1), ("bf16", 0.75)) for sizes in LAYERS
            for row in (dict(zip(("dtype", "tokens", "hidden", "heads", "dim", "ffn"), (dtype, *sizes), strict=True)),)
        ],
        "overhead": [
            {"dtype": dtype, "experts": experts, "both_s": small_layer_s(experts) * factor}
            for dtype, factor in (("fp32", 1), ("bf16", 1.5)) for experts in EXPERTS
        ],
        "gemm": [
            {"dtype": dtype, "m": m, "n": n, "k": k, "s": gemm_s(m, n, k, RATE * factor)}
            for dtype, factor in (("fp32", 1), ("bf16", 2)) for m, n, k in GEMMS
        ],
        "attention": [
            {"dtype": dtype, "seq": seq, "dim": dim, "heads": 4, "s": s, "both_s": (1 + backward) * s}
            for dtype, faster, backward in (("fp32", 1, 2.5), ("bf16", 3, 5))
            for seq in HOST_JOB["attention_seq"][dtype] for dim in HOST_JOB["attention_dim"]
            for s in (8 * seq**2 * dim / 10e9 / faster,)
        ],
        "collectives": [
            {"op": op, "ranks": n, "bytes": size, "s": message_s(size)}
            for op in ops for n in (2, 4, 8) if n <= ranks for size in sizes
        ] + [
            {"op": "there_and_back", "ranks": n, "bytes": size, "s": 2 * message_s(size)}
            for n in (2, 4, 8) if n <= ranks for size in sizes
        ],
    }  # fmt: skip


def write(folder, ranks=2, name="test-cpu"):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(host_system(synthetic(ranks), name, MEMORY_BYTES)), encoding="utf-8")
    return path


@pytest.fixture
def measured(tmp_path):
    return write(tmp_path)


def test_the_system_is_one_node_of_ranks(measured):
    system = load_system(str(measured))
    assert (system.gpus_per_node, system.nvlink_domain, system.gpu.name) == (2, 2, "test-cpu")
    cluster = make_cluster(system, 2)
    assert cluster.usable_bytes == pytest.approx(MEMORY_BYTES / 2)
    assert cluster.nvlink_Bps == pytest.approx((1 << 23) / (1e-4 + (1 << 23) / 1e9))


def test_rates_and_ramps_come_back(measured):
    profile = load_profile(load_system(str(measured)).gpu)
    assert profile.gemm_flops(PRECISIONS["fp32"]) == pytest.approx(RATE)
    assert profile.gemm_flops(PRECISIONS["bf16"]) == pytest.approx(2 * RATE)
    assert profile.gemm["bf16"].kind == "measured"
    assert profile.gemm_efficiency(128, 256, 512) == pytest.approx(1 / (1 + 40 / 128 + 20 / 256 + 10 / 512), rel=1e-3)
    assert profile.memory_Bps == pytest.approx(4e9)
    assert profile.value("attention_backward_ratio") == pytest.approx(2.5)
    assert profile.attention_flops(256, 64, 4) == pytest.approx(10e9)
    import numpy as np

    seconds = profile.collectives["all_reduce"].seconds(np.array([1e6]), np.array([2]))
    assert seconds == pytest.approx(1e-4 + 1e-3, rel=0.05)
    assert profile.table_kind == "measured"


def test_ramps_below_zero_are_held_at_zero():
    bench = synthetic()
    for row in bench["gemm"]:
        row["s"] = 2 * row["m"] * row["n"] * row["k"] / RATE * (1 - 5 / row["m"])
    found = host_system(bench, "x", MEMORY_BYTES)["profile"]["fitted"]
    assert found["gemm_ramp_m"]["value"] == 0
    assert all(found[f"gemm_ramp_{axis}"]["value"] >= 0 for axis in "mnk")


def test_memory_bound_work_takes_what_was_measured(measured, tmp_path):
    """The bytes of the benchmark are those that the cost functions count for a layer of its sizes."""
    profile = load_profile(load_system(str(measured)).gpu)
    assert profile.value("unfused_factor") == pytest.approx(UNFUSED)
    assert profile.value("optimizer_bytes_per_param") / profile.memory_Bps == pytest.approx(10e-9)
    model = load_model(str(write_model(tmp_path, "dense")))
    (layer,) = model.kinds
    plain = dataclasses.replace(layer, mixer=dataclasses.replace(layer.mixer, qk_norm="none", kv_heads=4))
    columns = table([Layout(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, False, even_split(4, 1, 1, 0))], [Knobs()])
    counted = elementwise(plain, model, Workload(seq_len=32), columns)
    parts = (counted.norms, counted.mixer, counted.activation, counted.routing)
    row = {"dtype": "bf16", "tokens": 32, "hidden": 64, "heads": 4, "dim": 16, "ffn": 128}
    assert layer_bytes(row) == pytest.approx(sum(float(one.both.sum()) for one in parts))
    wide = elementwise(plain, model, Workload(seq_len=32, precision=PRECISIONS["fp32"]), columns)
    assert layer_bytes(row | {"dtype": "fp32"}) == pytest.approx(
        sum(float(one.both.sum()) for one in (wide.norms, wide.mixer, wide.activation, wide.routing))
    )


def test_what_calls_take_is_not_taken_for_traffic(measured):
    """Of an expert layer: what a dense one takes, each expert, and the rest, times what the framework adds."""
    profile = load_profile(load_system(str(measured)).gpu)
    for name, seconds in (
        ("layer_gap_s", DENSE_S), ("per_expert_s", EXPERT_S), ("expert_layer_gap_s", ROUTING_S),
    ):  # fmt: skip
        assert profile.value(name) == pytest.approx(FRAMEWORK * seconds)
        assert profile.coefficients[name].kind == "assumed"
    assert profile.value("ep_side_messages") == profile.value("accumulate_experts_fused") == 1


def test_bf16_has_its_own_figures(measured):
    """Those of fp32 stand where nothing else was measured, and nowhere else."""
    profile = load_profile(load_system(str(measured)).gpu)
    assert profile.under(PRECISIONS["fp32"]).coefficients == profile.coefficients
    own = profile.under(PRECISIONS["bf16"])
    assert own.value("attention_time_factor") == pytest.approx(1 / 3)
    assert own.value("attention_backward_ratio") == pytest.approx(5)
    assert own.value("layer_gap_s") == pytest.approx(1.5 * profile.value("layer_gap_s"))
    assert own.value("unfused_factor") == pytest.approx(0.75 * UNFUSED)
    assert own.value("accumulate_share_fused") == pytest.approx(8 / 4e-9 / 4e9)
    assert own.value("optimizer_bytes_per_param") == profile.value("optimizer_bytes_per_param")
    assert load_profile("h100").under(PRECISIONS["bf16"]) is load_profile("h100")


def test_a_format_that_there_is_not_has_no_coefficient(cli, tmp_path, measured):
    held = yaml.safe_load(measured.read_text(encoding="utf-8"))
    fitted = held["profile"]["fitted"]
    fitted["layer_gap_s.bf17"] = fitted.pop("layer_gap_s.bf16")
    measured.write_text(yaml.safe_dump(held), encoding="utf-8")
    ran = cli("estimate", "--model", str(write_model(tmp_path, "dense")), "--gpus", "2", "--system", str(measured))
    assert ran.code == 2
    assert "layer_gap_s.bf17" in ran.err


def step_of(tmp_path, cli, bench, name, *more):
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(host_system(bench, name, MEMORY_BYTES)), encoding="utf-8")
    ran = cli(
        "estimate", "--model", str(write_model(tmp_path, "moe")), "--gpus", str(bench["ranks"]), "--system", str(path),
        "--seq-len", "32", "--gbs", "8", "--cuda-graph", "none", "--dispatcher", "alltoall", "--format", "json", *more,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["candidate"]["step"]


def test_slower_experts_make_a_slower_plan_of_experts(cli, tmp_path):
    """Twice the time of the small expert layers beyond the dense one: that much longer in every layer, no less."""
    bench = synthetic()
    slow = copy.deepcopy(bench)
    for row in slow["overhead"]:
        row["both_s"] += (row["both_s"] - small_layer_s(0) * (1.5 if row["dtype"] == "bf16" else 1)) * (
            row["experts"] > 0
        )
    words = ("--precision", "fp32", "--ep", "2")
    before, after = (step_of(tmp_path, cli, one, name, *words) for one, name in ((bench, "a"), (slow, "b")))
    model = load_model(str(write_model(tmp_path, "moe")))
    layers = sum(n for layer, n in zip(model.kinds, model.count, strict=True) if isinstance(layer.mlp, ExpertMlp))
    experts = next(layer.mlp.experts for layer in model.kinds if isinstance(layer.mlp, ExpertMlp))
    more_s = 4 * layers * FRAMEWORK * (ROUTING_S + experts / 2 * EXPERT_S)  # 8 sequences on two ranks, one at a time
    assert after["step_s"] - before["step_s"] == pytest.approx(more_s, rel=0.01)  # and what ranks wait for the slowest
    for name in ("compute_gemm", "compute_attention", "exposed_ep", "optimizer"):
        assert after["terms_s"][name] == before["terms_s"][name]


def test_short_messages_beside_the_tokens_show(cli, tmp_path):
    """Probabilities twice and counts once, at the latency of the host, beside four exchanges of tokens."""
    step = step_of(tmp_path, cli, synthetic(), "a", "--precision", "fp32", "--ep", "2")
    model = load_model(str(write_model(tmp_path, "moe")))
    layers = sum(n for layer, n in zip(model.kinds, model.count, strict=True) if isinstance(layer.mlp, ExpertMlp))
    assert step["terms_s"]["exposed_ep"]["value"] > 7 * 4 * layers * 1e-4
    assert step["terms_s"]["exposed_ep"]["value"] < 9 * 4 * layers * 1e-4


def test_activations_of_fp32_are_twice_as_wide_as_those_of_bf16(cli, tmp_path):
    """A message of 32 tokens of 64 elements between stages, at 1e-4 s and 1 GB/s (the longest message measured)."""
    wide, narrow = (
        step_of(tmp_path, cli, synthetic(), name, "--precision", name, "--pp", "2")["terms_s"]["exposed_pp"]["value"]
        for name in ("fp32", "bf16")
    )
    link_Bps = (1 << 23) / (1e-4 + (1 << 23) / 1e9)
    shortest_s = 1e-4 + 1024 / 1e9
    messages = [32 * 64 * width / link_Bps + shortest_s for width in (4, 2)]
    assert wide / narrow == pytest.approx(messages[0] / messages[1], rel=1e-6)


@pytest.mark.parametrize(
    ("ranks", "cores", "share"), [(2, 2, 1.0), (4, 4, 1.0), (4, 2, 1 / 6), (4, 1, 0.0), (8, 16, 1)]
)
def test_waiting_stages_leave_their_cores_to_others(ranks, cores, share):
    assert bubble_share(ranks, cores) == pytest.approx(share)


def test_one_rank_has_no_collectives_and_still_a_profile(tmp_path):
    path = write(tmp_path, 1, "one-cpu")
    assert load_profile(load_system(str(path)).gpu).memory_Bps == pytest.approx(4e9)


def test_a_plan_is_made_with_it(cli, tmp_path, measured):
    model = write_model(tmp_path, "dense")
    ran = cli(
        "plan", "--model", str(model), "--gpus", "2", "--system", str(measured), "--precision", "fp32",
        "--seq-len", "32", "--gbs", "8", "--format", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    best = json.loads(ran.out)["candidates"][0]
    assert 1e-4 < best["step"]["step_s"] < 10
    assert best["knobs"]["optimizer_offload"] == 0


def card_bench(gain=1.0, bf16=780e12):
    """Benchmarks of an H100: products at `bf16` (1/8 of it for fp32), memory at 0.84 of its bandwidth, x `gain`."""
    profile = load_profile("h100")
    m0, n0, k0 = (profile.value(f"gemm_ramp_{axis}") for axis in "mnk")
    host = synthetic(8)
    return host | {
        "device": "NVIDIA H100 80GB HBM3", "memory_Bps": 0.84 * 3350e9 * gain, "operation_s": 12e-6,
        "collectives": [row | {"s": row["s"] / 300} for row in host["collectives"]],
        "attention": [row | {"s": row["s"] / 4e4, "both_s": row["both_s"] / 4e4} for row in host["attention"]],
        "gemm": [
            {"dtype": dtype, "m": m, "n": n, "k": k, "s": 2 * m * n * k * (1 + m0 / m + n0 / n + k0 / k) / rate / gain}
            for dtype, rate in (("bf16", bf16), ("fp32", bf16 / 8)) for m, n, k in CARD_JOB["gemm"]
        ],
    }  # fmt: skip


def test_what_cards_reach_alone_is_not_what_they_reach_in_training():
    """Boost clocks and a memory of one's own are taken out again by the gains that the profile has for them."""
    profile = load_profile("h100")
    fitted, kernels = card_profile(card_bench(), "dgx-h100")
    at_reference = 1 + sum(profile.value(f"gemm_ramp_{axis}") for axis in "mnk") / profile.value("gemm_reference_dim")
    assert fitted["gemm_tflops"]["bf16"]["value"] == pytest.approx(
        780 / at_reference / profile.value("alone_gemm_gain")
    )
    assert fitted["memory_share"]["value"] == pytest.approx(0.84 / profile.value("alone_memory_gain"), rel=1e-4)
    assert fitted["host_dense_layer_s"]["value"] == pytest.approx(60 * 12e-6)
    assert fitted["p2p_latency_s"]["value"] > 0
    assert {one["kind"] for one in (*fitted["gemm_tflops"].values(), fitted["memory_share"])} == {"measured"}
    assert set(kernels["collectives_us"]) == {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}
    assert set(kernels["collectives_us"]["all_reduce"]) == {"2", "4", "8"}


def test_a_value_beyond_its_bounds_is_held_there_and_says_so():
    entry = card_profile(card_bench(bf16=3000e12), "dgx-h100")[0]["gemm_tflops"]["bf16"]
    assert entry["value"] == entry["high"] == load_profile("h100").gemm["bf16"].high / 1e12
    assert "the nearest bound is taken" in entry["source"]


def test_faster_cards_make_a_faster_plan(cli, tmp_path):
    steps = []
    for gain in (0.8, 1.0):
        path = tmp_path / f"mine-{gain}.yaml"
        path.write_text(own_system("dgx-h100", *card_profile(card_bench(gain), "dgx-h100"), "measured"), "utf-8")
        ran = cli(
            "estimate", "--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--system", str(path), "--format", "json"
        )
        assert ran.code == 0, ran.err
        steps.append(json.loads(ran.out)["candidate"]["step"]["step_s"])
    assert steps[1] < 0.95 * steps[0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--device", "cuda"], 2, "--system"),
        (["--system", "h100"], 2, "--device cuda"),
        (["--device", "tpu"], 2, "tpu"),
        (["--device", "cuda", "--system", "dgx-h10"], 2, "dgx-h100"),
        (["--out", "data"], 2, "yaml"),
        (["--ranks", "0"], 2, "0"),
        (["--time", "soon"], 2, "soon"),
    ],
)
def test_bad_input_is_one_error(cli, words, code, said):
    ran = cli("measure", *words)
    assert ran.code == code
    assert said in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.real
def test_no_gpu_is_a_missing_environment(cli):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    ran = cli("measure", "--device", "cuda", "--system", "h100")
    assert ran.code == 3
    assert "GPU" in ran.err


@pytest.mark.parametrize("name", ["../x", "", "a/b", "-x", "a" * 100])
def test_a_name_is_no_path(cli, tmp_path, name):
    ran = cli("measure", f"--name={name}", "--out", str(tmp_path / "x.yaml"))
    assert ran.code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.real
def test_this_host_can_be_measured(cli, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("psutil")
    path = tmp_path / "host.yaml"
    ran = cli("measure", "--time", "0.002s", "--out", str(path), "--format", "json")
    assert ran.code == 0, ran.err
    bench = json.loads(ran.out)["bench"]
    assert (bench["ranks"], bench["device"]) == (2, "cpu")
    assert all(row["s"] > 0 for part in ("gemm", "attention", "collectives") for row in bench[part])
    assert {row["op"] for row in bench["collectives"]} >= {"all_gather", "all_to_all", "there_and_back"}
    assert bench["cores"] >= 1
    system = load_system(str(path))
    assert 1e9 < system.gpu.peak_flops("tf32") < 1e14
    assert load_profile(system.gpu).gemm["tf32"].kind == "measured"
    assert str(path) in ran.err


@pytest.mark.real
def test_logs_of_benchmarks_that_fail_are_where_the_error_says(cli, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("psutil")
    script = tmp_path / "bench.py"
    script.write_text("raise RuntimeError('no cores left')")
    monkeypatch.setattr("advisor.trial.measure.run.PROGRAM", (str(script),))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran = cli("measure", "--out", str(tmp_path / "local.yaml"))
    (logs,) = tmp_path.glob("advisor-measure-*")
    assert (ran.code, "no cores left" in ran.err, str(logs) in ran.err.replace("\n", "")) == (3, True, True)
    assert any("no cores left" in path.read_text() for path in logs.rglob("stderr.log"))
    assert not (tmp_path / "local.yaml").exists()
