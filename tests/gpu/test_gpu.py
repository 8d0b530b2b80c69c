"""The probe of one GPU: its mechanics on a CPU, the whole of it where there is a GPU, and what it expects of layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
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


def run(out: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    words = ["bash", str(HERE / "run.sh"), "--out", str(out), *args]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=500)


@pytest.mark.real
def test_the_mechanics_on_a_cpu(tmp_path):
    torch = pytest.importorskip("torch")
    ran = run(tmp_path / "report.json", "--self-test")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"fp32", "bf16"} <= {row["dtype"] for row in report["gemm"]}
    assert all(row["tflops"] > 0 for row in report["gemm"])
    assert all(row["backward_ratio"] > 0 for row in report["attention"])
    assert all(value > 0 for value in report["streams"].values())
    (row,) = report["memory"]
    assert row["kept_ok"]
    assert row["parameters"] == row["expected_parameters"]
    assert "tiny: kept" in ran.stdout
    if not torch.cuda.is_available():
        assert run(tmp_path / "none.json").returncode == 3
        assert not (tmp_path / "none.json").exists()


@pytest.mark.real
def test_a_layer_that_keeps_other_bytes_is_an_error(tmp_path):
    """The file is the judge: with other expectations the same layers fail."""
    pytest.importorskip("torch")
    beside = tmp_path / "gpu"
    beside.mkdir()
    for name in ("run.sh", "probe.py"):
        (beside / name).write_text((HERE / name).read_text())
    changed = json.loads(EXPECTED.read_text())
    for case in changed["cases"]:
        case["kept_bytes"] = int(case["kept_bytes"] * 1.1)
    (beside / "expected.json").write_text(json.dumps(changed))
    ran = subprocess.run(
        [sys.executable, str(beside / "probe.py"), "--self-test", "--out", str(tmp_path / "report.json")],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "DIFFERS" in ran.stdout


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
    assert all(row["kept_ok"] and row["peak_ok"] for row in report["memory"])
