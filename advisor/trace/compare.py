"""Two analyses term by term: the mean step of each, and what changed."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.trace.analysis import Analysis
from advisor.trace.kernels import KINDS

TERMS = ("step_s", "compute_s", "exposed_s", "copies_s", "idle_s", "host_bound_s", "communication_s", "hidden_s")


@dataclass(frozen=True, slots=True)
class Change:
    """One term of both, seconds per step; `name` is a term or `<kind> exposed` / `<kind> hidden`."""

    name: str
    here_s: float
    other_s: float

    @property
    def ratio(self) -> float | None:
        """Other / here; None where there is nothing here."""
        return self.other_s / self.here_s if self.here_s > 0 else None


def changes(here: Analysis, other: Analysis) -> list[Change]:
    """All terms, then exposed and hidden seconds of every kind that either has."""
    a, b = here.mean, other.mean
    found = [Change(name.removesuffix("_s"), getattr(a, name), getattr(b, name)) for name in TERMS]
    for kind in (name for name in KINDS if name in a.kinds or name in b.kinds):
        for side in ("exposed", "hidden"):
            values = [getattr(one.kinds[kind], f"{side}_s") if kind in one.kinds else 0.0 for one in (a, b)]
            found.append(Change(f"{kind} {side}", *values))
    return found
