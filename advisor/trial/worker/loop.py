"""Runs and times the steps of a trial: mock data, the real schedule, warm-up, steady steps, a profiled window."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advisor.trial.worker.build import Built
from advisor.trial.worker.groups import name_groups
from advisor.trial.worker.witness import Witness

POOL = 4


class NotFiniteError(RuntimeError):
    """The loss or the gradient norm is NaN or infinite."""


def run_steps(built: Built, witness: Witness, folder: Path) -> None:
    """Warm-up, steady steps and the profiled window of the job; every step is told to `witness`.

    Raises NotFiniteError for a loss or gradient norm that is not finite. Traces go to `folder`/traces.
    """
    plan = built.job["run"]
    batches = _batches(built)
    total = plan["warmup"] + plan["steps"]
    for number in range(total):
        if number == plan["warmup"]:
            witness.warmed_up()
        _timed(built, batches, witness, number, "warm-up" if number < plan["warmup"] else "steady")
    witness.memory()
    if plan["profile_steps"]:
        _profiled(built, batches, witness, total, folder / "traces")


def _profiled(built: Built, batches: list[dict[str, Any]], witness: Witness, first: int, folder: Path) -> None:
    """One step to warm the profiler up and the steps that are kept, with the step marks that readers look for."""
    from torch.profiler import ProfilerActivity, profile, schedule

    folder.mkdir(parents=True, exist_ok=True)
    steps = built.job["run"]["profile_steps"]
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if built.on_gpu else [])
    path = folder / f"rank-{torch.distributed.get_rank()}.json.gz"
    with profile(
        activities=kinds,
        schedule=schedule(wait=0, warmup=1, active=steps),
        record_shapes=True,
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    ) as profiler:
        for number in range(first, first + 1 + steps):
            _timed(built, batches, witness, number, "profiled")
            profiler.step()
    if not built.on_gpu:
        name_groups(path)


def _timed(built: Built, batches: list[dict[str, Any]], witness: Witness, number: int, phase: str) -> None:
    begin = time.perf_counter()
    loss, grad_norm = _step(built, batches)
    if built.on_gpu:
        torch.cuda.synchronize()
    witness.step(number, phase, time.perf_counter() - begin, loss, grad_norm)
    for name, value in (("loss", loss), ("gradient norm", grad_norm)):
        if value is not None and not math.isfinite(value):
            raise NotFiniteError(f"{name} is {value} in step {number}")


def _step(built: Built, batches: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """One training step; the mean loss on ranks of the last stage, and the gradient norm."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    job = built.job
    for chunk in built.chunks:
        chunk.zero_grad_buffer()
    built.optimizer.zero_grad()
    streams = [_stream(batches) for _ in built.chunks]
    losses = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=streams if len(streams) > 1 else streams[0],
        model=built.chunks if len(built.chunks) > 1 else built.chunks[0],
        num_microbatches=job["batch"]["num_microbatches"],
        seq_length=job["batch"]["seq_len"],
        micro_batch_size=job["batch"]["mbs"],
        forward_only=False,
    )
    _, grad_norm, _ = built.optimizer.step()
    loss = sum(float(one["loss"]) for one in losses) / len(losses) if losses else None
    return loss, None if grad_norm is None else float(grad_norm)


def _forward(stream: Iterator[dict[str, Any]], model: Any, return_schedule_plan: bool = False) -> tuple[Any, Any]:
    """Output of a microbatch and its loss; the schedule that overlaps expert exchange asks for the plan instead."""
    batch = next(stream)
    run = model.build_schedule_plan if return_schedule_plan else model
    output = run(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(_loss, batch["loss_mask"])


def _loss(mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    # The schedule divides the loss in place, so what is reported is a copy.
    loss = (output.float() * mask).sum() / mask.sum()
    return loss, {"loss": loss.detach().clone()}


def _stream(batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    while True:
        yield from batches


def _batches(built: Built) -> list[dict[str, Any]]:
    """A few microbatches of random tokens, equal on all ranks that work on the same data."""
    from megatron.core import parallel_state

    batch, run = built.job["batch"], built.job["run"]
    source = torch.Generator().manual_seed(run["seed"] + 7919 * parallel_state.get_data_parallel_rank())
    device = torch.device("cuda", torch.cuda.current_device()) if built.on_gpu else torch.device("cpu")
    found = []
    for _ in range(min(POOL, batch["num_microbatches"])):
        tokens = torch.randint(batch["vocab_size"], (batch["mbs"], batch["seq_len"] + 1), generator=source)
        one = {
            "tokens": tokens[:, :-1].contiguous(),
            "labels": tokens[:, 1:].contiguous(),
            "loss_mask": torch.ones(batch["mbs"], batch["seq_len"]),
            "position_ids": torch.arange(batch["seq_len"]).repeat(batch["mbs"], 1),
        }
        whole = {name: value.to(device) for name, value in one.items()}
        found.append(_share(whole) if built.job["sizes"]["cp"] > 1 else whole)
    return found


def _share(batch: dict[str, Any]) -> dict[str, Any]:
    """This context-parallel rank's part of a microbatch; megatron-core 0.19 asks whether groups are hybrid."""
    from megatron.core.utils import get_batch_on_this_cp_rank

    hybrid = "is_hybrid_cp" in inspect.signature(get_batch_on_this_cp_rank).parameters
    found: dict[str, Any] = get_batch_on_this_cp_rank(batch, **({"is_hybrid_cp": False} if hybrid else {}))
    return found
