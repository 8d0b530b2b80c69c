"""A plan beside what a log says: setting by setting, and measured beside predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from advisor.check.readback.observed import Observed, Place, Seen
from advisor.check.readback.planned import IDENTITY, planned
from advisor.check.readback.values import is_switch, plain, same
from advisor.check.readback.wording import wordings
from advisor.configure.chosen import Chosen

Status = Literal["silently off", "differs", "effective", "not seen"]
ORDER: tuple[Status, ...] = ("silently off", "differs", "effective", "not seen")
# Texts that describe the job rather than turn something on.
_DESCRIBE = ("model.pipeline_model_parallel_layout",)
Outcome = Literal["silently off", "differs", "outside", "as planned", "not seen"]


@dataclass(frozen=True, slots=True)
class Row:
    """A setting: what is planned, what the log says, and what becomes of it in a word."""

    key: str
    planned: Any
    seen: Seen | None
    status: Status


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured figure beside the predicted one; `inside` tells whether it lies from `low` to `high`."""

    name: Literal["step_s", "peak_allocated_bytes"]
    measured: float
    predicted: float
    low: float
    high: float
    source: str
    place: Place

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted if self.predicted else float("inf")

    @property
    def inside(self) -> bool:
        """Whether the measured figure is within the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Rows by status, the worst first, and measures; `outcome` sums them up."""

    observed: Observed
    plan: str
    rows: tuple[Row, ...]
    measures: tuple[Measure, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst that was found."""
        found = {row.status for row in self.rows}
        if "silently off" in found:
            return "silently off"
        if "differs" in found:
            return "differs"
        if any(not one.inside for one in self.measures):
            return "outside"
        return "as planned" if "effective" in found or self.measures else "not seen"


def compare(observed: Observed, chosen: Chosen) -> ReadBack:
    """The plan's settings and predictions beside a log. Raises InputError where the log is of another model."""
    wanted = planned(chosen, observed)
    rows = [Row(key, value, _seen(observed, key), _status(observed, key, value)) for key, value in wanted.items()]
    rows.sort(key=lambda row: ORDER.index(row.status))
    kept = [row for row in rows if row.key not in IDENTITY or row.status != "not seen"]
    return ReadBack(observed, chosen.source, tuple(kept), tuple(_measures(observed, chosen)))


def _seen(observed: Observed, key: str) -> Seen | None:
    return observed.gpus if key == "gpus" else observed.settings.get(key)


def _status(observed: Observed, key: str, value: Any) -> Status:
    seen = _seen(observed, key)
    if seen is None:
        return "not seen"
    if same(value, seen.value) or _one(key, value, seen.value):
        return "effective"
    lost = is_switch(value) and key not in _DESCRIBE and (plain(seen.value) is None or seen.off)
    return "silently off" if lost else "differs"


def _one(key: str, one: Any, other: Any) -> bool:
    """Whether two sizes are the same: no virtual stages are one."""
    return key.endswith("_size") and all(value is None or (value == 1 and value is not True) for value in (one, other))


def _measures(observed: Observed, chosen: Chosen) -> Iterator[Measure]:
    steps, step = observed.steps, chosen.candidate.step
    if steps is not None and step is not None:
        level = f"{step.interval_level:.0%} interval of the plan"
        yield Measure("step_s", steps.median_s, step.step_s, step.low_s, step.high_s, level, steps.place)
    if observed.peak is not None:
        known = wordings()
        predicted, share = chosen.candidate.memory.peak_allocated_bytes, known.memory_share
        yield Measure(
            "peak_allocated_bytes", observed.peak.allocated_bytes, predicted, predicted * (1 - share),
            predicted * (1 + share), known.memory_source, observed.peak,
        )  # fmt: skip


def by_status(rows: tuple[Row, ...]) -> Mapping[Status, int]:
    """How many rows have each status."""
    return {status: sum(row.status == status for row in rows) for status in ORDER}
