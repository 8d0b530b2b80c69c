"""Seconds of a call while all ranks of a benchmark work.

A rank of one thread on a CPU is timed by the CPU time that it takes, drawn out where more ranks work than the host has
cores: the wall clock of a short call does not see that others have to wait for the core, and sees whoever else uses the
host. GPUs and ranks of several threads are timed by the wall clock, as collectives are, which wait.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

BLOCKS, LEAST_REPEATS, MOST_REPEATS = 5, 3, 1000
CALLS_ON_GPU = 20


def slowest(value: float) -> float:
    """The largest of a value over ranks."""
    found = torch.tensor([value], dtype=torch.float64)
    if dist.get_world_size() > 1:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def settle() -> None:
    """Wait until the device has done what it was given; a CPU has."""
    torch.get_device_module(torch.get_default_device()).synchronize()


def on_cpu() -> bool:
    """Whether tensors are made on the CPU."""
    return torch.get_default_device().type == "cpu"


def crowding(ranks: int, cores: int) -> float:
    """Seconds that pass for a rank while it works for one: ranks per core, 1 where each has its own."""
    return max(ranks / cores, 1.0)


def once(run: Callable[[], object], before: Callable[[], object] = settle) -> float:
    """Seconds of one call after `before`; on a GPU of many calls, where a single one would show its launch."""
    before()
    settle()
    alone = on_cpu() and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    calls = 1 if on_cpu() else CALLS_ON_GPU
    begin = clock()
    for _ in range(calls):
        run()
    settle()
    spent = (clock() - begin) / calls
    return spent * crowding(dist.get_world_size(), len(os.sched_getaffinity(0))) if alone else spent


def timed(run: Callable[[], object], seconds: float, before: Callable[[], object] = settle) -> float:
    """Seconds of `run` on the slowest rank, over about `seconds` of repeats, as many on every rank: the lower quartile.

    What somebody else's work on the host adds, by caches and bandwidth it takes, comes and goes; that of the ranks of
    the benchmark stays.
    """
    run()
    begin = time.perf_counter()
    once(run, before)
    repeats = max(LEAST_REPEATS, int(seconds / slowest(time.perf_counter() - begin)))
    spent = sorted(once(run, before) for _ in range(min(repeats, MOST_REPEATS)))
    return slowest(spent[len(spent) // 4])


def waited(run: Callable[[], object], repeats: int) -> float:
    """Seconds that pass in one of about `repeats` calls that wait for other ranks: a block's mean, the median block."""
    run()
    blocks = []
    for _ in range(BLOCKS):
        settle()
        begin = time.perf_counter()
        for _ in range(max(1, repeats // BLOCKS)):
            run()
        settle()
        blocks.append((time.perf_counter() - begin) / max(1, repeats // BLOCKS))
    return statistics.median(blocks)
