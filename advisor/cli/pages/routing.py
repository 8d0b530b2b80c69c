"""The block of router statistics on a page: how uneven the experts are, what that costs, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.cli.document import Block, Column, Line, Table
from advisor.cli.figures import NONE, count, figure, gain
from advisor.units import gib

if TYPE_CHECKING:
    from advisor.search.routing import Imbalance, RouterChange


def routing_blocks(found: Imbalance | None) -> Iterator[Block]:
    """What router statistics say of a layout; nothing without them."""
    if found is None:
        return
    stats = found.stats
    experts = f"{count(len(stats.layers))} layers of {count(stats.loads[0].size)} experts"
    yield Line(f"router statistics: {experts}, {stats.form}, layers numbered from {stats.first}")
    yield Line(
        f"hottest of {count(found.ep)} ranks: {found.hottest:.2f} x the mean, layer {found.worst_layer}"
        f" {found.worst:.2f} x; step {gain(found.slowdown)} and {figure(gib(found.extra_bytes))} GiB against balanced"
    )
    columns = (
        Column("turn", "name"), Column("to"), Column("hottest x"), Column("dropped"), Column("then", "name"),
        Column("tokens/s/GPU"), Column("frees GiB"),
    )  # fmt: skip
    if found.changes:
        yield Table("what would even it out, everything else kept", columns, tuple(map(_row, found.changes)))


def _row(one: RouterChange) -> tuple[str, ...]:
    dropped = f"{one.dropped:.1%}" if one.name == "capacity_factor" else NONE
    shown = (f"{one.value:g}", f"{one.hottest:.2f}", dropped, one.verdict, gain(one.gain))
    return (one.name, *shown, figure(gib(one.freed_bytes)))
