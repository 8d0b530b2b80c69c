"""The difference of two step times from interleaved runs, with an interval that respects what makes steps alike.

Steps of one run are alike (a slow minute, a warm cache), and runs differ from each other. So there are two errors: that
of a run's median, by a moving-block bootstrap over its steps, and that between pairs of runs, by Student's t over the
paired differences. The interval is the wider of the two.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
RESAMPLES = 2000
SEED = 20261
LEAST_PAIRS = 2

Pair = tuple[Sequence[float], Sequence[float]]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Seconds by which the second of each pair is longer: the mean over pairs of the medians, and its interval.

    `between_s` and `within_s` are half widths by the pairs and by the steps; the larger one makes the interval.
    """

    mean_s: float
    between_s: float
    within_s: float

    @property
    def low_s(self) -> float:
        """Lower end of the interval."""
        return self.mean_s - max(self.between_s, self.within_s)

    @property
    def high_s(self) -> float:
        """Upper end of the interval."""
        return self.mean_s + max(self.between_s, self.within_s)


def difference(pairs: Sequence[Pair], level: float = LEVEL) -> Difference:
    """Of two or more pairs of runs, each the seconds of its steps. ValueError for fewer."""
    if len(pairs) < LEAST_PAIRS:
        raise ValueError(f"{len(pairs)} pairs: two are needed to see how runs differ")
    apart = [statistics.median(second) - statistics.median(first) for first, second in pairs]
    between = student(level, len(apart) - 1) * statistics.stdev(apart) / len(apart) ** 0.5
    random = np.random.default_rng(SEED)
    variance = sum(median_variance(run, random) for pair in pairs for run in pair) / len(apart) ** 2
    within = statistics.NormalDist().inv_cdf((1 + level) / 2) * variance**0.5
    return Difference(statistics.mean(apart), between, float(within))


def block_length(steps: Sequence[float]) -> int:
    """Steps that are drawn together: Carlstein's optimum for the lag-1 autocorrelation found, at most half of them."""
    values = np.asarray(steps, dtype=np.float64) - np.mean(steps)
    power = float(values @ values)
    alike = float(values[1:] @ values[:-1]) / power if power > 0 else 0.0
    alike = min(max(alike, 0.0), 0.97)
    wanted = (2 * alike / (1 - alike**2)) ** (2 / 3) * len(values) ** (1 / 3)
    return int(min(max(round(wanted), 1), max(len(values) // 2, 1)))


def median_variance(steps: Sequence[float], random: np.random.Generator) -> float:
    """Variance of the median of autocorrelated steps, by resampling blocks of neighbours."""
    values, block = np.asarray(steps, dtype=np.float64), block_length(steps)
    count = -(-len(values) // block)
    first = random.integers(0, len(values) - block + 1, size=(RESAMPLES, count))
    drawn = values[(first[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, : len(values)]]
    return float(np.var(np.median(drawn, axis=1)))


def student(level: float, freedom: int) -> float:
    """Two-sided quantile of Student's t: with x = sqrt(freedom) tan(a), the density of a is cos(a)^(freedom - 1)."""
    angle = np.linspace(0.0, np.pi / 2, 200_001)
    density = np.cos(angle) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(np.sqrt(freedom) * np.tan(np.interp(level, mass / mass[-1], angle)))
