"""The only unit conversions of the package.

Inside the package sizes are bytes, work is FLOP, rates are per second and times are seconds.
GiB, GB/s, Gb/s, TFLOP/s and ms exist only at the border (presets, tables, JSON).
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

GIB = float(2**30)
MIB = float(2**20)
GB = 1e9
TERA = 1e12


def gib(n_bytes: T) -> T:
    """Bytes to GiB; works on numbers and arrays."""
    return n_bytes / GIB  # type: ignore[operator, return-value]


def from_gib(n_gib: float) -> float:
    """GiB to bytes."""
    return n_gib * GIB


def gbs_to_bps(gigabytes_per_second: float) -> float:
    """GB/s (1e9 bytes) to bytes per second."""
    return gigabytes_per_second * GB


def tflops_to_flops(teraflops: float) -> float:
    """TFLOP/s to FLOP/s."""
    return teraflops * TERA
