"""Speed and memory of the trace reader: ratios that hold on any machine.

    python tests/bench/trace_speed.py [--megabytes 250] [--hta PYTHON]

Generates a Kineto file of that size, measures it with `advisor trace` (end to end, peak memory over the file's size),
with `json.load` for scale, and, where an interpreter with HolisticTraceAnalysis 0.5.0 is given, with its
`get_comm_comp_overlap` on the same file. Times are CPU seconds, but those of the interval core (10 million events).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from advisor.trace.intervals import covered, intersect, union

EVENTS = 10_000_000
REPEATS = 3
STEPS = 5
GEMM = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nt_align8>(cutlass_80_tensorop_bf16)"
)
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, float*)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2], include_last_profiler_step=True)
print(found.get_comm_comp_overlap(visualize=False))
"""
OURS = "import sys; from advisor.cli.main import run; sys.exit(run(sys.argv[1:]))"
WHOLE = "import json, sys; json.load(open(sys.argv[1]))"


def _operation(at: float, index: int, name: str, kernel: str, stream: int, dur: float) -> list[dict[str, object]]:
    """What one operator leaves in a Kineto file: operator, launch, kernel and the flow between them."""
    grid = {"queued": 0, "registers per thread": 128, "shared memory": 98304, "blocks per SM": 1.0, "warps per SM": 8.0,
            "grid": [64, 8, 1], "block": [256, 1, 1], "est. achieved occupancy %": 12}  # fmt: skip
    link = {"External id": index, "device": 0, "context": 1, "stream": stream, "correlation": index}
    shapes = {"Input Dims": [[4096, 8192], [8192, 8192]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    group: dict[str, object] = {}
    if kernel is NCCL:
        group = {"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "BFloat16",
                 "Process Group Name": "3", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP",
                 "Process Group Ranks": "[0, 1]"}  # fmt: skip
    start = at + 40
    return [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 77, "tid": 77, "ts": at, "dur": 30.5,
         "args": {"External id": index, "Record function id": 0, "Ev Idx": index, **shapes}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 77, "ts": at + 5, "dur": 6.25,
         "args": {"External id": index, "cbid": 211, "correlation": index}},
        {"ph": "s", "id": index, "pid": 77, "tid": 77, "ts": at + 5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": stream, "ts": start, "dur": dur,
         "args": {**link, **grid, **group}},
        {"ph": "f", "id": index, "pid": 0, "tid": stream, "ts": start, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    ]  # fmt: skip


def generate(path: Path, megabytes: float) -> int:
    """Write a file of about this size; returns its events."""
    one = len(json.dumps(_operation(1e6, 1, "aten::mm", GEMM, 7, 30.0)))
    operations = round(megabytes * 1e6 / one)
    events = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},\n')
        file.write('"deviceProperties": [{"id": 0, "name": "made up"}], "traceEvents": [\n')
        for index in range(operations):
            kind = index % 8
            kernel, stream = (NCCL, 20) if kind == 7 else (NORM, 7) if kind % 3 == 2 else (GEMM, 7)
            batch = _operation(1e6 + 40.0 * index, index + 1, "aten::mm", kernel, stream, 60.0 if kind == 7 else 35.0)
            file.write(",\n".join(map(json.dumps, batch)) + ",\n")
            events += len(batch)
        length = 40.0 * operations / STEPS
        marks = [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 77, "tid": 77,
             "ts": 1e6 + step * length, "dur": length - 1, "args": {"External id": 0}}
            for step in range(STEPS)
        ]  # fmt: skip
        file.write(",\n".join(map(json.dumps, marks)) + "\n]}\n")
    return events + STEPS


def measured(command: list[str]) -> tuple[float, float]:
    """CPU seconds (other work on the machine leaves them alone) and peak resident MB of a command."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        error = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[:3]} failed: {error.decode()[-400:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def best(command: list[str], repeats: int = REPEATS) -> tuple[float, float]:
    """The least of several runs."""
    found = [measured(command) for _ in range(repeats)]
    return min(seconds for seconds, _ in found), min(peak for _, peak in found)


def interval_core() -> None:
    """Union of two halves of 10 million events, their intersection, and its share of 1000 windows."""
    random = np.random.default_rng(0)
    for label, start in (
        ("in order", np.sort(random.integers(0, 10**12, EVENTS))),
        ("shuffled", random.integers(0, 10**12, EVENTS)),
    ):
        end = start + random.integers(0, 10**5, EVENTS)
        edges = np.linspace(0, 10**12, 1001).astype(np.int64)
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            compute, communication = union(start[::2], end[::2]), union(start[1::2], end[1::2])
            covered(intersect(compute, communication), edges[:-1], edges[1:])
            times.append(time.perf_counter() - begin)
        print(
            f"interval core, 10 million events {label}: {min(times):.2f} s, {EVENTS / min(times) / 1e6:.1f} M events/s"
        )


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=250)
    parser.add_argument("--hta", help="Python with HolisticTraceAnalysis 0.5.0")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.json"
        events = generate(path, chosen.megabytes)
        size = path.stat().st_size / 1e6
        print(f"file: {size:.0f} MB, {events:,} events")
        seconds, peak = best([sys.executable, "-c", OURS, "trace", str(path), "--format", "json"])
        print(f"advisor trace: {seconds:.2f} CPU s ({events / seconds / 1e6:.2f} M events/s), peak {peak:.0f} MB")
        print(f"  peak memory / file size: {peak / size:.2f} (1.5 asked for)")
        scale, whole = best([sys.executable, "-c", WHOLE, str(path)], 1)
        print(
            f"json.load alone: {scale:.2f} CPU s = {scale / seconds:.1f} x, peak {whole:.0f} MB = {whole / peak:.1f} x"
        )
        if chosen.hta:
            theirs, most = best([chosen.hta, "-c", HTA, str(path), folder], 1)
            print(f"HTA 0.5.0: {theirs:.2f} CPU s = {theirs / seconds:.1f} x (10 asked for)")
            print(f"  peak {most:.0f} MB = {most / peak:.1f} x (4 asked for)")
    # Last: a child's peak memory counts that of the parent it was forked from.
    interval_core()


if __name__ == "__main__":
    main()
