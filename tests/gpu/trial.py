"""The trial worker on this one device: a real megatron-core model of a few layers, from estimate to record.

Only where megatron-core is installed and advisor can be imported from this checkout; both are started as a user would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from device import Device, SkippedError, TimeUpError

ROOT = Path(__file__).resolve().parents[2]
NEEDS = ("megatron.core", "advisor.api", "psutil")
SYSTEMS = {"H200": "dgx-h200", "H100": "dgx-h100", "B200": "dgx-b200", "A100": "dgx-a100-80gb"}
OTHERWISE = "dgx-h100"
LEAST_S, LONGEST_S, ENDING_S = 60.0, 180.0, 10.0
DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
EXPERTS = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True,
}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "vocab_size": 256, "moe_intermediate_size": 32, "num_experts": 4}  # fmt: skip


def trials(device: Device) -> Iterator[dict[str, Any]]:
    """A dense model and a mixture of experts: outcome, seconds and bytes, predicted and measured.

    SkippedError where a package is missing, TimeUpError where too little time is left.
    """
    for name in NEEDS:
        ran = _run([sys.executable, "-c", f"import {name}"], LEAST_S)
        if ran.returncode:
            raise SkippedError(f"{name} cannot be imported: {_last_line(ran.stderr)}")
    for model, config in (("dense", DENSE), ("experts", EXPERTS)):
        if device.left_s < LEAST_S:
            raise TimeUpError(f"{device.left_s:.0f} s are left, a trial takes up to {LONGEST_S:.0f}")
        with tempfile.TemporaryDirectory() as folder:
            yield {"model": model, **_trial(device, config, Path(folder))}


def _trial(device: Device, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    small = {name: value for name, value in SMALL.items() if name in config} if device.small else {}
    model, estimate, out = folder / "model.json", folder / "estimate.json", folder / "out"
    model.write_text(json.dumps({**config, **small}), encoding="utf-8")
    job = ["--model", model, "--gpus", 1, "--system", _system(device), "--seq-len", 32 if device.small else 4096,
           "--gbs", 4, "--mbs", 1, "--cuda-graph", "none", "--out", estimate]  # fmt: skip
    ran = _run([sys.executable, "-m", "advisor", "estimate", *map(str, job)], LEAST_S)
    if not estimate.exists():
        raise RuntimeError(f"advisor estimate: {_last_line(ran.stderr)}")
    limit = max(min(LONGEST_S, device.left_s - ENDING_S), 1.0)
    run = [estimate, "--device", device.name, "--steps", 5, "--warmup", 2, "--budget", f"{limit:.0f}s", "--out", out]
    ran = _run([sys.executable, "-m", "advisor", "trial", *map(str, run)], limit + ENDING_S)
    lines = (out / "trials.jsonl").read_text(encoding="utf-8").splitlines() if (out / "trials.jsonl").exists() else []
    if not lines:
        raise RuntimeError(f"advisor trial: {_last_line(ran.stderr) or f'exit code {ran.returncode}'}")
    return _row(json.loads(lines[-1]))


def _row(record: dict[str, Any]) -> dict[str, Any]:
    predicted, measured = record["predicted"], record["measured"] or {}
    return {
        "outcome": record["outcome"],
        "failure": None if record["failure"] is None else record["failure"]["message"],
        "step_s": measured.get("step_s"),
        "predicted_step_s": predicted["step_s"],
        "allocated_bytes": measured.get("peak_allocated_bytes"),
        "predicted_allocated_bytes": predicted["peak_allocated_bytes"],
        "layer_spec": (record["effective"] or {}).get("layer_spec"),
        "stand_ins": record["stand_ins"],
        "trial_ok": record["outcome"] == "measured",
    }


def _system(device: Device) -> str:
    name = str(device.facts().get("gpu", ""))
    return next((system for gpu, system in SYSTEMS.items() if gpu in name and "G" + gpu not in name), OTHERWISE)


def _run(words: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=limit_s, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeUpError(f"{' '.join(words[1:4])} took more than {limit_s:.0f} s") from None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
