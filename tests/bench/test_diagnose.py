"""Speed and memory of reading logs; prints MB/s and peak memory, asserts only that memory stays bounded."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.bench
TARGET_BYTES = 60_000_000


def usual(line: random.Random, number: int) -> str:
    return (
        f" [2026-08-17 17:{number % 60:02d}:11] iteration {number:8d}/ 9600000 | consumed samples: {number * 128:12d} | elapsed time "
        f"per iteration (ms): {line.random() * 4000:.1f} | throughput per GPU (TFLOP/s/GPU): {line.random() * 400:.1f} | learning "
        f"rate: 1.904232E-04 | global batch size:   128 | lm loss: {line.random():.6E} | loss scale: 1.0 | grad norm: 0.656 |\n"
        f"node-003:984:1357 [4] NCCL INFO Channel {number % 32:02d}/0 : {number % 8}[4] -> {number % 7}[5] via P2P/CUMEM/read\n"
        f"[rank{number % 64}]: INFO:megatron.core.optimizer:Setting up optimizer with config OptimizerConfig(lr=0.0003)\n"
    )


def unlike(line: random.Random, number: int) -> str:
    words = (
        "attention",
        "kernel",
        "shuffles",
        "towards",
        "granite",
        "observed",
        "quartz",
        "lantern",
        "merely",
        "velvet",
    )
    return " ".join(line.choice(words) + line.choice(words) for _ in range(8)) + f" {number}\n"


def flood(line: random.Random, number: int) -> str:
    return (
        f"node-{number % 900:03d}:2210:2293 [2] misc/ibvwrap.cc:252 NCCL WARN NET/IB : Got async event : port error\n"
        f"[rank{number % 4096}]:[E ProcessGroupNCCL.cpp:632] [Rank {number % 4096}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds\n"
    )


@pytest.mark.parametrize("kind", [usual, unlike, flood], ids=["usual", "unlike", "flood"])
def test_speed(kind, tmp_path, capsys):
    line, path, number = random.Random(0), tmp_path / "job.log", 0
    block = "".join(kind(line, number) for number in range(20_000)).encode()
    with path.open("wb") as file:
        while file.tell() < TARGET_BYTES:
            file.write(block)
            number += 1
    size = path.stat().st_size
    code = (
        "import resource, sys; from advisor.diagnose.run import diagnose; from advisor.diagnose.patterns import knowledge;"
        "knowledge(); import time; start, used = time.perf_counter(), time.process_time(); diagnose([sys.argv[1]]);"
        "print(time.perf_counter() - start, time.process_time() - used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    started = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    seconds, busy, peak_kib = map(float, ran.stdout.split())
    with capsys.disabled():
        print(
            f"\n{kind.__name__}: {size / 1e6:.0f} MB, {size / 1e6 / seconds:.0f} MB/s ({size / 1e6 / busy:.0f} MB per CPU second), peak {peak_kib / 1024:.0f} MiB,",
            end=" ",
        )
        print(
            f"{time.perf_counter() - started:.1f} s with start-up, self {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
        )
    assert peak_kib < 400 * 1024
