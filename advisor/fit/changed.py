"""Coefficients that a fit has changed, by name: made of turned dials, put into a profile, written for a file.

Sustained rates are named `RATES`<format> among the coefficients, and stand in files in `RATE_UNIT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from advisor.cost.profile import Coefficient, Profile
from advisor.fit.dials import Dial, touched, turned
from advisor.spec.layout import Array

RATES, RATE_UNIT = "gemm_tflops.", 1e12
FROM = "; started from: "
UNMOVED = 1e-3
"""A dial whose log factor is smaller has changed nothing."""


def origin(source: str) -> str:
    """What a coefficient started from, without the fits since."""
    return source.rsplit(FROM, 1)[-1]


def changed_by(profile: Profile, dials: Sequence[Dial], factors: Array, said: str) -> dict[str, Coefficient]:
    """Coefficients of `profile` that dials turned by `factors` move; source: `said` and what they started from."""
    after = turned(profile, dials, factors)
    found = {}
    for dial, factor in zip(dials, factors, strict=True):
        if abs(np.log(factor)) > UNMOVED:
            for kind, key in touched(profile, dial):
                one = getattr(after, kind)[key]
                name = f"{RATES}{key}" if kind == "gemm" else key
                found[name] = replace(one, source=f"{said}{FROM}{origin(one.source)}")
    return found


def before(profile: Profile, name: str) -> tuple[Coefficient, float]:
    """What `profile` holds under the name of a changed coefficient, and the unit it is shown in."""
    if name.startswith(RATES):
        return profile.gemm[name.removeprefix(RATES)], RATE_UNIT
    return profile.coefficients[name], 1.0


def with_changes(profile: Profile, changed: Mapping[str, Coefficient]) -> Profile:
    """`profile` with the changed coefficients."""
    rates, others = _split(changed)
    return replace(profile, gemm={**profile.gemm, **rates}, coefficients={**profile.coefficients, **others})


def fitted_entries(
    changed: Mapping[str, Coefficient], said: Callable[[Coefficient], str] = attrgetter("source")
) -> dict[str, Any]:
    """Changed coefficients in the form of profiles/fitted, rates under gemm_tflops; `said` is the source of each."""
    rates, others = _split(changed)
    in_tflops = {fmt: _entry(one, RATE_UNIT, said(one)) for fmt, one in rates.items()}
    entries = {name: _entry(one, 1.0, said(one)) for name, one in others.items()}
    return {"gemm_tflops": in_tflops, **entries} if rates else entries


def _split(changed: Mapping[str, Coefficient]) -> tuple[dict[str, Coefficient], dict[str, Coefficient]]:
    """Rates by number format, and the rest by name."""
    rates = {name.removeprefix(RATES): one for name, one in changed.items() if name.startswith(RATES)}
    return rates, {name: one for name, one in changed.items() if not name.startswith(RATES)}


def _entry(one: Coefficient, unit: float, source: str) -> dict[str, Any]:
    numbers = {"value": one.value, "start": one.start, "low": one.low, "high": one.high}
    kind = "measured" if one.kind == "measured" else "fitted"
    rounded = {name: float(f"{value / unit:.6g}") for name, value in numbers.items() if math.isfinite(value)}
    return {**rounded, "kind": kind, "source": source}
