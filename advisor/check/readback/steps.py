"""Times of steps: which reports are steady, and their median and spread."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping

import numpy as np

from advisor.check.readback.observed import Place, Steps

WARM_UP_ITERATIONS = 10
FEWEST_STEADY = 3
MOST_REPORTS = 1 << 20
_MORE = {
    "tflops": re.compile(r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+)"),
    "loss": re.compile(r"\blm loss: ([-+\d.Ena]+)", re.IGNORECASE),
    "nan": re.compile(r"number of nan iterations:\s*(\d+)"),
    "skipped": re.compile(r"number of skipped iterations:\s*(\d+)"),
    "batch": re.compile(r"global batch size:\s*(\d+)"),
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
        self._loss: float | None = None
        self._counts = {"nan": 0, "skipped": 0}
        self.batch: tuple[int, Place] | None = None

    def begin(self) -> None:
        """The job starts, or a log."""
        self._fresh = True

    def report(self, parts: Mapping[str, str], place: Place) -> None:
        """A line of Megatron's training log."""
        more = {name: found[1] for name, regex in _MORE.items() if (found := regex.search(place.text))}
        self.add(int(parts["iteration"]), float(parts["ms"]) / 1e3, float(more.get("tflops", "nan")), place)
        for name in self._counts:
            self._counts[name] += int(more.get(name, 0))
        if "loss" in more:
            self._loss = _number(more["loss"])
        if "batch" in more:
            self.batch = (int(more["batch"]), place)

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
            float(np.median(rates)) if len(rates) else None, self._loss, self._counts["nan"], self._counts["skipped"],
            self._place,
        )  # fmt: skip


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
