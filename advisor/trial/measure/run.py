"""Runs the benchmarks of a host and keeps what they gave as one system file that every verb plans with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from advisor.errors import EnvironmentMissingError
from advisor.trial.outcome import outcome_of
from advisor.trial.processes import Limits, command, environment, run_group

PROGRAM = ("-m", "advisor.trial.worker.bench")
GEMMS = (
    (128, 128, 128), (128, 512, 256), (512, 256, 256), (256, 1024, 256), (256, 256, 1024), (1024, 512, 512),
    (512, 1024, 1024),
)  # fmt: skip
LAYERS = (
    (16, 32, 2, 16, 32), (128, 256, 8, 32, 768), (256, 256, 8, 32, 768), (512, 256, 8, 32, 768), (256, 512, 8, 64, 1536)
)  # fmt: skip
"""Tokens, hidden size, heads, head size, feed-forward size; the first is so small that only its calls take time."""
EXPERTS = (0, 2, 8)
"""Experts of the small layers that are timed whole; 0 is a dense one."""
HOST_JOB: Mapping[str, Any] = {
    "dtypes": ["fp32", "bf16"],
    "gemm": GEMMS,
    "attention_seq": {"fp32": [128, 256, 512, 1024], "bf16": [256, 512]},
    "attention_dim": [32, 64, 128],
    "attention_heads": 4,
    "pool_elements": 1 << 24,
    "layer": LAYERS,
    "experts": EXPERTS,
    "optimizer_parameters": 1 << 21,
    "memory_bytes": 1 << 26,
    "collective_bytes": [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23],
}
CARD_GEMMS = (
    (2048, 4096, 4096), (4096, 4096, 4096), (4096, 8192, 2048), (4096, 2048, 8192), (8192, 8192, 8192),
    (8192, 1024, 8192), (16384, 4096, 4096),
)  # fmt: skip
CARD_JOB: Mapping[str, Any] = {
    "dtypes": ["bf16", "fp32"],
    "gemm": CARD_GEMMS,
    "attention_seq": {"bf16": [1024, 2048, 4096, 8192, 16384]},
    "attention_dim": [64, 128],
    "attention_heads": 32,
    "pool_elements": 1 << 28,
    "layer": (),
    "experts": (),
    "optimizer_parameters": 1 << 27,
    "memory_bytes": 1 << 30,
    "collective_bytes": [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 28],
}
JOBS: Mapping[str, Mapping[str, Any]] = MappingProxyType({"cpu": HOST_JOB, "cuda": CARD_JOB})


def benchmark(device: str, ranks: int, threads: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Run the benchmarks with `ranks` ranks on "cpu" or "cuda"; `seconds` is what one kernel is repeated for.

    Logs stay in `folder`. Raises EnvironmentMissingError where they do not come to an end, with the last lines.
    """
    job = {**JOBS[device], "seconds": seconds, "run": {"threads": threads, "device": device}}
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    words = command(ranks, job_file, folder, PROGRAM)
    ended = run_group(words, folder, environment(device, threads), Limits(start_s=3600.0), lambda _: None)
    found = folder / "bench.json"
    if ended.exit_code != 0 or not found.exists():
        failure = outcome_of(ended, folder, ranks).failure
        lines = "" if failure is None else "\n".join((failure.message, *failure.excerpt[-4:]))
        raise EnvironmentMissingError(f"the benchmarks ended early: {lines}", f"logs: {folder}")
    bench: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return bench
