"""The synchronising collectives of a rank, each under a key that the other ranks of its group share."""

from __future__ import annotations

import numpy as np

from advisor.trace.classes import classified, collective_names
from advisor.trace.intervals import Times
from advisor.trace.overlap import Sets

Key = tuple[str, str, tuple[int, ...], str]
Collectives = dict[Key, tuple[Times, Times]]


def collectives_of(sets: Sets) -> Collectives:
    """(collective, group, its ranks, step) -> start and end of its calls in order, nanoseconds of the file's clock.

    Taken are collectives that end on all ranks of their group at once. Old NCCL names an all-to-all SendRecv: it is
    taken too where no group is known, and the spread of its ends tells (in `skew`) whether it was one.
    """
    trace, windows = sets.trace, sets.windows
    work = trace.work
    work = work.only(classified(trace, work).role("communication"))
    if not len(work) or not len(windows):
        return {}
    entries, of = collective_names(trace, work)
    names = [entry.name if entry is not None else "" for entry in entries]
    surely = np.array([entry is not None and entry.synchronising for entry in entries])[of]
    perhaps = np.array([name == "send_recv" and trace.on_device for name in names])[of] & (work.group < 0)
    step = np.searchsorted(windows.low, work.start, side="right") - 1
    mine = np.flatnonzero((surely | perhaps) & (step >= 0) & (work.start < windows.high[step]))
    mine = mine[np.argsort(work.start[mine], kind="stable")]
    distinct = list(dict.fromkeys(names))
    name_at = np.array([distinct.index(name) for name in names])[of]
    rows, which = np.unique(np.stack((name_at, work.group, step), axis=1)[mine], axis=0, return_inverse=True)
    found: Collectives = {}
    for at, (name, group, window) in enumerate(rows.tolist()):
        calls = mine[which.reshape(-1) == at]
        known = trace.groups[group] if group >= 0 else None
        key = (distinct[name], known.name if known else "", known.ranks if known else (), windows.names[window])
        found[key] = work.start[calls] + trace.origin_ns, work.end[calls] + trace.origin_ns
    return found
