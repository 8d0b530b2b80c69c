"""Micro-benchmarks of a host, run by all ranks at once: `python -m advisor.trial.worker.bench JOB FOLDER`.

All ranks work at the same time, as in training, so that rates are those of shared cores and shared memory; collectives
run in all groups of a size at once, and products read operands that no cache holds. A rank is a share of the CPU on
gloo, or a GPU on NCCL. Rank 0 writes `bench.json`: seconds by shape, the median over repeats, of the slowest rank.
"""

from __future__ import annotations

import itertools
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

from advisor.trial.guard import end_with_starter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEAST_REPEATS = 3
DEPTH = 8
# Floats that a step passes over between two products: they push operands and results out of the caches of a core.
PASSED_OVER = 1 << 20
LAYER_HIDDEN = 16
LAYER_OPERATIONS = 40


def slowest(value: float) -> float:
    """The largest of a value over ranks."""
    found = torch.tensor([value], dtype=torch.float64)
    if dist.get_world_size() > 1:
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def settle() -> None:
    """Wait until the device has done what it was given; a CPU has."""
    torch.get_device_module(torch.get_default_device()).synchronize()


def calls() -> int:
    """Calls between two looks at the clock: many on a GPU, where a single one would show its launch."""
    return 1 if torch.get_default_device().type == "cpu" else 20


def once(run: Callable[[], object], before: Callable[[], object] = settle) -> float:
    """Seconds of one call, over `calls` of them, after `before`."""
    before()
    settle()
    begin = time.perf_counter()
    for _ in range(calls()):
        run()
    settle()
    return (time.perf_counter() - begin) / calls()


def timed(run: Callable[[], object], seconds: float, before: Callable[[], object] = settle) -> float:
    """Median seconds of `run` on the slowest rank, over about `seconds` of repeats, as many on every rank."""
    run()
    repeats = max(LEAST_REPEATS, int(seconds / max(slowest(once(run) * calls()), 1e-6)))
    return slowest(statistics.median(once(run, before) for _ in range(min(repeats, 1000))))


def gemms(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The three products of a linear layer of n x k weights and m rows; m, n, k of a row are those of its product."""
    between = partial(torch.ones(PASSED_OVER).add_, 1.0)
    for name in job["dtypes"]:
        pool = torch.randn(job["pool_elements"]).to(DTYPES[name])
        for m, n, k in job["gemm"]:
            weights, inputs, outputs = (
                itertools.cycle(pool[: pool.numel() // (a * b) * a * b].view(-1, a, b))
                for a, b in ((n, k), (m, k), (m, n))
            )
            sizes = {"fwd": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}
            runs: dict[str, Callable[[], object]] = {
                "fwd": partial(_product, inputs, weights, torch.nn.functional.linear),
                "dgrad": partial(_product, outputs, weights, torch.matmul),
                "wgrad": partial(_product, outputs, inputs, lambda y, x: y.t().matmul(x)),
            }
            for way, run in runs.items():
                row = {"dtype": name, "way": way, **dict(zip("mnk", sizes[way], strict=True))}
                yield row | {"s": timed(run, job["seconds"], between)}


def _product(
    left: Iterator[torch.Tensor], right: Iterator[torch.Tensor], product: Callable[[Any, Any], torch.Tensor]
) -> torch.Tensor:
    return product(next(left), next(right))


def attention(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Causal attention of one sequence, forward and with its backward pass."""
    for seq in job["attention_seq"]:
        for dim in job["attention_dim"]:
            shape = (1, job["attention_heads"], seq, dim)
            q, k, v = (torch.randn(shape, dtype=DTYPES[job["dtypes"][0]], requires_grad=True) for _ in range(3))
            gradient = torch.ones(shape, dtype=q.dtype)

            def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

            def both(forward: Any = forward, gradient: Any = gradient) -> None:
                torch.autograd.backward(forward(), gradient)

            row = {"seq": seq, "dim": dim, "heads": job["attention_heads"]}
            yield row | {"s": timed(forward, job["seconds"]), "both_s": timed(both, job["seconds"])}


def layers(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a layer does beside its products and attention, forward and backward, in the operations of the CPU worker.

    Two norms, two residual sums, rotary embedding of queries and keys, heads brought to the front, a gated
    activation; `DEPTH` layers forward and then backward, so that no cache holds what the backward pass reads.
    """
    for tokens, hidden, heads, dim, ffn in job["layer"]:
        streams = [torch.randn(tokens, 1, hidden, requires_grad=True) for _ in range(3)]
        qkv = torch.randn(tokens, 1, 3 * heads, dim, requires_grad=True)
        gated = torch.randn(tokens, 1, 2 * ffn, requires_grad=True)
        weight, angles = torch.ones(hidden, requires_grad=True), torch.rand(tokens, 1, 1, dim)
        gradients = [torch.ones_like(one) for one in _layer(streams, qkv, gated, weight, angles)]

        def both(given: Any = (streams, qkv, gated, weight, angles), gradients: Any = gradients) -> None:
            for outputs in [_layer(*given) for _ in range(DEPTH)]:
                torch.autograd.backward(outputs, gradients)

        row = {"tokens": tokens, "hidden": hidden, "heads": heads, "dim": dim, "ffn": ffn}
        yield row | {"both_s": timed(both, job["seconds"]) / DEPTH}


def _layer(
    streams: list[torch.Tensor], qkv: torch.Tensor, gated: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor
) -> list[torch.Tensor]:
    before, attended, down = streams
    after = before + attended
    q, k, v = qkv.chunk(3, 2)
    gate, up = gated.chunk(2, -1)
    return [
        *(torch.nn.functional.rms_norm(one, one.shape[-1:], weight) for one in (before, after)),
        *(one.permute(1, 2, 0, 3).contiguous() for one in (_turned(q, angles), _turned(k, angles), v)),
        torch.nn.functional.silu(gate) * up,
        after + down,
    ]


def _turned(t: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = t.shape[-1] // 2
    return t * angles + torch.cat((-t[..., half:], t[..., :half]), -1) * angles


def optimizer(job: dict[str, Any]) -> float:
    """Seconds per parameter of a step of Adam: gradients cleared, their norm, clipping, update, copy of the weights."""
    each = job["optimizer_parameters"] // 8
    held = [torch.nn.Parameter(torch.randn(each)) for _ in range(8)]
    trained = [torch.empty(each) for _ in held]
    for one in held:
        one.grad = torch.randn(each)
    adam = torch.optim.AdamW(held, lr=1e-4)

    def run() -> None:
        gradients = [one.grad for one in held if one.grad is not None]
        norm = torch.stack([torch.linalg.vector_norm(one) for one in gradients]).norm()
        for one in gradients:
            one.mul_(1.0 / (1.0 + float(norm)))
        adam.step()
        for to, one in zip(trained, held, strict=True):
            to.copy_(one.detach()).zero_()

    return timed(run, job["seconds"]) / float(8 * each)


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
    """Collectives and a message between neighbours by bytes of the full tensor, in all groups of 2, 4, ... at once."""
    world, rank = dist.get_world_size(), dist.get_rank()
    for ranks in (n for n in (2, 4, 8, 16) if n <= world):
        blocks = [list(range(first, first + ranks)) for first in range(0, world // ranks * ranks, ranks)]
        groups = [dist.new_group(block) for block in blocks]
        member = rank < len(blocks) * ranks
        group = groups[rank // ranks] if member else None
        for n_bytes in job["collective_bytes"]:
            for name, run in _calls(n_bytes, ranks, group).items():
                yield {"op": name, "ranks": ranks, "bytes": n_bytes, "s": timed_in(run, job["seconds"], member)}


def timed_in(run: Callable[[], object], seconds: float, member: bool) -> float:
    """As `timed`, where ranks that are in no group wait."""
    dist.barrier()
    spent = [once(run) if member else 0.0 for _ in range(LEAST_REPEATS + 1 + int(seconds / 0.01))]
    return slowest(statistics.median(spent[1:]))


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
        "there_and_back": lambda: _there_and_back(whole),
    }


def _there_and_back(tensor: torch.Tensor) -> None:
    """A message to the neighbour and its answer, in all pairs of neighbours at once."""
    rank = dist.get_rank()
    if rank % 2 == 0:
        dist.send(tensor, rank + 1)
        dist.recv(tensor, rank + 1)
    else:
        dist.recv(tensor, rank - 1)
        dist.send(tensor, rank - 1)


def open_device(run: dict[str, Any]) -> str:
    """Make this rank's device the one that tensors are made on, and open the process group; the device's name."""
    torch.set_num_threads(run["threads"])
    if run["device"] == "cpu":
        torch.set_default_device("cpu")
        dist.init_process_group("gloo")
        return "cpu"
    card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(card)
    torch.set_default_device(card)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl", device_id=card)
    return torch.cuda.get_device_name(card)


def main(job_file: str, folder: str) -> None:
    """Run all benchmarks of the job; rank 0 writes them down."""
    end_with_starter()
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    device = open_device(job["run"])
    found = {
        "device": device,
        "ranks": dist.get_world_size(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "gemm": list(gemms(job)),
        "attention": list(attention(job)),
        "layer": list(layers(job)),
        "optimizer_s": optimizer(job),
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
