"""CUDA out of memory: too small, or in pieces? Decided from the numbers that the allocator prints.

Memory that is reserved but unallocated is cut into pieces that nobody uses. Where that would have held the request and
is a large share of what is reserved, the request failed for the pieces (c10/cuda/CUDACachingAllocator.cpp prints both
forms below, the second one before torch 2.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from advisor.diagnose.patterns import Confidence

UNITS = {"bytes": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "KB": 2.0**10,
         "MB": 2.0**20, "GB": 2.0**30}  # fmt: skip
LARGE_SHARE = 0.10
NOTABLE_SHARE = 0.05

_SIZE = r"(?P<{0}>[\d.]+) (?P<{0}_unit>bytes|[KMGT]i?B|B)"


def _sized(before: str, name: str, after: str = "") -> re.Pattern[str]:
    return re.compile(before + _SIZE.format(name) + after)


_TRIED = _sized("Tried to allocate ", "size")
_CAPACITY = (_sized("total capaci?ty of ", "size"), _sized("; ", "size", " total capaci?ty"))
_ALLOCATED = (_sized("", "size", " is allocated by PyTorch"), _sized("; ", "size", " already allocated"))
_UNUSED = (_sized("", "size", " is reserved by PyTorch but unallocated"),)
_RESERVED = (_sized("; ", "size", " reserved in total"),)
_FREE = (_sized("of which ", "size", " is free"), _sized("; ", "size", " free"))
_OTHERS = re.compile(r"Process \d+ has " + _SIZE.format("size") + " memory in use")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Numbers of one message in bytes (None or 0 = not printed); `unused_bytes` is reserved but unallocated."""

    tried_bytes: float | None
    capacity_bytes: float | None
    allocated_bytes: float | None
    unused_bytes: float | None
    free_bytes: float
    others_bytes: float

    @property
    def unused_share(self) -> float | None:
        """Unused share of what the allocator holds."""
        if self.unused_bytes is None or self.allocated_bytes is None:
            return None
        held = self.unused_bytes + self.allocated_bytes
        return self.unused_bytes / held if held > 0 else None

    def kind(self) -> tuple[str, Confidence]:
        """Cause id and confidence."""
        share = self.unused_share
        if share is None or self.tried_bytes is None or self.unused_bytes is None:
            return "cuda_oom", "medium" if share is None and self.tried_bytes is None else "high"
        if self.unused_bytes + self.free_bytes < self.tried_bytes or share < NOTABLE_SHARE:
            return "cuda_oom", "high"
        return "cuda_oom_fragmentation", "high" if share >= LARGE_SHARE else "medium"

    def said(self) -> str:
        """The numbers in one sentence, or nothing where the message has none."""
        if self.tried_bytes is None:
            return ""
        parts = [f"asked for {_gib(self.tried_bytes)}"]
        if self.allocated_bytes is not None:
            parts.append(f"{_gib(self.allocated_bytes)} allocated")
        if self.unused_bytes is not None and self.unused_share is not None:
            parts.append(f"{_gib(self.unused_bytes)} reserved but unallocated ({self.unused_share:.0%})")
        if self.capacity_bytes is not None:
            parts.append(f"of {_gib(self.capacity_bytes)}")
        if self.others_bytes:
            parts.append(f"{_gib(self.others_bytes)} held by other processes")
        return ", ".join(parts)


def read_message(text: str) -> OutOfMemory:
    """The numbers of an out-of-memory message; those that it does not print are None."""
    allocated, unused, reserved = _first(_ALLOCATED, text), _first(_UNUSED, text), _first(_RESERVED, text)
    if unused is None and reserved is not None and allocated is not None:
        unused = max(reserved - allocated, 0.0)
    free, capacity = _first(_FREE, text) or 0.0, _first(_CAPACITY, text)
    others = _others(text, (allocated or 0.0) + (unused or 0.0), capacity)
    return OutOfMemory(_first((_TRIED,), text), capacity, allocated, unused, free, others)


def _others(text: str, own_bytes: float, capacity_bytes: float | None) -> float:
    """Memory of other processes.

    In a container the allocator does not know its own process among those of the GPU: where all of them and what it
    holds itself would not fit, the smallest that can hold it is its own.
    """
    sizes = [_bytes(found) for found in _OTHERS.finditer(text)]
    if capacity_bytes is not None and sum(sizes) + own_bytes > capacity_bytes:
        own = min((size for size in sizes if size >= own_bytes), default=None)
        return sum(sizes) - (own or 0.0)
    return sum(sizes)


def _first(forms: tuple[re.Pattern[str], ...], text: str) -> float | None:
    for form in forms:
        if found := form.search(text):
            return _bytes(found)
    return None


def _bytes(found: re.Match[str]) -> float:
    try:
        return float(found["size"]) * UNITS.get(found["size_unit"], 1.0)
    except ValueError:
        return 0.0


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.3g} GiB"
