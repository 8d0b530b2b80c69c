"""Times of steps: which reports are steady, and their median and spread."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping

import numpy as np

from advisor.check.readback.observed import Place, Steps

WARM_UP_ITERATIONS = 10
FEWEST_STEADY = 3
MOST_REPORTS = 1 << 20
_RATE = re.compile(r"throughput per GPU \(TFLOP/s/GPU\): (\d{1,12}(?:\.\d{1,9})?)")
_LOSS = re.compile(r"\blm loss: ([-+\d.Ena]+)", re.IGNORECASE)
_BATCH = re.compile(r"global batch size:\s*(\d{1,12})")
_COUNTS = {
    "nan": re.compile(r"number of nan iterations:\s*(\d{1,12})"),
    "skipped": re.compile(r"number of skipped iterations:\s*(\d{1,12})"),
}


class _Start:
    """Reports between a start of the job and the next."""

    def __init__(self) -> None:
        self.iterations, self.seconds, self.tflops = array("q"), array("d"), array("d")

    def steady(self) -> slice:
        """The reports that cover nothing of the first iterations; of a short start the second half."""
        interval = self.iterations[1] - self.iterations[0] if len(self.iterations) > 1 else 1
        first = self.iterations[0] - interval
        left_out = sum(one - interval - first < WARM_UP_ITERATIONS for one in self.iterations[:WARM_UP_ITERATIONS])
        if len(self.iterations) - left_out < FEWEST_STEADY:
            left_out = (len(self.iterations) + 1) // 2
        return slice(left_out, None)


class StepTimes:
    """Collects reports of iterations, a few numbers each; every second one goes when there are very many."""

    def __init__(self) -> None:
        self._starts: list[_Start] = []
        self._fresh = True
        self._place: Place | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)

    def begin(self) -> None:
        """The job starts, or a log."""
        self._fresh = True

    def report(self, parts: Mapping[str, str], place: Place) -> None:
        """A line of Megatron's training log."""
        rate = _RATE.search(place.text)
        self.add(int(parts["iteration"]), float(parts["ms"]) / 1e3, float(rate[1]) if rate else math.nan, place)
        for name, regex in _COUNTS.items():
            found = regex.search(place.text)
            self._counts[name] += int(found[1]) if found else 0

    @property
    def batch(self) -> tuple[int, Place] | None:
        """Samples of the last step, and the line that says so."""
        found = None if self._place is None else _BATCH.search(self._place.text)
        return (int(found[1]), self._place) if found is not None and self._place is not None else None

    def add(self, iteration: int, seconds: float, tflops: float, place: Place) -> None:
        """A report; an iteration that was seen before says that the job started again."""
        if self._fresh or iteration <= self._starts[-1].iterations[-1]:
            self._starts.append(_Start())
            self._fresh = False
        start = self._starts[-1]
        start.iterations.append(iteration)
        start.seconds.append(seconds)
        start.tflops.append(tflops)
        self._place = place
        if len(start.seconds) > MOST_REPORTS:
            for column in (start.iterations, start.seconds, start.tflops):
                del column[1::2]

    def steps(self) -> Steps | None:
        """Median and spread of the steady reports; None where there is none."""
        if self._place is None:
            return None
        seconds = np.concatenate([np.array(start.seconds[start.steady()]) for start in self._starts])
        tflops = np.concatenate([np.array(start.tflops[start.steady()]) for start in self._starts])
        if not len(seconds):
            return None
        whole = sum(len(start.seconds) for start in self._starts)
        low, median, high = (float(one) for one in np.quantile(seconds, [0.1, 0.5, 0.9]))
        rates = tflops[~np.isnan(tflops)]
        return Steps(
            median, low, high, len(seconds), whole - len(seconds),
            f"reports of the first {WARM_UP_ITERATIONS} iterations after each start are left out; where fewer than "
            f"{FEWEST_STEADY} remain, the first half",
            min(start.iterations[0] for start in self._starts), max(start.iterations[-1] for start in self._starts),
            float(np.median(rates)) if len(rates) else None, self._loss(), self._counts["nan"], self._counts["skipped"],
            self._place,
        )  # fmt: skip

    def _loss(self) -> float | None:
        """Loss of the last report; nan where it is printed so."""
        found = None if self._place is None else _LOSS.search(self._place.text)
        try:
            return None if found is None else float(found[1])
        except ValueError:
            return math.nan
