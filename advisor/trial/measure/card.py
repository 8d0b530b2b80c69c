"""GPUs of this host: what was measured on them goes over the shipped profile of the system that they stand in.

A benchmark runs at boost clocks with the memory to itself, training does not: rates of products and of memory are
divided by the gains that the profile has for that (`cost.alone`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.cost.profile import Coefficient, load_profile
from advisor.spec.load.system import load_system
from advisor.trial.measure.rates import backward_ratio, gemm_rate, kernel_tables, latency, said

FORMATS = {"bf16": ("bf16", "fp16"), "fp32": ("tf32",)}
OPERATIONS_OF_A_LAYER = 60


def card_profile(bench: Mapping[str, Any], system: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """`fitted` and `kernels` of a system file, in the forms of profiles/fitted and profiles/kernels.

    Shapes keep the shipped ramps. A value beyond its bounds is held at them, and its source says so.
    """
    gpu = load_system(system).gpu
    profile = load_profile(gpu)
    value, source = profile.value, said(bench)
    ramps = {axis: value(f"gemm_ramp_{axis}") for axis in "mnk"}
    at_reference = 1 + sum(ramps.values()) / value("gemm_reference_dim")
    rates: dict[str, Any] = {}
    for dtype, formats in FORMATS.items():
        rate = gemm_rate([row for row in bench["gemm"] if row["dtype"] == dtype], ramps)["flops"]
        sustained = rate / at_reference / value("alone_gemm_gain")
        rates |= {fmt: _held(profile.gemm[fmt], sustained, source, 1e12) for fmt in formats if fmt in profile.gemm}
    fitted = {
        "memory_share": bench["memory_Bps"] / gpu.hbm_Bps / value("alone_memory_gain"),
        "attention_backward_ratio": backward_ratio(bench["attention"]),
        "host_dense_layer_s": bench["operation_s"] * OPERATIONS_OF_A_LAYER,
        "p2p_latency_s": latency(bench, value("p2p_latency_s")),
    }
    entries = {name: _held(profile.coefficients[name], found, source, 1.0) for name, found in fitted.items()}
    tables = kernel_tables(bench)
    if not tables["collectives_us"]:
        del tables["collectives_us"], tables["link_gbs"]
    return {"gemm_tflops": rates, **entries}, tables


def _held(old: Coefficient, found: float, source: str, unit: float) -> dict[str, Any]:
    """An entry of profiles/fitted with what was found, inside the bounds of the shipped one."""
    held = min(max(found, old.low), old.high)
    note = "" if held == found else f"; {found / unit:.4g} was found, the nearest bound is taken"
    numbers = {"value": held, "low": old.low, "high": old.high}
    rounded = {name: float(f"{number / unit:.6g}") for name, number in numbers.items()}
    return {**rounded, "kind": "measured", "source": source + note}
