"""What a rank writes down while it runs: progress lines that the runner follows, and its own part of the record.

`progress-<rank>.jsonl` gets a line for every phase and step, flushed at once, so that a rank that dies leaves what it
had measured; `rank-<rank>.json` is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import resource
import sys
import time
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

SETTINGS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "tp_comm_overlap", "overlap_p2p_comm", "batch_p2p_comm", "microbatch_group_size_per_vp_stage",
    "overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "moe_shared_expert_overlap",
    "moe_token_dispatcher_type", "moe_grouped_gemm", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "recompute_modules", "cuda_graph_impl", "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion", "bf16", "fp16", "fp8", "num_layers", "num_moe_experts", "moe_router_topk",
    "moe_deepep_num_sms", "moe_hybridep_num_sms", "cp_comm_type", "moe_permute_fusion", "bias_activation_fusion",
    "apply_rope_fusion", "fp8_recipe", "fp8_param", "fp4", "moe_flex_dispatcher_backend",
)  # fmt: skip
DDP_SETTINGS = (
    "overlap_grad_reduce", "overlap_param_gather", "align_param_gather", "use_distributed_optimizer", "bucket_size",
    "grad_reduce_in_fp32", "num_distributed_optimizer_instances", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "delay_wgrad_compute", "fp8_param_gather",
)  # fmt: skip

PACKAGES = (
    "transformer-engine", "apex", "deep-ep", "flash-attn", "flash-attn-3", "emerging-optimizers", "triton",
)  # fmt: skip
VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_", "NVTE_", "TORCH_NCCL_", "OMP_NUM_THREADS", "PYTORCH_", "UB_", "NVSHMEM_",
)  # fmt: skip


class Witness:
    """Writer of one rank's files in `folder`."""

    def __init__(self, folder: Path, rank: int, device: str) -> None:
        self.rank, self.device, self.folder = rank, device, folder
        self.begin = time.monotonic()
        self.found: dict[str, Any] = {"rank": rank, "device": device, "outcome": "unfinished", "steps": []}
        self.lines = (folder / f"progress-{rank}.jsonl").open("a", encoding="utf-8", buffering=1)
        self.phase("started", pid=os.getpid())

    def phase(self, name: str, **facts: Any) -> None:
        """Tell the runner that something has been reached."""
        self.lines.write(json.dumps({"at": name, "s": time.monotonic() - self.begin, **facts}) + "\n")

    def step(self, number: int, phase: str, seconds: float, loss: float | None, grad_norm: float | None) -> None:
        """Note a step that has ended."""
        self.found["steps"].append({"phase": phase, "step_s": seconds, "loss": loss, "grad_norm": grad_norm})
        self.phase("step", number=number, phase=phase, step_s=seconds, loss=loss)

    def warmed_up(self) -> None:
        """Peaks count from here: what building the model and the first steps took for a moment is no part of them."""
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()

    def memory(self) -> None:
        """Note the peaks since the warm-up, in bytes: of the allocator on a GPU, of the resident set on a CPU.

        On a GPU `device_bytes` is what all programs hold of it now: the allocator's, NCCL's, user buffers, the context.
        """
        peak: dict[str, int | None] = {"allocated_bytes": None, "reserved_bytes": None}
        if self.device == "cuda":
            import torch

            free, total = torch.cuda.mem_get_info()
            peak = {
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "device_bytes": total - free,
            }
        peak["resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.found["memory"] = peak

    def built(self, built: Any) -> None:
        """Note what the library made of the job: settings after its own resolution, layers and parameters."""
        wrapped = built.chunks[0]
        ddp = {name: _plain(getattr(built.ddp_config, name, None)) for name in DDP_SETTINGS}
        ddp["bucket_size"] = _plain(wrapped.bucket_size)
        self.found["effective"] = {
            **{name: _plain(getattr(built.config, name)) for name in SETTINGS if hasattr(built.config, name)},
            "ddp": ddp,
            "layer_spec": built.layer_spec,
            "ignored": list(built.ignored),
        }
        self.found["parameters"] = sum(p.numel() for chunk in built.chunks for p in chunk.parameters())
        self.found["layers"] = [_layers(chunk) for chunk in built.chunks]
        self.found["stand_ins"] = list(built.stand_ins)
        self.found["environment"] = environment(self.device)
        self.phase("built")
        self.write()

    def write(self, outcome: str | None = None, **facts: Any) -> None:
        """Replace the rank's file."""
        if outcome is not None:
            self.found["outcome"] = outcome
        self.found.update(facts)
        path = self.folder / f"rank-{self.rank}.json"
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(self.found), encoding="utf-8")
        beside.replace(path)


def _layers(chunk: Any) -> int:
    inner = chunk.module
    while not hasattr(inner, "decoder"):
        inner = inner.module
    return len(inner.decoder.layers)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str | list | type(None)) else str(value)


def _processor() -> str:
    """Name of the processor as Linux tells it, empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def environment(device: str) -> dict[str, Any]:
    """Versions and machine: what has to be equal for two records to be compared."""
    import megatron.core
    import torch

    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "megatron_core": megatron.core.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.release(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
    }
    if device == "cuda":
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        nccl = list(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
        found |= {"gpu": card.name, "gpu_bytes": card.total_memory, "nccl": nccl}
        found |= {"cudnn": torch.backends.cudnn.version(), "packages": _packages()}  # type: ignore[no-untyped-call]
    found["variables"] = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    return found


def _packages() -> dict[str, str]:
    """Versions of the packages of GPU kernels that are installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
