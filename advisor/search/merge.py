"""Fewer, larger parts: rows with similar knob choices share one table, with a mask of what each row offers.

Every numpy call costs microseconds whatever it works on, and a pass over a part makes about two thousand. Parts are
joined as long as the entries that nobody offers cost less than a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from advisor.search.parts import Axes, Part
from advisor.spec.layout import LAYOUT_COLUMNS, Array, Knobs

PASS_ENTRIES = 400_000
"""Table entries that take as long as the fixed cost of a pass (about 20 ms against 0.05 us each on one core)."""


def regroup(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same rows with the same choices in fewer parts; parts with different base knobs or splits stay apart."""
    alike: dict[tuple[Knobs, int, int], list[Part]] = {}
    for part in parts:
        alike.setdefault((part.axes[0][0], len(part.axes), id(part.splits)), []).append(part)
    return tuple(joined for group in alike.values() for joined in _regroup(group))


def in_order(lists: Iterable[Sequence[Knobs]]) -> tuple[Knobs, ...]:
    """All distinct entries of `lists`, every list's own order kept."""
    out: list[Knobs] = []
    for one in sorted(lists, key=len, reverse=True):
        at = 0
        for entry in one:
            if entry in out:
                at = out.index(entry)
            else:
                out.insert(at, entry)
            at += 1
    return tuple(out)


def _regroup(parts: Sequence[Part]) -> list[Part]:
    depth = len(parts[0].axes)
    whole = [in_order([part.axes[i] for part in parts]) for i in range(depth)]
    bits = np.array(
        [[sum(1 << whole[i].index(choice) for choice in part.axes[i]) for i in range(depth)] for part in parts],
        dtype=np.int64,
    )
    out = []
    for members in _clusters(bits, np.array([part.rows for part in parts], dtype=np.int64)):
        own = [parts[number] for number in members]
        out.append(own[0] if len(own) == 1 else _joined(own, whole))
    return out


def _clusters(bits: Array, rows: Array) -> list[list[int]]:
    """Which parts to join: the pair that wastes least, again and again, while that is less than a pass.

    `bits` (parts, axes) are the choices of each part, `rows` (parts,) its rows.
    """
    members = [[number] for number in range(len(rows))]
    while len(members) > 1:
        union = np.bitwise_count(bits[:, None] | bits[None]).prod(axis=-1, dtype=np.int64)
        entries = rows * union.diagonal()
        waste = union * (rows[:, None] + rows[None]) - entries[:, None] - entries[None]
        np.fill_diagonal(waste, np.iinfo(np.int64).max)
        one, other = sorted(int(at) for at in np.unravel_index(waste.argmin(), waste.shape))
        if waste[one, other] >= PASS_ENTRIES:
            break
        members[one] += members.pop(other)
        bits[one] |= bits[other]
        rows[one] += rows[other]
        bits, rows = np.delete(bits, other, axis=0), np.delete(rows, other)
    return members


def _joined(parts: Sequence[Part], whole: Sequence[Sequence[Knobs]]) -> Part:
    """One part of all rows of `parts`; its axes are the entries of `whole` that any of them has."""
    axes: Axes = tuple(
        tuple(choice for choice in axis if any(choice in part.axes[i] for part in parts))
        for i, axis in enumerate(whole)
    )
    offered = tuple(np.concatenate([_spread(part, i, axis) for part in parts], axis=1) for i, axis in enumerate(axes))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in LAYOUT_COLUMNS}
    return Part(columns, parts[0].splits, axes, offered)


def _spread(part: Part, number: int, axis: Sequence[Knobs]) -> Array:
    """The mask of axis `number` over the choices of a longer axis."""
    out = np.zeros((len(axis), part.rows), dtype=np.bool_)
    out[[axis.index(choice) for choice in part.axes[number]]] = part.offered[number]
    return out
