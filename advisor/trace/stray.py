"""Events with a time far from all others (a clock of 0, a byte gone wrong) would stretch a trace to years."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from advisor.trace.events import Trace
from advisor.trace.intervals import Times

FAR_NS = 86_400 * 10**9


def without_strays(trace: Trace) -> Trace:
    """The trace without the events that lie or last more than a day away from the middle event."""
    starts = trace.work.start if len(trace.work) else trace.host_start
    if not len(starts):
        return trace
    middle = int(np.median(starts))
    device, gloo = (_near(work.start, work.end, middle) for work in (trace.device, trace.gloo))
    host = _near(trace.host_start, trace.host_end, middle)
    marks = tuple(mark for mark in trace.marks if abs(mark.start - middle) < FAR_NS and mark.end - middle < FAR_NS)
    dropped = int((~device).sum() + (~gloo).sum() + (~host).sum()) + len(trace.marks) - len(marks)
    if not dropped:
        return trace
    finding = f"{dropped} events lie more than a day from the others and were left out"
    return replace(
        trace, device=trace.device.only(device), gloo=trace.gloo.only(gloo), host_start=trace.host_start[host],
        host_end=trace.host_end[host], marks=marks, findings=(*trace.findings, finding),
    )  # fmt: skip


def _near(start: Times, end: Times, middle: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    near: np.ndarray[tuple[int], np.dtype[np.bool_]] = (np.abs(start - middle) < FAR_NS) & (end - middle < FAR_NS)
    return near
