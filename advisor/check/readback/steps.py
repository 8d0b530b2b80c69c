"""Times of steps: which reports are steady, and their median and spread."""

from __future__ import annotations

import math
import re
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from advisor.check.readback.observed import Place, Steps

WARM_UP_ITERATIONS = 10
FEWEST_STEADY = 3
MOST_REPORTS = 1 << 20
MOST_STARTS = 1000
COUNTS = {"nan": "number of nan iterations:", "skipped": "number of skipped iterations:"}
_RATE = re.compile(r"throughput per GPU \(TFLOP/s/GPU\): (\d{1,12}(?:\.\d{1,9})?)")
_LOSS = re.compile(r"\b(?:lm loss|reduced_train_loss)[:=] ?([-+\d.Ena]+)", re.IGNORECASE)
_BATCH = re.compile(r"global[ _]batch[ _]size[:=]\s*(\d{1,12})")
_COUNTS = {name: re.compile(rf"{label}\s*(\d{{1,12}})") for name, label in COUNTS.items()}


class _Start:
    """Reports between a start of the job and the next."""

    def __init__(self) -> None:
        self.iterations, self.seconds, self.tflops = array("q"), array("d"), array("d")

    def extend(self, iterations: NDArray[np.int64], seconds: NDArray[np.float64], tflops: NDArray[np.float64]) -> None:
        """Add reports; every second one goes whenever there are very many."""
        done = 0
        while done < len(iterations):
            part = slice(done, done + MOST_REPORTS + 1 - len(self.iterations))
            for column, values in ((self.iterations, iterations), (self.seconds, seconds), (self.tflops, tflops)):
                column.frombytes(values[part].tobytes())
                if len(column) > MOST_REPORTS:
                    del column[1::2]
            done = part.stop

    def steady(self) -> slice:
        """The reports that cover nothing of the first iterations; of a short start the second half."""
        interval = self.iterations[1] - self.iterations[0] if len(self.iterations) > 1 else 1
        first = self.iterations[0] - interval
        left_out = sum(one - interval - first < WARM_UP_ITERATIONS for one in self.iterations[:WARM_UP_ITERATIONS])
        if len(self.iterations) - left_out < FEWEST_STEADY:
            left_out = (len(self.iterations) + 1) // 2
        return slice(left_out, None)


class StepTimes:
    """Collects reports of iterations, a few numbers each, of the last `MOST_STARTS` starts of the job.

    `enough` says that a median can be told.
    """

    def __init__(self) -> None:
        self._starts: deque[_Start] = deque(maxlen=MOST_STARTS)
        self._fresh = True
        self._place: Place | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._whole = 0
        self.enough = False
        self._last = (0, math.nan)

    def begin(self) -> None:
        """The job starts, or a log."""
        self._fresh = True

    def report(self, parts: Mapping[str, str], place: Place, per_s: float) -> None:
        """A line of a training log; `per_s` of its units of time are a second."""
        rate = _RATE.search(place.text)
        tflops = parts.get("tflops") or (rate[1] if rate else math.nan)
        self.extend([int(parts["iteration"])], [float(parts["time"]) / per_s], [float(tflops)], place)
        found = {name: regex.search(place.text) for name, regex in _COUNTS.items()}
        self.count({name: int(one[1]) for name, one in found.items() if one})

    def short(self, rows: Iterable[tuple[str, ...]], place: Place) -> None:
        """Lines that tell seconds and TFLOP/s of a step, and not which: they are counted."""
        seconds, tflops = (list(map(float, one)) for one in zip(*rows, strict=True))
        first = 1 if self._fresh else self._last[0] + 1
        self.extend(np.arange(first, first + len(seconds)), seconds, tflops, place)

    @property
    def batch(self) -> tuple[int, Place] | None:
        """Samples of the last step, and the line that says so."""
        found = None if self._place is None else _BATCH.search(self._place.text)
        return (int(found[1]), self._place) if found is not None and self._place is not None else None

    def extend(
        self,
        iterations: Sequence[int] | NDArray[np.int64],
        seconds: Sequence[float] | NDArray[np.float64],
        tflops: Sequence[float] | NDArray[np.float64],
        place: Place,
    ) -> None:
        """Reports in order, the last of them at `place`; a lower iteration says that the job started again.

        A line that two ranks or two files say counts once.
        """
        columns = (np.asarray(iterations, np.int64), np.asarray(seconds, np.float64), np.asarray(tflops, np.float64))
        ahead, change = (np.diff(one, prepend=last) for one, last in zip(columns, self._last, strict=False))
        told, opens = (ahead == 0) & (change == 0), ahead <= 0
        told[0], opens[0] = told[0] and not self._fresh, opens[0] or self._fresh
        self._fresh, self._place = False, place
        self._last = (int(columns[0][-1]), float(columns[1][-1]))
        columns, opens = (columns[0][~told], columns[1][~told], columns[2][~told]), opens[~told]
        self._whole += len(opens)
        for start, stop in pairwise(sorted({0, *np.flatnonzero(opens).tolist(), len(opens)})):
            if opens[start]:
                self._starts.append(_Start())
            part = slice(start, stop)
            self._starts[-1].extend(columns[0][part], columns[1][part], columns[2][part])
            self.enough = self.enough or len(self._starts[-1].seconds) > 1

    @property
    def whole(self) -> int:
        """All reports so far."""
        return self._whole

    def forget(self) -> None:
        """Leave out what was reported so far: it is of other settings."""
        self._starts.clear()
        self._fresh, self._place, self.enough = True, None, False
        self._counts = dict.fromkeys(_COUNTS, 0)

    def count(self, counts: Mapping[str, int]) -> None:
        """Iterations that were skipped, or whose loss was no number."""
        for name, number in counts.items():
            self._counts[name] += number

    def steps(self) -> Steps | None:
        """Median and spread of the steady reports; None where there is none."""
        if self._place is None or not self._starts:
            return None
        seconds = np.concatenate([np.array(start.seconds[start.steady()]) for start in self._starts])
        tflops = np.concatenate([np.array(start.tflops[start.steady()]) for start in self._starts])
        if not len(seconds):
            return None
        low, median, high = (float(one) for one in np.quantile(seconds, [0.1, 0.5, 0.9]))
        rates = tflops[~np.isnan(tflops)]
        return Steps(
            median, low, high, len(seconds), self._whole - len(seconds),
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
