"""Parts that need a package which may be missing here: Megatron-FSDP, Muon, user buffers.

`settled` looks at what is installed and gives the job as it can be run, with what stands in for the rest in words, so
that no record is silent about it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

OF_FSDP = ("use_megatron_fsdp", "data_parallel_sharding_strategy", "gradient_reduce_div_fusion")


def settled(job: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The job as this installation can run it, and what stands in for what it lacks."""
    found, said = {name: dict(one) if isinstance(one, Mapping) else one for name, one in job.items()}, []
    ddp, optimizer, config = found["ddp"], found["optimizer"], found["config"]
    if ddp.get("use_megatron_fsdp") and (lack := _lack_of_fsdp()):
        for name in OF_FSDP:
            ddp.pop(name, None)
        said.append(f"plain distributed optimizer in place of Megatron-FSDP: {lack}")
    if optimizer["optimizer"] == "muon":
        if find_spec("emerging_optimizers") is None:
            optimizer["optimizer"] = "adam"
            said.append("adam in place of muon: emerging_optimizers is not installed")
        else:  # megatron-core shards the states of Muon by layers and refuses its distributed optimizer
            for one in (ddp, optimizer):
                one.update(use_distributed_optimizer=False, overlap_param_gather=False)
    if config.get("tp_comm_overlap") and find_spec("transformer_engine") is None:
        config["tp_comm_overlap"] = False
        said.append("plain collectives in place of user buffers: transformer_engine is not installed")
    return found, tuple(said)


def _lack_of_fsdp() -> str:
    if find_spec("einops") is None:
        return "einops is not installed"
    try:
        adapter = importlib.import_module("megatron.core.distributed.fsdp.mcore_fsdp_adapter")
    except ImportError as problem:
        return str(problem)
    return "" if adapter.HAVE_MEGATRON_FSDP else "this megatron-core has none"


def open_user_buffers(job: Mapping[str, Any], config: Any) -> tuple[str, ...]:
    """Make Transformer Engine's buffers for overlapped tensor parallelism, as Megatron's training does.

    Where it refuses, tensor parallelism runs on plain collectives; what it said is handed back.
    """
    if not config.tp_comm_overlap:
        return ()
    base = importlib.import_module("transformer_engine.pytorch.module.base")
    batch, quantised = job["batch"], config.fp8 is not None
    shape = [batch["seq_len"] * batch["mbs"] // job["sizes"]["cp"], config.hidden_size]
    more: dict[str, Any] = {"use_fp8": quantised}
    if "quantization_modes" in inspect.signature(base.initialize_ub).parameters:  # from 2.7
        modes = base.UserBufferQuantizationMode
        more = {"quantization_modes": [modes.FP8 if quantised else modes.NONE]}
    try:
        base.initialize_ub(shape=shape, tp_size=job["sizes"]["tp"], ub_cfgs={}, bootstrap_backend="nccl", **more)
    except (RuntimeError, AssertionError, TypeError, ValueError) as problem:
        config.tp_comm_overlap = False
        return (f"plain collectives in place of user buffers: Transformer Engine says {str(problem).splitlines()[0]}",)
    return ()
