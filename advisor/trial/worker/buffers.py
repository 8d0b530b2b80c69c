"""User buffers of Transformer Engine, in which tensor-parallel communication runs beside the product it feeds."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from advisor.trial.worker.said import first_line

PLAIN = "plain collectives in place of user buffers"


def open_user_buffers(job: Mapping[str, Any], config: Any, dtype: torch.dtype) -> tuple[str, ...]:
    """Make the buffers for overlapped tensor parallelism, as Megatron's training does before it builds the model.

    Where Transformer Engine refuses on one rank, all ranks run on plain collectives; what it said is handed back.
    """
    if not config.tp_comm_overlap:
        return ()
    base = importlib.import_module("transformer_engine.pytorch.module.base")
    why = ""
    try:
        base.initialize_ub(**arguments(base, job, config, dtype))
    except (RuntimeError, AssertionError, TypeError, ValueError, KeyError, AttributeError, OSError) as problem:
        why = f"Transformer Engine says {first_line(problem)}"
    if not _all_ranks(not why):
        if not why:
            base.destroy_ub()
        config.tp_comm_overlap = False
        return (f"{PLAIN}: {why or 'another rank has none'}",)
    return ()


def arguments(base: Any, job: Mapping[str, Any], config: Any, dtype: torch.dtype) -> dict[str, Any]:
    """What initialize_ub is told; `base` is the module that holds it.

    One buffer holds the tokens of a microbatch, [seq x mbs / cp, hidden]. From 2.8 on Transformer Engine is told number
    formats in the place of `use_fp8` (megatron/training/initialize.py tells them from 2.7 on, which refuses them).
    """
    batch, sizes, quantised = job["batch"], job["sizes"], bool(config.fp8)
    found: dict[str, Any] = {
        "shape": [batch["seq_len"] * batch["mbs"] // sizes["cp"], config.hidden_size],
        "tp_size": sizes["tp"],
        "dtype": dtype,
        "ub_cfgs": {gemm: dict(settings) for gemm, settings in job.get("user_buffers", {}).items()},
        "bootstrap_backend": "nccl",
    }
    if "quantization_modes" in inspect.signature(base.initialize_ub).parameters:
        modes = base.UserBufferQuantizationMode
        return found | {"quantization_modes": [modes.FP8 if quantised else modes.NONE]}
    return found | {"use_fp8": quantised}


def _all_ranks(fine: bool) -> bool:
    """Whether it is fine on every rank."""
    said = torch.tensor(float(fine), device=torch.cuda.current_device())
    torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MIN)
    return bool(said)
