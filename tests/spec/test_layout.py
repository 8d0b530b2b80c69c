"""Tables of layouts: cells laid out as rows against plain broadcasting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from advisor.spec.layout import Fold


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_folded_array_is_the_broadcast_one_at_the_cells(shape, data):
    lead = data.draw(st.integers(0, len(shape) - 1))
    cells = np.array(data.draw(st.lists(st.integers(0, int(np.prod(shape[lead:])) - 1), min_size=1, max_size=6)))
    depth = data.draw(st.integers(0, len(shape)))
    own = [size if data.draw(st.booleans()) else 1 for size in shape[len(shape) - depth :]]
    array = np.arange(int(np.prod(own)), dtype=float).reshape(own)
    fold = Fold(tuple(shape), lead, cells)
    wide = np.broadcast_to(array, shape).reshape(*shape[:lead], -1)[..., cells]
    assert fold.shape == wide.shape
    assert (np.broadcast_to(fold(array), fold.shape) == wide).all()
    assert fold(array) is fold(array)
