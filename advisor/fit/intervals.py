"""Derives the quantiles that `advisor.cost.interval` applies from errors of runs that were left out of the fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from advisor.cost.interval import error_class, widening
from advisor.cost.profile import load_profile
from advisor.fit.committed import stacks
from advisor.fit.runs import Run
from advisor.spec.layout import Array, table

LEVEL = 0.8
FEWEST = 8
"""Runs a class needs before its own quantiles count."""
LEAST = 0.01
RECIPE = frozenset({"recompute", "dispatcher", "cuda_graph", "routing"})


def interval_class(run: Run) -> str:
    """Class of a run's interval: its stack where it has one of its own."""
    return (
        run.group
        if run.group in stacks()
        else error_class(run.model, load_profile(run.cluster.gpu), run.workload.precision)
    )


def unstated(run: Run) -> bool:
    """Whether parts of the recipe that decide the speed of a mixture of experts are assumed."""
    return run.model.is_moe and not RECIPE.isdisjoint(run.assumed)


def quantiles(runs: Sequence[Run], errors: Array) -> dict[str, dict[str, float]]:
    """Per class the `LEVEL` interval of measured / predicted as {"low", "high", "n"}.

    `errors` are predicted / measured - 1 with the run's model left out of the fit, one per run. What measured /
    predicted differs from 1 by is divided by what widens the run's interval; as many runs lie below low as above high.
    The interval reaches at least `LEAST` to both sides.
    """
    sizes: Mapping[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        columns = table([run.layout], [run.knobs])
        wide = widening(run.workload, run.model, run.cluster, columns, unstated(run))
        sizes[interval_class(run)].append((1 / (1 + float(error)) - 1) / wide)
    out = {}
    for name, found in sorted(sizes.items()):
        if len(found) >= FEWEST:
            low, high = (float(one) for one in np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
            low, high = 1 + min(max(low, -0.5), -LEAST), 1 + max(high, LEAST)
            out[name] = {"low": round(low, 3), "high": round(high, 3), "n": len(found)}
    return out
