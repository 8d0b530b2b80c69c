"""Windows of time that a trace is measured over: one per profiler step, or one for the whole of it.

On a device, host marks are not its clock: a step's window begins with the first work that was launched within its mark
and ends where the next one begins, the last one where the last work launched in it ends. Windows are therefore disjoint
and their sums are the figures of the range. Without a traced launch, work belongs where it ran. In a trace of a CPU run
marks are the windows.

The other selections measure one window. Two of them take the events that HolisticTraceAnalysis 0.5.0 takes: it leaves
out device events whose launch is not in the trace, and by default those launched in the last step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from advisor.trace.events import Mark, Trace, Work, launch_of
from advisor.trace.intervals import Times

Selection = Literal["steps", "all", "launched", "launched-before-last-step"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
WHOLE = "whole trace"


@dataclass(frozen=True, slots=True)
class Windows:
    """Named windows [low[i], high[i]), disjoint and in order, nanoseconds since the origin of the trace."""

    names: tuple[str, ...]
    low: Times
    high: Times

    def __len__(self) -> int:
        return len(self.names)


def select(trace: Trace, selection: Selection) -> tuple[Trace, Windows]:
    """The trace with the events that count under `selection`, and the windows they are measured over."""
    if selection == "steps":
        found = step_windows(trace)
        return trace, found if len(found) else _whole(trace)
    if selection == "all" or not trace.on_device:
        return trace, _whole(trace)
    launch, known = launch_of(trace, trace.device)
    if trace.marks:
        known &= launch >= trace.marks[0].start
        if selection == "launched-before-last-step":
            known &= launch < trace.marks[-1].start
    fewer = replace(trace, device=trace.device.only(known)) if known.any() else trace
    return fewer, _whole(fewer)


def step_windows(trace: Trace) -> Windows:
    """One window per mark that any work belongs to; none when the trace has no marks."""
    marks = _disjoint(trace.marks)
    if trace.on_device:
        return _device_windows(trace, marks)
    low = np.array([mark.start for mark in marks], np.int64)
    high = np.array([mark.end for mark in marks], np.int64)
    return Windows(tuple(mark.name for mark in marks), low, high)


def _disjoint(marks: tuple[Mark, ...]) -> list[Mark]:
    """Marks in order, each cut where the next begins; those of no length and those within another are left out."""
    found: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end)):
        if mark.end <= mark.start or (found and mark.end <= found[-1].end):
            continue
        if found and found[-1].end > mark.start:
            found[-1] = replace(found[-1], end=mark.start)
        found.append(mark)
    return [mark for mark in found if mark.end > mark.start]


def _device_windows(trace: Trace, marks: list[Mark]) -> Windows:
    work: Work = trace.device
    launch, known = launch_of(trace, work)
    belongs = np.where(known, launch, work.start)
    step = np.searchsorted([mark.start for mark in marks], belongs, side="right") - 1
    names: list[str] = []
    low: list[int] = []
    end = 0
    for index, mark in enumerate(marks):
        mine = (step == index) & (belongs < mark.end)
        if not mine.any():
            continue
        start = int(work.start[mine].min())
        start = max(start, low[-1]) if low else start
        names.append(mark.name)
        low.append(start)
        end = max(end, int(work.end[mine].max())) if len(low) > 1 else int(work.end[mine].max())
    high = [*low[1:], max(end, low[-1])] if low else []
    return Windows(tuple(names), np.array(low, np.int64), np.array(high, np.int64))


def _whole(trace: Trace) -> Windows:
    """From the first to the last moment of anything that counts."""
    work = trace.work
    starts, ends = [work.start], [work.end]
    if not trace.on_device:
        starts.append(trace.host_start)
        ends.append(trace.host_end)
    if not sum(map(len, starts)):
        return Windows((), np.array([], np.int64), np.array([], np.int64))
    low, high = np.concatenate(starts).min(keepdims=True), np.concatenate(ends).max(keepdims=True)
    return Windows((WHOLE,), low, high)
