"""How wrong this profile has been on measured runs like a given job, from the committed left-out predictions."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor import data
from advisor.cost.interval import error_class
from advisor.cost.profile import load_profile
from advisor.spec.hardware import Gpu
from advisor.spec.model import Model
from advisor.spec.precision import Precision

PREDICTIONS = "runs/predictions.csv"
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Experience:
    """Absolute step-time errors in percent on `n` public runs of `kind`, their model left out of the fit."""

    kind: str
    n: int
    median_pct: float
    worst_pct: float

    @property
    def sentence(self) -> str:
        """The same in words."""
        if not self.n:
            return f"no public run is like this one ({self.kind}): its rates are assumed, its interval is wide"
        return (
            f"on {self.n} measured public runs like this one ({self.kind}) predictions were off by "
            f"{self.median_pct:.1f} % (median) and {self.worst_pct:.0f} % (worst), their model unseen by the fit"
        )


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    path = data.find("profiles", PREDICTIONS)
    if path is None:
        return ()
    with path.open(newline="", encoding="utf-8") as stream:
        return tuple(row for row in csv.DictReader(stream) if row["counts"] == "yes")


def experience(model: Model, gpu: Gpu, precision: Precision) -> Experience:
    """Runs of the same class and precision, of the same class where these are fewer than `FEWEST`."""
    name = error_class(model, load_profile(gpu), precision)
    alike = [row for row in _rows() if row["class"] == name]
    same = [row for row in alike if row["precision"] == precision.name]
    chosen, kind = (same, f"{name}, {precision.name}") if len(same) >= FEWEST else (alike, name)
    errors = np.abs([float(row["error_pct"]) for row in chosen])
    if not errors.size:
        return Experience(kind, 0, 0.0, 0.0)
    return Experience(kind, errors.size, float(np.median(errors)), float(errors.max()))
