"""Micro-benchmarks of a CPU host, run by all ranks at once: `python -m advisor.trial.worker.bench JOB FOLDER`.

All ranks work at the same time, as in training, so that rates are those of shared cores and shared memory. Rank 0
writes `bench.json`: seconds by shape, the median over repeats, of the slowest rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from advisor.trial.guard import end_with

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEAST_REPEATS = 3
LAYER_HIDDEN = 16
LAYER_OPERATIONS = 40


def slowest(value: float) -> float:
    """The largest of a value over ranks."""
    found = torch.tensor([value], dtype=torch.float64)
    if dist.get_world_size() > 1:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def timed(run: Callable[[], object], seconds: float) -> float:
    """Median seconds of `run` on the slowest rank, over about `seconds` of repeats, as many on every rank."""
    run()
    begin = time.perf_counter()
    run()
    repeats = max(LEAST_REPEATS, int(seconds / max(slowest(time.perf_counter() - begin), 1e-6)))
    spent = []
    for _ in range(min(repeats, 1000)):
        begin = time.perf_counter()
        run()
        spent.append(time.perf_counter() - begin)
    return slowest(statistics.median(spent))


def gemms(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Products of (m, k) and (k, n)."""
    for name in job["dtypes"]:
        for m, n, k in job["gemm"]:
            a, b = torch.randn(m, k).to(DTYPES[name]), torch.randn(n, k).to(DTYPES[name])
            seconds = timed(partial(torch.nn.functional.linear, a, b), job["seconds"])
            yield {"dtype": name, "m": m, "n": n, "k": k, "s": seconds}


def attention(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Causal attention of one sequence, forward and with its backward pass."""
    for seq in job["attention_seq"]:
        for dim in job["attention_dim"]:
            shape = (1, job["attention_heads"], seq, dim)
            q, k, v = (torch.randn(shape, dtype=DTYPES[job["dtypes"][-1]], requires_grad=True) for _ in range(3))

            def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

            def both(forward: Any = forward) -> None:
                torch.autograd.backward(forward().sum())

            row = {"seq": seq, "dim": dim, "heads": job["attention_heads"]}
            yield row | {"s": timed(forward, job["seconds"]), "both_s": timed(both, job["seconds"])}


def memory(job: dict[str, Any]) -> float:
    """Bytes per second of one rank adding two long vectors into a third."""
    a, b, out = (torch.ones(job["memory_bytes"] // 4) for _ in range(3))
    moved = 3.0 * float(job["memory_bytes"])
    return moved / timed(lambda: torch.add(a, b, out=out), job["seconds"])


def operation() -> float:
    """Seconds of one operation on almost nothing, forward and backward: what the host takes whatever the size."""
    x = torch.ones(LAYER_HIDDEN, requires_grad=True)

    def run() -> None:
        y = x
        for _ in range(LAYER_OPERATIONS):
            y = y * 1.0
        torch.autograd.backward(y.sum())

    return timed(run, 0.05) / LAYER_OPERATIONS


def collectives(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Collectives and a message between neighbours by bytes of the full tensor, over groups of 2, 4, ... ranks."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = [n for n in (2, 4, 8, 16) if n <= world]
    for ranks in sizes:
        group = dist.new_group(list(range(ranks)))
        for n_bytes in job["collective_bytes"]:
            for name, run in _calls(n_bytes, ranks, group).items():
                seconds = timed_in(run, job["seconds"], rank < ranks)
                yield {"op": name, "ranks": ranks, "bytes": n_bytes, "s": seconds}


def timed_in(run: Callable[[], object], seconds: float, member: bool) -> float:
    """As `timed`, where ranks that are no members of the group wait."""
    dist.barrier()
    spent = []
    for attempt in range(LEAST_REPEATS + 1 + int(seconds / 0.01)):
        begin = time.perf_counter()
        if member:
            run()
        if attempt:
            spent.append(time.perf_counter() - begin)
    return slowest(statistics.median(spent) if member else 0.0)


def _calls(n_bytes: int, ranks: int, group: Any) -> dict[str, Callable[[], object]]:
    """Calls by name; fp32, `n_bytes` as advisor.cost.comm counts them."""
    part = max(1, n_bytes // 4 // ranks)
    whole, share = torch.ones(part * ranks), torch.ones(part)
    out = torch.empty_like(whole)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, share, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(out, whole, group=group),
        "send_recv": lambda: _message(whole, group),
    }


def _message(tensor: torch.Tensor, group: Any) -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(tensor, 1, group=group)
    elif rank == 1:
        dist.recv(tensor, 0, group=group)


def main(job_file: str, folder: str) -> None:
    """Run all benchmarks of the job; rank 0 writes them down."""
    end_with(os.getppid())
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    torch.set_num_threads(job["run"]["threads"])
    dist.init_process_group("gloo")
    found = {
        "ranks": dist.get_world_size(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gemm": list(gemms(job)),
        "attention": list(attention(job)),
        "memory_Bps": memory(job),
        "operation_s": operation(),
        "collectives": list(collectives(job)),
    }
    if dist.get_rank() == 0:
        (Path(folder) / "bench.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
