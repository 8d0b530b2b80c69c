"""Tokens per expert as they are gathered from lines of a file, with what is wrong in them by line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from advisor.errors import InputError
from advisor.spec.layout import Array

MOST_LAYERS, MOST_EXPERTS, MOST_TOKENS = 4096, 4096, 1e15
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Place:
    """A layer as a file names it: a decoder layer, or `module` >= 0 for a layer of that prediction module."""

    layer: int
    module: int = -1

    def __str__(self) -> str:
        return f"layer {self.layer}" if self.module < 0 else f"layer {self.layer} of prediction module {self.module}"


@dataclass(slots=True)
class Counts:
    """Tokens by place and expert; problems are collected and raised together."""

    source: str
    form: str
    tokens: dict[Place, dict[int, float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, place: Place, expert: int, tokens: float, where: str, *, sums: bool) -> None:
        """Count `tokens`; a second count of the same expert is a problem unless `sums`."""
        if not 0 <= place.layer < MOST_LAYERS or not 0 <= expert < MOST_EXPERTS:
            self.problems.append(f"{where}: {place}, expert {expert} is beyond any model")
        elif not math.isfinite(tokens) or not 0 <= tokens <= MOST_TOKENS:
            self.problems.append(f"{where}: {tokens:g} is no number of tokens")
        else:
            known = self.tokens.setdefault(place, {})
            if expert in known and not sums:
                self.problems.append(f"{where}: expert {expert} of {place} is counted twice")
            known[expert] = known.get(expert, 0.0) + tokens

    def raise_problems(self) -> None:
        """InputError that names the first problems, if there are any."""
        if self.problems:
            more = len(self.problems) - SHOWN
            said = "; ".join(self.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
            raise InputError(f"router statistics {self.source}: {said}")

    def row(self, place: Place, experts: int) -> Array | None:
        """Tokens of every expert of a layer; None, and a problem, where they are not `experts` numbers above zero."""
        found = self.tokens[place]
        strange = sorted(expert for expert in found if expert >= experts)
        missing = sorted(set(range(experts)) - set(found))
        if strange:
            self.problems.append(f"{place} counts expert {strange[0]}, the model has {experts} (0 to {experts - 1})")
        elif missing:
            self.problems.append(f"{place} counts {len(found)} of {experts} experts, expert {missing[0]} is missing")
        elif not sum(found.values()):
            self.problems.append(f"{place} has no tokens at all")
        else:
            return np.array([found[expert] for expert in range(experts)], dtype=np.float64)
        return None


def number(text: str) -> float:
    """A number as a file writes it, NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
