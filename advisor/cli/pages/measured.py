"""The block of a measured rate on a page: beside the dense peak, the prediction and public figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.cli.document import Block, Column, Table
from advisor.cli.figures import NONE, count, figure
from advisor.cli.pages.parts import findings_table

if TYPE_CHECKING:
    from advisor.fit.references import Measured

MOST_FIGURES = 8


def measured_blocks(found: Measured | None) -> Iterator[Block]:
    """What a measured rate says; nothing without one."""
    if found is None:
        return
    columns = (
        Column("TFLOP/s per GPU"), Column("precision", "name"), Column("GPUs"), Column("software", "name"),
        Column("source", "text"),
    )  # fmt: skip
    rows = tuple(
        (figure(one.tflops), one.precision, NONE if one.gpus is None else count(one.gpus), one.software, one.source)
        for one in found.published[:MOST_FIGURES]
    )
    if rows:
        yield Table("published for this model and GPU", columns, rows)
    yield from findings_table(found.findings)
