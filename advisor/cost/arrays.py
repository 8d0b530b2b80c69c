"""Sums and maxima of columns of unlike shapes, and one entry read out of them.

The smallest come first, so that few operations have the full shape; an array that is ours takes the next one in place.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from advisor.spec.layout import Array

SMALL = 1 << 12
"""Entries up to which a new array costs less than a look at its shape."""


def add_up(values: Iterable[Array]) -> Array:
    """Sum of the values, in their broadcast shape; [0.0] of none."""
    total: Array = np.zeros(1)
    for value in sorted(values, key=np.size):
        total = np.add(total, value, out=total if _takes(total, value) else None)
    return total


def largest(values: Iterable[Array]) -> Array:
    """Largest of the values, entry by entry, in their broadcast shape; there must be one."""
    highest, *rest = sorted(values, key=np.size)
    ours = False
    for value in rest:
        highest = np.maximum(highest, value, out=highest if ours and _takes(highest, value) else None)
        ours = True
    return highest


def _takes(own: Array, value: Array) -> bool:
    return own.size > SMALL and np.broadcast_shapes(own.shape, np.shape(value)) == own.shape


class Entry:
    """Reads entry `index` (flat) out of arrays that broadcast to `shape`."""

    def __init__(self, index: int, shape: tuple[int, ...]) -> None:
        self.at = [int(one) for one in np.unravel_index(index, shape)]

    def __call__(self, values: Array | float) -> float:
        """The value of the entry."""
        array = np.asarray(values)
        own = self.at[len(self.at) - array.ndim :]
        return float(array[tuple(at if size > 1 else 0 for at, size in zip(own, array.shape, strict=True))])
