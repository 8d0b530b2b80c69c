"""Micro-benchmarks of a host, run by all ranks at once: `python -m advisor.trial.worker.bench JOB FOLDER`.

All ranks work at the same time, as in training, so that rates are those of shared cores and shared memory; collectives
run in all groups of a size at once, and products read operands that no cache holds. A rank is a share of the CPU on
gloo, or a GPU on NCCL. Rank 0 writes `bench.json`: seconds by shape, of the slowest rank.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from advisor.trial.guard import end_with_starter
from advisor.trial.worker.clock import slowest, timed, waited
from advisor.trial.worker.replicas import DTYPES, overheads, passes

# Floats that a step passes over between two products: they push operands and results out of the caches of a core.
PASSED_OVER = 1 << 20
LAYER_HIDDEN = 16
LAYER_OPERATIONS = 40
COLLECTIVE_S = 0.01
"""What a collective is taken to last when its repeats are counted."""


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
    for name, seqs in job["attention_seq"].items():
        for seq, dim in itertools.product(seqs, job["attention_dim"]):
            shape = (1, job["attention_heads"], seq, dim)
            q, k, v = (torch.randn(shape).to(DTYPES[name]).requires_grad_() for _ in range(3))
            gradient = torch.ones_like(q)

            def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

            def both(forward: Any = forward, gradient: Any = gradient) -> None:
                torch.autograd.backward(forward(), gradient)

            row = {"dtype": name, "seq": seq, "dim": dim, "heads": job["attention_heads"]}
            yield row | {"s": timed(forward, job["seconds"]), "both_s": timed(both, job["seconds"])}


def accumulation(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds per element of adding gradients to an fp32 buffer, both in no cache."""
    each = PASSED_OVER // 8
    buffers = itertools.cycle(torch.zeros(job["pool_elements"]).view(-1, each))
    for name in job["dtypes"]:
        gradients = itertools.cycle(torch.ones(job["pool_elements"]).to(DTYPES[name]).view(-1, each))

        def run(gradients: Iterator[torch.Tensor] = gradients) -> None:
            next(buffers).add_(next(gradients))

        yield {"dtype": name, "element_s": timed(run, job["seconds"]) / each}


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
    repeats = int(job["seconds"] / COLLECTIVE_S)
    for ranks in (n for n in (2, 4, 8, 16) if n <= world):
        blocks = [list(range(first, first + ranks)) for first in range(0, world // ranks * ranks, ranks)]
        groups = [dist.new_group(block) for block in blocks]
        member = rank < len(blocks) * ranks
        group = groups[rank // ranks] if member else None
        for n_bytes in job["collective_bytes"]:
            for name, run in _calls(n_bytes, ranks, group).items():
                dist.barrier()
                spent = waited(run, repeats) if member else 0.0  # ranks that are in no group wait
                yield {"op": name, "ranks": ranks, "bytes": n_bytes, "s": slowest(spent)}


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
        "accumulation": list(accumulation(job)),
        "layer": list(passes(job)),
        "overhead": list(overheads(job)),
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
