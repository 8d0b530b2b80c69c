"""What an exception says in one line, and whether it means that memory ran out."""

from __future__ import annotations

import torch

# Besides torch.OutOfMemoryError: what CUDA, cuBLAS and NCCL say when their own allocations fail.
OUT_OF_MEMORY = (
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudaerrormemoryallocation",
)


def first_line(problem: BaseException) -> str:
    """The first line of its message, its kind where it has none."""
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether device memory ran out, in whichever library."""
    if isinstance(problem, torch.OutOfMemoryError):
        return True
    return isinstance(problem, RuntimeError) and any(word in str(problem).lower() for word in OUT_OF_MEMORY)
