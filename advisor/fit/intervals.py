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
OF_EACH_MODEL = ("moe-", "hybrid-")
"""Classes whose bias is that of the models in it (kernels of their own) and says nothing about the next model."""
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

    `errors` are predicted / measured - 1 with the run's model left out of the fit, one per run; each is divided by what
    widens the run's interval. The interval reaches at least `LEAST` to both sides.
    """
    sizes: Mapping[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        columns = table([run.layout], [run.knobs])
        wide = widening(run.workload, run.model, run.cluster, columns, unstated(run))
        sizes[interval_class(run)].append(float(error) / wide)
    out = {}
    for name, found in sorted(sizes.items()):
        if len(found) >= FEWEST:
            fast, slow = _sides(np.array(found), name.startswith(OF_EACH_MODEL))
            out[name] = {"low": round(1 / (1 + slow), 4), "high": round(1 / (1 - fast), 4), "n": len(found)}
    return out


def _sides(errors: Array, alike: bool) -> tuple[float, float]:
    """How far predictions are too fast and too slow: as many runs beyond either, or equally far (`alike`)."""
    if alike:
        fast = slow = float(np.quantile(np.abs(errors), LEVEL))
    else:
        low, slow = (float(one) for one in np.quantile(errors, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        fast = -low
    return min(max(fast, LEAST), 0.5), max(slow, LEAST)
