"""Router statistics: how many tokens each expert of each layer gets, as shares of the mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.spec.layout import Array

DIGITS = 12
"""Shares are rounded to so many digits, so that counts which are equal up to their sum are exactly balanced."""


@dataclass(frozen=True, slots=True, eq=False)
class RouterStats:
    """Measured loads of the experts of one model.

    `loads[i]` are the tokens of every expert of decoder layer `layers[i]` (counted from 0) over their mean, so that 1
    is balanced; `modules` are those of prediction modules, () where the file has none. `source` is the file, `form` how
    it was read, `first` the number that it gives the first decoder layer.
    """

    layers: tuple[int, ...]
    loads: tuple[Array, ...]
    modules: tuple[Array, ...] = ()
    source: str = ""
    form: str = ""
    first: int = 0

    def dropped(self, capacity: float) -> float:
        """Share of all token copies that a capacity factor drops."""
        kept = sum(float(np.minimum(load, capacity).sum()) for load in self.loads)
        return 1.0 - kept / sum(load.size for load in self.loads)


def shares(load: Array, ep: int, capacity: float | None = None) -> Array:
    """Tokens of each of `ep` ranks over their mean, with the experts placed in order; `ep` must divide the experts.

    `capacity` drops what an expert gets beyond that multiple of the mean.
    """
    kept = load if capacity is None else np.minimum(load, capacity)
    return np.asarray(np.round(kept.reshape(ep, -1).mean(axis=1), DIGITS))


def normalised(tokens: Array) -> Array:
    """Tokens over their mean."""
    return np.asarray(np.round(tokens / tokens.mean(), DIGITS))
