"""Measured collectives across NVLink domains: seconds by bytes per network card and number of domains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.cost.tables import MAX_RANKS, SizeTable
from advisor.spec.layout import Array

Hops = Callable[[Array], Array]
"""Steps over the network beyond those between two domains, by number of domains."""


@dataclass(frozen=True, slots=True, eq=False)
class DomainTable:
    """Seconds of one collective that spans domains, measured on `domains` of them.

    Looked up by full-tensor bytes over the ranks of a domain, so that a group with fewer ranks per domain, and so with
    fewer cards, is as slow as one that sends as much through each card. As in `SizeTable`: piecewise linear, the
    seconds of the smallest size below it, the last slope above the largest; between and above the measured numbers of
    domains the next smaller one, with the bytes of equal traffic (n - 1) / n and `hop_s` for each step more.
    """

    table: SizeTable
    domains: Array

    @classmethod
    def of(cls, curves: Mapping[str, Mapping[str, Any]]) -> DomainTable:
        """From {"domains": {"bytes": [...], "us": [...]}}."""
        return cls(SizeTable.of(curves, 1e-6), np.array(sorted(map(int, curves)), dtype=np.int64))

    def seconds(self, bytes_per_card: Array, domains: Array, hops: Hops, hop_s: float) -> Array:
        """Seconds over `domains` domains (columns); 0 in one domain."""
        held = np.minimum(domains, MAX_RANKS)
        measured = self.domains[np.maximum(np.searchsorted(self.domains, held, side="right") - 1, 0)]
        more = hop_s * np.maximum(hops(domains) - hops(measured), 0.0)
        return np.asarray(np.where(domains > 1, self.table.seconds(bytes_per_card, held) + more, 0.0))
