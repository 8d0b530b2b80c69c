"""Figures as people read them: at most three significant digits, thousands in thin groups, units in the heads."""

from __future__ import annotations

import math

THIN = "\u202f"
NONE = "-"


def count(value: float) -> str:
    """An exact whole number: 228 689 764 864."""
    return f"{int(value):,}".replace(",", THIN)


def figure(value: float | None) -> str:
    """A measured or computed number, three significant digits: 5 290, 61.8, 0.412; `-` when there is none."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if abs(rounded) >= 100:
        return count(rounded)
    if abs(rounded) < 1e-4:
        return f"{rounded:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}"


def percent(share: float | None) -> str:
    """A share as per cent without the sign, which stands in the head: 0.342 -> 34.2, 0.004 -> 0.4."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:.1f}"


def gain(share: float | None) -> str:
    """A relative change with its sign: 0.05 -> +5.0 %."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:+.1f} %"


def billions(value: float) -> str:
    """A parameter count in billions: 229 B, 1.24 B."""
    return f"{figure(value / 1e9)} B"
