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
    it was read, `numbering` how it counts layers.
    """

    layers: tuple[int, ...]
    loads: tuple[Array, ...]
    modules: tuple[Array, ...] = ()
    source: str = ""
    form: str = ""
    numbering: str = ""

    def shares(self, index: int, ep: int, capacity: float | None = None) -> Array:
        """Tokens of each of `ep` ranks over their mean, experts placed in order, for the layer at `index`.

        `capacity` drops what an expert gets beyond that multiple of the mean; `ep` must divide the experts.
        """
        return shares(self.loads[index], ep, capacity)

    def dropped(self, capacity: float) -> float:
        """Share of all token copies that a capacity factor drops."""
        kept = sum(float(np.minimum(load, capacity).sum()) for load in self.loads)
        return 1.0 - kept / sum(load.size for load in self.loads)


def shares(load: Array, ep: int, capacity: float | None = None) -> Array:
    """Mean load of the experts of each rank, for `ep` ranks with as many experts each."""
    kept = load if capacity is None else np.minimum(load, capacity)
    return np.asarray(np.round(kept.reshape(ep, -1).mean(axis=1), DIGITS))


def normalised(tokens: Array) -> Array:
    """Tokens over their mean."""
    return np.asarray(np.round(tokens / tokens.mean(), DIGITS))
