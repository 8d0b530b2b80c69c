"""Small measured tables that columns are looked up in: seconds by size and ranks, rates by sequence and head size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.spec.layout import Array

_SPAN = 2.0**43
MAX_RANKS = 4096
"""Largest group inside a fast domain."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeTable:
    """Seconds of one collective by full-tensor bytes and ranks.

    Piecewise linear in bytes. Below the smallest size its seconds hold (latency); above the largest the last slope
    goes on (bandwidth). Rank counts between or above the measured ones use the next smaller table with the bytes
    scaled to equal wire bytes (n - 1) / n. The curves of all rank counts lie one after the other on one axis, `_SPAN`
    apart, so that a lookup of a whole table of layouts is a single np.interp. `start[n]` is where the curve for n ranks
    begins, `scale[n]` what bytes are multiplied by.
    """

    start: Array
    scale: Array
    x: Array
    y: Array

    @classmethod
    def of(cls, by_ranks: Mapping[str, Mapping[str, Any]], unit: float) -> SizeTable:
        """From {"ranks": {"bytes": [...], "us": [...]}}; `unit` converts the times to seconds."""
        ranks = sorted(by_ranks, key=int)
        x, y = [], []
        for i, n in enumerate(ranks):
            size = np.array(by_ranks[n]["bytes"], dtype=np.float64)
            seconds = np.maximum.accumulate(np.array(by_ranks[n]["us"], dtype=np.float64)) * unit
            slope = (seconds[-1] - seconds[-2]) / (size[-1] - size[-2])
            far = _SPAN - 1.0
            x.append(np.concatenate([[0.0], size, [far]]) + i * _SPAN)
            y.append(np.concatenate([[seconds[0]], seconds, [seconds[-1] + slope * (far - size[-1])]]))
        measured = np.array([int(n) for n in ranks], dtype=np.int64)
        count = np.arange(MAX_RANKS + 1, dtype=np.int64)
        slot = np.maximum(np.searchsorted(measured, count, side="right") - 1, 0)
        wire = (count - 1) / np.maximum(count, 1)
        scale = np.where(count > 1, wire * (measured / (measured - 1))[slot], 0.0)
        return cls(slot * _SPAN, scale, np.concatenate(x), np.concatenate(y))

    def seconds(self, n_bytes: Array, ranks: Array) -> Array:
        """Seconds for `n_bytes` (full tensor) over `ranks` ranks (1 to MAX_RANKS); both broadcast, one rank is free."""
        position = np.minimum(n_bytes * self.scale[ranks], _SPAN - 1.0) + self.start[ranks]
        return np.asarray(np.interp(position, self.x, self.y) * (ranks > 1))


@dataclass(frozen=True, slots=True, eq=False)
class RateTable:
    """A rate by sequence length and head dimension: bilinear in their logarithms, held constant outside."""

    log_seq: Array
    log_dim: Array
    rates: Array

    @classmethod
    def of(cls, table: Mapping[str, Any], unit: float) -> RateTable:
        """From {"seq": [...], "head_dims": [...], "rate": rows by head dimension}; `unit` converts the rates."""
        return cls(
            np.log2(np.array(table["seq"], dtype=np.float64)),
            np.log2(np.array(table["head_dims"], dtype=np.float64)),
            np.array(table["rate"], dtype=np.float64) * unit,
        )

    def rate(self, seq: Array | float, dim: Array | float) -> Array:
        """Rate at (seq, dim); both broadcast."""
        at_seq = np.log2(np.maximum(seq, 1.0))
        rows = [np.interp(at_seq, self.log_seq, row) for row in self.rates]
        place = np.interp(np.log2(np.maximum(dim, 1.0)), self.log_dim, np.arange(len(self.log_dim)))
        out = rows[0]
        for i, row in enumerate(rows[1:]):
            out = out + (row - rows[i]) * np.clip(place - i, 0.0, 1.0)
        return np.asarray(out)
