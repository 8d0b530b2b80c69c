"""Where the probe runs: a GPU (whole, or a slice of one) or a CPU, its clock, and the time that is left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

# Ampere is the first with flash attention and bf16 products.
LEAST_CAPABILITY = (8, 0)
CALLS = 10


class TimeUpError(RuntimeError):
    """The probe's time is over; what comes is left out."""


class SkippedError(RuntimeError):
    """This device, or this installation, cannot do it: no fault of either."""


class Device:
    """Where the probe runs, how it times and what it knows of memory; `small` shrinks every shape.

    `limit_s` is the time for everything: `check` raises TimeUpError when it is over.
    """

    def __init__(self, small: bool, limit_s: float) -> None:
        self.cuda = torch.cuda.is_available()
        self.name = "cuda" if self.cuda else "cpu"
        self.small = small
        self.repeats = 3 if small else 10
        self.begin, self.limit_s = time.monotonic(), limit_s

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.limit_s - (time.monotonic() - self.begin)

    def check(self) -> None:
        """Raise TimeUpError when the time is over."""
        if self.left_s <= 0:
            raise TimeUpError(f"{self.limit_s:.0f} s are over")

    def sync(self) -> None:
        """Wait for everything that was launched."""
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object]) -> float:
        """Median seconds of a call after a warm-up; on a GPU many calls between two looks at the clock."""
        calls = CALLS if self.cuda else 1
        for _ in range(2):
            run()
        spent = []
        for _ in range(self.repeats):
            self.sync()
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            self.sync()
            spent.append((time.perf_counter() - begin) / calls)
        return statistics.median(spent)

    def facts(self) -> dict[str, Any]:
        """What has to be equal for two reports to be compared."""
        found: dict[str, Any] = {"device": self.name, "torch": torch.__version__, "cuda": torch.version.cuda}
        if self.cuda:
            card = torch.cuda.get_device_properties(0)
            free, total = torch.cuda.mem_get_info()
            found |= {"gpu": card.name, "capability": f"{card.major}.{card.minor}", "sms": card.multi_processor_count,
                      "total_bytes": total, "free_bytes": free, "cudnn": torch.backends.cudnn.version()}  # fmt: skip
        return found

    def free_bytes(self) -> float:
        """Bytes that can still be allocated; no bound on a CPU."""
        return float(torch.cuda.mem_get_info()[0]) if self.cuda else float("inf")

    def require_flash(self) -> None:
        """SkippedError where attention would not be the fused kernel that is priced."""
        if self.cuda and torch.cuda.get_device_capability() < LEAST_CAPABILITY:
            raise SkippedError(f"compute capability {torch.cuda.get_device_capability()}: no flash attention in bf16")

    def shrunk(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes, in a self-test at most 128."""
        return tuple(min(size, 128) for size in sizes) if self.small else sizes
