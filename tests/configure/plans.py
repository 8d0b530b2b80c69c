"""Plan files for tests: estimates of named layouts, written as `advisor estimate --out` would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from advisor.api import estimate

JOBS: dict[str, dict[str, Any]] = {
    "m2": {"model": "minimax-m2", "gpus": 64, "ep": 32, "tp": 2, "pp": 2, "recompute": "full", "gbs": 256},
    "dense": {"model": "qwen3-8b", "gpus": 16, "tp": 2, "gbs": 64},
    "small": {"model": "qwen3-0.6b", "gpus": 2, "gbs": 8},
    "one": {"model": "qwen3-0.6b", "gpus": 8, "gbs": 8},
    "gb200": {"model": "llama3-70b", "gpus": 128, "system": "gb200-nvl72", "tp": 4, "pp": 4, "gbs": 128},
    "fsdp": {"model": "qwen3-8b", "gpus": 16, "gbs": 64, "fsdp": "optim_grads_params"},
    "graph": {"model": "qwen3-8b", "gpus": 16, "tp": 2, "gbs": 64, "cuda_graph": "full_iteration"},
    "llama405": {
        "model": "llama3.1-405b", "gpus": 16384, "tp": 8, "pp": 16, "seq_len": 8192, "gbs": 2048,
        "headroom": "0%", "optimizer_offload": 0.0,
    },
}  # fmt: skip


def plan_file(folder: Path, name: str, **changes: Any) -> Path:
    """The file of one of `JOBS` with changes."""
    words = {**JOBS[name], **changes}
    found = estimate(words.pop("model"), words.pop("gpus"), **words)
    assert found.candidate is not None, found.findings
    path = folder / f"{name}.json"
    path.write_text(json.dumps(found.to_dict()))
    return path
