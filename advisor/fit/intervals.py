"""Derives the quantiles that `advisor.cost.interval` applies from errors of runs that were left out of the fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from advisor.cost.interval import error_class
from advisor.cost.profile import load_profile
from advisor.fit.runs import Run
from advisor.spec.layout import Array

LEVEL = 0.8
FEWEST = 12
"""Runs a class needs before its own quantiles count."""


def quantiles(runs: Sequence[Run], errors: Array) -> dict[str, dict[str, float]]:
    """Per class the `LEVEL` interval of measured / predicted as {"low", "high", "n"}.

    `errors` are predicted / measured - 1 with the run's model left out of the fit, one per run.
    """
    ratios: Mapping[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        ratios[error_class(run.model, load_profile(run.cluster.gpu))].append(1 / (1 + float(error)))
    out = {}
    for name, found in sorted(ratios.items()):
        if len(found) >= FEWEST:
            low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            out[name] = {"low": round(float(min(low, 0.99)), 3), "high": round(float(max(high, 1.01)), 3)}
            out[name]["n"] = len(found)
    return out
