"""Speed and memory of reading back logs; prints MB per CPU second and peak memory, asserts that memory is bounded."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.bench.test_diagnose import TARGET_BYTES, unlike

pytestmark = pytest.mark.bench
CODE = """
import resource, sys, time
from advisor.check.readback import read_log
from advisor.check.readback.wording import wordings
wordings()
best = 1e9
for _ in range(3):
    start = time.process_time()
    try:
        read_log([sys.argv[1]])
    except Exception as problem:
        print(type(problem).__name__, file=sys.stderr)
    best = min(best, time.process_time() - start)
print(best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def megatron(line: random.Random, number: int) -> str:
    return (
        f" [2026-08-17 17:{number % 60:02d}:11.123456] iteration {number + 1:8d}/ 9600000 | consumed samples: {number * 128:12d} | elapsed "
        f"time per iteration (ms): {line.random() * 100 + 4000:.1f} | throughput per GPU (TFLOP/s/GPU): {line.random() * 400:.1f} | "
        f"learning rate: 1.904232E-04 | global batch size:   128 | lm loss: {line.random():.6E} | loss scale: 1.0 | grad norm: 0.656 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def usual(line: random.Random, number: int) -> str:
    noise = "".join(
        f"node-{rank // 8:03d}:984:1357 [{rank % 8}] NCCL INFO Channel {number % 32:02d}/0 : {number % 8}[4] -> 5[5] via P2P/CUMEM/read\n"
        for rank in range(6)
    )
    return megatron(line, number) + noise


def bridge(line: random.Random, number: int) -> str:
    short = f"Step Time : {line.random() + 2:.2f}s GPU utilization: {line.random() * 400:.1f}MODEL_TFLOP/s/GPU\n"
    return short + megatron(line, number)


def nemo(line: random.Random, number: int) -> str:
    return (
        f"[NeMo I 2026-08-17 17:{number % 60:02d}:11 nemo_logging:393] Training epoch 0, iteration {number}/999999 | lr: 1.499e-07 | "
        f"global_batch_size: 32 | global_step: {number} | reduced_train_loss: {line.random():.4f} | train_step_timing in s: "
        f"{line.random() + 2:.4f} | consumed_samples: {number * 32}\n"
    )


def coloured(line: random.Random, number: int) -> str:
    return f"[rank{number % 8}]: \x1b[32m{megatron(line, number).rstrip()}\x1b[0m\n"


def labelled(line: random.Random, number: int) -> str:
    return f"{number % 64}: {megatron(line, number)}"


def bars(line: random.Random, number: int) -> str:
    bar = "".join(f"\rTraining:  {at}%|\u2588\u258f   | {number}/9600000 [00:01<10:00, 2.3it/s]" for at in range(3))
    return f"{bar}\r{megatron(line, number).rstrip()}\r\n"


def giant(line: random.Random, number: int) -> str:
    return f"\rEpoch 0: :   5%|\u258c | {number}/100 [00:12<03:45, reduced_train_loss={line.random():.2f}, train_step_timing in s={line.random():.3f}]"


KINDS = [usual, megatron, bridge, nemo, coloured, labelled, bars, unlike, giant]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_speed(kind, tmp_path, capsys):
    line, path, number = random.Random(0), tmp_path / "job.log", 0
    with path.open("wb") as file:
        while file.tell() < TARGET_BYTES:
            file.write("".join(kind(line, at) for at in range(number, number + 20_000)).encode())
            number += 20_000
    size = path.stat().st_size
    ran = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True)
    seconds, peak_kib = map(float, ran.stdout.split())
    with capsys.disabled():
        print(
            f"\n{kind.__name__}: {size / 1e6 / seconds:.0f} MB per CPU second, peak {peak_kib / 1024:.0f} MiB", end=""
        )
    assert peak_kib < 200 * 1024
