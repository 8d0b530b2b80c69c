"""Layers dealt over pipeline ranks and chunks: what divides, and what is left where it does not."""

from __future__ import annotations

import pytest

from advisor.spec.split import deal_over_chunks, deal_over_ranks


@pytest.mark.parametrize(
    ("total", "pp", "first", "last", "dealt"),
    [
        (32, 4, None, None, ((8, 8, 8, 8), 32, 4)),
        (30, 4, 7, 7, ((7, 8, 8, 7), 16, 2)),
        (31, 4, 7, None, ((7, 8, 8, 8), 24, 3)),
        (10, 2, 4, 6, ((4, 6), 0, 0)),
        (30, 4, None, None, ((), 30, 4)),
        (10, 2, 4, 5, ((), 1, 0)),
        (10, 4, 9, 9, ((), -8, 2)),
    ],
)
def test_layers_over_ranks(total, pp, first, last, dealt) -> None:
    assert deal_over_ranks(total, pp, first, last) == dealt


def test_layers_over_chunks() -> None:
    assert deal_over_chunks((4, 8, 4), 2) == (2, 4, 2, 2, 4, 2)
    assert deal_over_chunks((4, 7, 4), 2) == ()
    assert deal_over_chunks((4, 7, 4), 1) == (4, 7, 4)
