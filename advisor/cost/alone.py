"""Profiles for kernels and layers that are timed alone, as micro-benchmarks do."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from advisor.cost.profile import Profile


def alone(profile: Profile) -> Profile:
    """`profile` without what a training step adds: power and clock derate, contention for memory, waiting for the host.

    The rates of a profile are sustained in training. A layer timed alone runs at boost clocks with the memory to
    itself: rates grow by the coefficients `alone_gemm_gain` and `alone_memory_gain`, and the host runs ahead.
    """
    gain, memory_gain = profile.value("alone_gemm_gain"), profile.value("alone_memory_gain")
    gemm = {
        name: replace(one, value=min(one.value * gain, profile.gpu.peak_flops(name.split("-")[0])))
        for name, one in profile.gemm.items()
    }
    coefficients = dict(profile.coefficients)
    share = coefficients["memory_share"]
    coefficients["memory_share"] = replace(share, value=min(share.value * memory_gain, 0.95))
    for name in ("host_sync_s", "host_sync_quantised_s"):
        coefficients[name] = replace(coefficients[name], value=0.0)
    return replace(profile, gemm=MappingProxyType(gemm), coefficients=MappingProxyType(coefficients))
