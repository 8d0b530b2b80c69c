"""How wrong the predicted ratio of two step times is: pairs of public runs of the same job that differ in few dials.

profiles/pairs.yaml holds the result: half widths of one prediction's interval (in logarithms) that the error of a
ratio stays within in `LEVEL` of the pairs, by how many dials are turned between the two.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from advisor.cost.interval import interval
from advisor.cost.profile import load_profile
from advisor.fit.intervals import LEVEL, interval_class, unstated
from advisor.fit.runs import Run
from advisor.fit.validate import Row
from advisor.search.dials import KNOB_DIALS
from advisor.spec.layout import table

SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "sp")
KNOBS = (*KNOB_DIALS, "full_uniform", "full_block")
MOST_TURNED = 3


def same_job(run: Run) -> tuple[Any, ...]:
    """What two runs share if only dials differ: source, stack, model, GPUs, sequence, batch, precision, kernels."""
    model, work = run.model, run.workload
    return (run.group, run.software, model.name, model.num_layers, run.cluster.gpu.name, run.cluster.gpus,
            work.seq_len, run.layout.gbs, work.precision.name, work.routing, work.attention_impl)  # fmt: skip


def turned(one: Run, other: Run) -> frozenset[str]:
    """The dials in which two runs differ."""
    sizes = {name for name in SIZES if getattr(one.layout, name) != getattr(other.layout, name)}
    knobs = {name for name in KNOBS if getattr(one.knobs, name) != getattr(other.knobs, name)}
    return frozenset(sizes | knobs)


def half_width(run: Run) -> float:
    """Half of the 80 % interval of a run's predicted step, in logarithms."""
    columns, profile = table([run.layout], [run.knobs]), load_profile(run.cluster.gpu)
    low, high = interval(run.workload, run.model, run.cluster, columns, profile,
                         kind=interval_class(run), unknown=unstated(run))  # fmt: skip
    return float(np.log(high / low) / 2)


def pairs(rows: Sequence[Row]) -> Iterator[tuple[frozenset[str], float]]:
    """Dials turned and error of the predicted ratio, in half widths, of every pair of measured runs of one job."""
    jobs: dict[tuple[Any, ...], list[tuple[Row, float]]] = defaultdict(list)
    for row in rows:
        if row.run.scored:
            jobs[same_job(row.run)].append((row, half_width(row.run)))
    for group in jobs.values():
        for (one, wide), (other, wider) in itertools.combinations(group, 2):
            dials = turned(one.run, other.run)
            if not dials or one.run.step_s is None or other.run.step_s is None:
                continue
            error = np.log(one.run.step_s / other.run.step_s) - np.log(one.predicted_s / other.predicted_s)
            yield dials, abs(float(error)) * 2 / (wide + wider)


def widths(rows: Sequence[Row]) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
    """Width and number of pairs by dials turned (1 to `MOST_TURNED`), and the dials that single turns move."""
    errors: dict[int, list[float]] = defaultdict(list)
    seen: set[str] = set()
    for dials, error in pairs(rows):
        errors[len(dials)].append(error)
        seen |= dials if len(dials) == 1 else set()
    found = {
        count: {"width": round(float(np.quantile(errors[count], LEVEL)), 2), "n": len(errors[count])}
        for count in range(1, MOST_TURNED + 1)
        if errors[count]
    }
    return found, tuple(sorted(seen))
