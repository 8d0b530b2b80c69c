"""The probe of one GPU: its mechanics on a CPU, the whole of it where there is a GPU, and what it expects of layers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from advisor.cost.activations import layer_activations
from advisor.cost.params import layer_params
from advisor.search.stages import even_split
from advisor.spec.layout import Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.workload import Workload

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
CASES: tuple[dict[str, Any], ...] = (
    {"name": "tiny", "small": True, "hidden": 128, "ffn": 256, "heads": 4, "kv_heads": 4, "head_dim": 32,
     "tokens": 256, "batch": 1, "layers": 3},
    {"name": "llama3-8b, 4 layers", "small": False, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8,
     "head_dim": 128, "tokens": 8192, "batch": 1, "layers": 4},
    {"name": "llama3-70b, 2 layers", "small": False, "hidden": 8192, "ffn": 28672, "heads": 64, "kv_heads": 8,
     "head_dim": 128, "tokens": 4096, "batch": 1, "layers": 2},
    {"name": "qwen3-0.6b sizes, 8 layers", "small": False, "hidden": 1024, "ffn": 3072, "heads": 16, "kv_heads": 8,
     "head_dim": 128, "tokens": 4096, "batch": 4, "layers": 8},
)  # fmt: skip


def expected(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What advisor's memory model says of a case: parameters, kept bytes, and the peak with fp32 main gradients."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": case["hidden"],
        "intermediate_size": case["ffn"], "num_hidden_layers": case["layers"], "num_attention_heads": case["heads"],
        "num_key_value_heads": case["kv_heads"], "head_dim": case["head_dim"], "vocab_size": 32000,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000, "hidden_act": "silu",
        "tie_word_embeddings": False,
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    model, workload = load_model(str(path)), Workload(seq_len=case["tokens"])
    layout = Layout(1, 1, 1, 1, 1, 1, 1, 1, case["batch"], case["batch"], False, even_split(case["layers"], 1, 1, 0))
    columns = table([layout], [Knobs()])
    (layer,) = model.kinds
    found = layer_activations(layer, model, workload, columns)
    parameters = case["layers"] * float(np.ravel(layer_params(layer, model, columns).dense)[0])
    kept, transient = (case["layers"] * float(found.saved.sum()), float(found.transient.sum()))
    ends = 2.0 * case["batch"] * case["tokens"] * case["hidden"]
    return {
        **case, "parameters": int(parameters), "kept_bytes": int(kept),
        "peak_bytes": int((2 + 4) * parameters + kept + transient + 2 * ends),
    }  # fmt: skip


def test_what_is_expected_is_what_the_memory_model_says(tmp_path, updating):
    source = "advisor.cost.activations and params, written by tests/gpu/test_gpu.py --update-golden"
    found = {"source": source, "cases": [expected(case, tmp_path) for case in CASES]}
    if updating:
        EXPECTED.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(EXPECTED.read_text()) == found


def run(out: Path, *args: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": python, "OMP_NUM_THREADS": "1"}
    words = ["bash", str(HERE / "run.sh"), "--out", str(out), *args]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=500)


@pytest.mark.real
def test_the_mechanics_on_a_cpu(tmp_path):
    torch = pytest.importorskip("torch")
    ran = run(tmp_path / "report.json", "--self-test")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["failed"] == {}
    assert set(report["left_out"]) <= {"trial", "fp8"}, report["left_out"]
    assert {"fp32", "bf16"} <= {row["dtype"] for row in report["gemm"]}
    assert all(row["tflops"] > 0 for row in report["gemm"])
    assert all(row["backward_ratio"] > 0 for row in report["attention"])
    assert {row["name"] for row in report["streams"]} == {"copy", "add", "rms_norm", "swiglu"}
    (row,) = report["memory"]
    assert row["kept_bytes"] == pytest.approx(row["expected_kept_bytes"], rel=1e-3)
    assert row["parameters"] == row["expected_parameters"]
    assert "tiny: kept" in ran.stdout
    if "trial" not in report["left_out"]:
        assert [(row["model"], row["outcome"]) for row in report["trial"]] == [
            ("dense", "measured"), ("experts", "measured")
        ]  # fmt: skip
    if not torch.cuda.is_available():
        assert run(tmp_path / "none.json").returncode == 3
        assert not (tmp_path / "none.json").exists()


def test_an_interpreter_without_torch_is_told(tmp_path):
    ran = run(tmp_path / "none.json", python="/bin/false")
    assert ran.returncode == 3
    assert "/bin/false has no torch" in ran.stderr


@pytest.fixture
def probe(monkeypatch):
    """The modules of the probe, as its own process finds them."""
    pytest.importorskip("torch")
    names = ("device", "kernels", "layers", "trial", "probe")
    monkeypatch.syspath_prepend(str(HERE))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


def rows(*found: dict[str, Any], then: Exception | None = None):
    yield from found
    if then is not None:
        raise then


@pytest.mark.real
class TestParts:
    """One part that fails, is left out or runs out of time, beside others."""

    def test_what_was_measured_stays_whatever_comes_after(self, probe, tmp_path):
        out, device = tmp_path / "report.json", probe.device.Device(True, 60.0)
        found = {
            "memory": lambda: rows({"kept_ok": True}, then=RuntimeError("CUDA error: an illegal access\nmore")),
            "gemm": lambda: rows({"tflops": 1.0}),
            "fp8": lambda: rows(then=probe.device.SkippedError("no fp8")),
        }
        report = probe.probe.measure(device, found, out)
        assert json.loads(out.read_text()) == report
        assert report["memory"] == [{"kept_ok": True}]
        assert report["failed"] == {"memory": "RuntimeError: CUDA error: an illegal access"}
        assert report["left_out"] == {"fp8": "no fp8"}
        assert report["gemm"] == [{"tflops": 1.0}]

    def test_time_that_is_over_leaves_the_rest_out(self, probe, tmp_path):
        device = probe.device.Device(True, 60.0)

        def slow():
            yield {"tflops": 1.0}
            device.limit_s = 0.0
            yield {"tflops": 2.0}
            raise AssertionError("no row after the end")

        report = probe.probe.measure(device, {"gemm": slow, "fp8": lambda: rows({})}, tmp_path / "report.json")
        assert report["gemm"] == [{"tflops": 1.0}, {"tflops": 2.0}]
        assert (report["fp8"], set(report["left_out"])) == ([], {"gemm", "fp8"})
        assert report["failed"] == {}

    @pytest.mark.parametrize(
        ("change", "fine"),
        [
            ({}, True),
            ({"left_out": {"trial": "no megatron"}}, True),
            ({"failed": {"gemm": "RuntimeError: x"}}, False),
            ({"memory": [{"kept_ok": True, "peak_ok": False}]}, False),
            ({"memory": [{"case": "a", "left_out": "does not fit"}]}, True),
            ({"trial": [{"trial_ok": False}]}, False),
        ],
    )
    def test_what_was_left_out_is_not_judged(self, probe, change, fine):
        report = {"memory": [{"kept_ok": True}], "trial": [], "failed": {}, "left_out": {}, **change}
        assert probe.probe.passed(report) is fine

    def test_a_page_of_everything_that_can_go_wrong(self, probe):
        report = {
            "facts": {"device": "cuda"}, "gemm": [], "fp8": [], "attention": [], "streams": [], "seconds": 3.0,
            "memory": [{"case": "large", "left_out": "its peak of 9.8 GiB does not fit in 4.0 GiB"}],
            "trial": [{"model": "dense", "outcome": "oom", "layer_spec": None, "failure": "CUDA out of memory",
                       "step_s": None, "allocated_bytes": 2.0**30, "predicted_allocated_bytes": 2.0**29,
                       "stand_ins": ["this in place of that"]}],
            "left_out": {"attention": "compute capability (7, 5)"}, "failed": {"gemm": "RuntimeError: x"},
        }  # fmt: skip
        page = probe.probe.table(report)
        for line in (
            "large: left out, its peak of 9.8 GiB does not fit in 4.0 GiB",
            "trial dense: oom, layers of None CUDA out of memory",
            "trial dense: allocated 1024.0 MiB, predicted 512.0",
            "trial dense: stands in: this in place of that",
            "attention: LEFT OUT: compute capability (7, 5)",
            "gemm: FAILED: RuntimeError: x",
        ):
            assert line in page.splitlines()


@pytest.mark.real
class TestDevices:
    """Old and small GPUs, old torch."""

    def test_a_case_that_does_not_fit_is_left_out_with_its_size(self, probe, monkeypatch):
        device = probe.device.Device(True, 60.0)
        monkeypatch.setattr(device, "free_bytes", lambda: 2.0**20)
        (row,) = probe.layers.memory(device, json.loads(EXPECTED.read_text())["cases"])
        assert "does not fit" in row["left_out"]

    def test_gpus_without_the_kernels_are_told_apart(self, probe, monkeypatch):
        device = probe.device.Device(True, 60.0)
        device.cuda = True
        monkeypatch.setattr(probe.device.torch.cuda, "get_device_capability", lambda: (7, 5))
        for part in (probe.kernels.attention(device), probe.kernels.fp8_gemms(device), probe.layers.memory(device, [])):
            with pytest.raises(probe.device.SkippedError, match=r"\(7, 5\)"):
                next(part)

    def test_torch_without_fp8_or_grouped_queries_leaves_them_out(self, probe, monkeypatch):
        device = probe.device.Device(True, 60.0)
        monkeypatch.delattr(probe.kernels.torch, "_scaled_mm")
        with pytest.raises(probe.device.SkippedError, match="no fp8 product"):
            next(probe.kernels.fp8_gemms(device))
        monkeypatch.setattr(probe.layers, "scaled_dot_product_attention", lambda q, k, v: q)
        with pytest.raises(probe.device.SkippedError, match="no grouped queries"):
            next(probe.layers.memory(device, []))

    def test_a_norm_of_an_old_torch_is_the_same(self, probe, monkeypatch):
        torch = probe.kernels.torch
        x, weight = torch.randn(4, 32), torch.rand(32)
        new = probe.kernels.rms_norm(x, weight)
        monkeypatch.delattr(torch.nn.functional, "rms_norm")
        assert torch.allclose(probe.kernels.rms_norm(x, weight), new, atol=1e-5)

    def test_the_gated_activation_has_the_right_gradient(self, probe):
        torch = probe.layers.torch
        x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(probe.layers.SwiGlu.apply, (x,))

    @pytest.mark.parametrize(
        ("gpu", "system"),
        [("NVIDIA H200", "dgx-h200"), ("NVIDIA H100 80GB HBM3", "dgx-h100"), ("NVIDIA A100-SXM4-80GB", "dgx-a100-80gb"),
         ("NVIDIA B200", "dgx-b200"), ("NVIDIA GB200", "dgx-h100"), ("NVIDIA L4", "dgx-h100")],
    )  # fmt: skip
    def test_the_system_of_a_gpu(self, probe, gpu, system):
        assert probe.trial._system(SimpleNamespace(facts=lambda: {"gpu": gpu})) == system


@pytest.mark.real
class TestTrials:
    """The trial worker where it cannot run."""

    def test_a_missing_package_leaves_it_out(self, probe, monkeypatch):
        monkeypatch.setattr(probe.trial, "NEEDS", ("no_such_package",))
        with pytest.raises(probe.device.SkippedError, match="no_such_package cannot be imported: ModuleNotFoundError"):
            next(probe.trial.trials(probe.device.Device(True, 60.0)))

    def test_too_little_time_leaves_it_out(self, probe, monkeypatch):
        monkeypatch.setattr(probe.trial, "NEEDS", ())
        with pytest.raises(probe.device.TimeUpError, match="s are left"):
            next(probe.trial.trials(probe.device.Device(True, 5.0)))
        with pytest.raises(probe.device.TimeUpError, match=r"took more than 0 s"):
            probe.trial._run([sys.executable, "-c", "import time; time.sleep(9)"], 0.1)

    def test_a_command_that_fails_is_a_failure_with_its_words(self, probe, monkeypatch):
        monkeypatch.setattr(probe.trial, "NEEDS", ())
        monkeypatch.setitem(probe.trial.DENSE, "hidden_size", -1)
        device = probe.device.Device(True, 300.0)
        device.small = False
        with pytest.raises(RuntimeError, match="advisor estimate: "):
            next(probe.trial.trials(device))


@pytest.mark.real
@pytest.mark.parametrize("case", json.loads(EXPECTED.read_text())["cases"], ids=lambda case: case["name"])
def test_the_peak_is_what_the_allocator_would_count(probe, case):
    """Every tensor of a forward and backward pass in its size, none in its contents: bytes alive at most."""
    torch = probe.layers.torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Alive(TorchDispatchMode):
        """Bytes of the storages that exist."""

        def __init__(self) -> None:
            super().__init__()
            self.bytes = self.peak = 0
            self.seen: Any = weakref.WeakKeyDictionary()

        def add(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            if storage not in self.seen:
                self.seen[storage] = size = storage.nbytes()
                self.bytes += size
                weakref.finalize(storage, self.drop, size)
                self.peak = max(self.peak, self.bytes)

        def drop(self, size: int) -> None:
            self.bytes -= size

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for one in tree_iter(out):
                if isinstance(one, torch.Tensor):
                    self.add(one)
            return out

    with FakeTensorMode(), Alive() as alive:
        stack = torch.nn.Sequential(*(probe.layers.Layer(case, "cpu") for _ in range(case["layers"])))
        shape = (case["batch"], case["tokens"], case["hidden"])
        x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
        probe.layers.both_passes(stack, x, lambda: setattr(alive, "peak", alive.bytes))
    assert alive.peak == pytest.approx(case["peak_bytes"], rel=0.03)


@pytest.mark.real
def test_a_layer_that_keeps_other_bytes_is_an_error(tmp_path, probe, monkeypatch, capsys):
    """The file is the judge: with other expectations the same layers fail."""
    changed = json.loads(EXPECTED.read_text())
    for case in changed["cases"]:
        case["kept_bytes"] = int(case["kept_bytes"] * 1.1)
    (tmp_path / "expected.json").write_text(json.dumps(changed))
    monkeypatch.setattr(probe.probe, "HERE", tmp_path)
    (kept,) = probe.probe.parts(probe.device.Device(True, 60.0))["memory"]()
    assert not kept["kept_ok"]
    monkeypatch.setattr(probe.probe, "parts", lambda device: dict.fromkeys(
        ("gemm", "fp8", "attention", "streams", "trial"), rows) | {"memory": lambda: rows(kept)})  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["probe.py", "--self-test", "--out", str(tmp_path / "report.json")])
    assert probe.probe.main() == 1
    assert "DIFFERS" in capsys.readouterr().out


@pytest.mark.gpu
def test_one_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    ran = run(tmp_path / "report.json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["seconds"] < 480
    assert max(row["tflops"] for row in report["gemm"] if row["dtype"] == "bf16") > 10
    assert all(row["kept_ok"] and row["peak_ok"] for row in report["memory"] if "left_out" not in row)
