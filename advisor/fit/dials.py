"""Coefficients that a fit moves, and profiles with them moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from advisor.cost.profile import Profile, load_profile
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array

PULL, RATE, LOOSE = 2.0, 0.6, 0.3
"""Weight of one e-fold of distance from the starting value against one run's log error, for most dials, for what one
GPU's rate differs from all others', and for what nothing but runs can tell. Chosen by the leave-one-model-out error:
weak pulls fit better and predict worse."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Coefficients that a fit moves together by one factor: names, and the architectures or GPUs it applies to.

    A name "gemm.bf16" is a sustained GEMM rate. `where` are beginnings of GPU names; empty means every GPU.
    """

    names: tuple[str, ...]
    where: tuple[str, ...] = ()
    pull: float = PULL

    @property
    def key(self) -> str:
        """Name in tables."""
        return "+".join(self.names) + ("@" + "/".join(self.where) if self.where else "")


HOPPER, BLACKWELL = ("h100", "h200", "h800"), ("b200", "b300", "gb200", "gb300")
BF16, FP8, FP4 = ("gemm.bf16", "gemm.fp16"), ("gemm.fp8", "gemm.mxfp8"), ("gemm.nvfp4",)
RAMPS = ("gemm_ramp_m", "gemm_ramp_n", "gemm_ramp_k")
DIALS = (
    *(Dial(names, pull=LOOSE) for names in (BF16, FP8, FP4, RAMPS)),
    *(Dial(BF16, where, RATE) for where in (("a100", "a800"), HOPPER, ("b200-sxm",), ("gb200",), ("gb300",))),
    *(Dial(FP8, where, RATE) for where in (HOPPER, ("b200-sxm",), ("gb200",), ("gb300",))),
    *(Dial(FP4, where, RATE) for where in (("gb200",), ("gb300",))),
    Dial(("grouped_fwd", "grouped_dgrad", "grouped_wgrad"), pull=LOOSE),
    Dial(("attention_time_factor",), ("a100", "a800", *HOPPER)),
    Dial(("attention_time_factor",), BLACKWELL),
    Dial(("attention_seq_shift",), BLACKWELL, LOOSE),
    Dial(("attention_sink_factor",), pull=LOOSE),
    Dial(("memory_share",)),
    Dial(("quantise_bytes",)),
    Dial(("mamba_peak_share",), pull=LOOSE),
    Dial(("per_expert_s",), pull=LOOSE),
    Dial(("host_sync_s",), pull=LOOSE),
    Dial(("host_sync_quantised_s",), pull=LOOSE),
    Dial(("chunk_overhead_s",), pull=LOOSE),
    Dial(("ep_exposed_overlap",), pull=LOOSE),
    Dial(("tp_exposed",)),
    Dial(("tp_exposed_overlap",)),
    Dial(("dp_exposed",)),
    Dial(("fsdp_exposed",)),
    Dial(("collective_wait_s",), pull=LOOSE),
    Dial(("layer_gap_s",), pull=RATE),
)  # fmt: skip
STACK_DIALS = tuple(
    Dial(names, pull=LOOSE)
    for names in (
        BF16, RAMPS, ("memory_share",), ("attention_time_factor",), ("host_dense_layer_s",), ("tp_exposed",),
        ("dp_exposed",), ("step_constant_s",), ("chunk_overhead_s",),
    )
)  # fmt: skip
"""What a training stack of its own (other kernels, other schedules) has of its own."""


def touched(profile: Profile, dial: Dial) -> Iterator[tuple[str, str]]:
    """(gemm | coefficients, key) of every coefficient of `profile` that a dial moves."""
    if dial.where and not profile.gpu.name.startswith(dial.where):
        return
    for name in dial.names:
        kind, key = ("gemm", name[5:]) if name.startswith("gemm.") else ("coefficients", name)
        if key in getattr(profile, kind):
            yield kind, key


def at_start(profile: Profile, dials: Sequence[Dial]) -> Profile:
    """`profile` with every coefficient of the dials where a fit begins, whatever the last fit made of it."""
    entries = {"coefficients": dict(profile.coefficients), "gemm": dict(profile.gemm)}
    for dial in dials:
        for kind, key in touched(profile, dial):
            entries[kind][key] = replace(entries[kind][key], value=entries[kind][key].start)
    return replace(
        profile, coefficients=MappingProxyType(entries["coefficients"]), gemm=MappingProxyType(entries["gemm"])
    )


def turned(profile: Profile, dials: Sequence[Dial], factors: Sequence[float] | Array) -> Profile:
    """`profile` with the coefficients of every dial that applies to its GPU multiplied, held inside their bounds."""
    entries = {"coefficients": dict(profile.coefficients), "gemm": dict(profile.gemm)}
    for dial, factor in zip(dials, factors, strict=True):
        for kind, key in touched(profile, dial):
            one = entries[kind][key]
            entries[kind][key] = replace(one, value=float(np.clip(one.value * factor, one.low, one.high)))
    return replace(
        profile, coefficients=MappingProxyType(entries["coefficients"]), gemm=MappingProxyType(entries["gemm"])
    )


def bounds(dials: Sequence[Dial], profiles: Sequence[Profile]) -> tuple[Array, Array]:
    """Least and greatest log factor of each dial such that every coefficient of `profiles` stays inside its bounds."""
    low, high = np.full(len(dials), -np.inf), np.full(len(dials), np.inf)
    for i, dial in enumerate(dials):
        for profile in profiles:
            for kind, key in touched(profile, dial):
                one = getattr(profile, kind)[key]
                low[i] = max(low[i], np.log(max(one.low, one.value * 0.1) / one.value))
                high[i] = min(high[i], np.log(one.high / one.value))
    return np.where(np.isfinite(low), low, 0.0) - 1e-6, np.where(np.isfinite(high), high, 0.0) + 1e-6


def fitted_profile(gpu: Gpu, dials: Sequence[Dial], factors: Sequence[float] | Array) -> Profile:
    """The GPU's profile with its starting values turned by `factors`; coefficients without a dial as committed."""
    return turned(at_start(load_profile(gpu), dials), dials, factors)
