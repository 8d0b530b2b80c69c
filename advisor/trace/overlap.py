"""Hidden and exposed communication, compute, idle and host-bound time of one trace.

Definitions, all on unions of intervals (equal to those of HolisticTraceAnalysis 0.5.0 where it has them):
  compute        any compute kernel runs (HTA: compute_time)
  communication  any communication kernel runs
  hidden         communication and compute run at once; hidden share = hidden / communication (HTA: comp_comm_overlap)
  exposed        communication runs and compute does not, whether a copy runs beside it or not
  copies         a copy or memset runs, and neither compute nor communication
  idle           nothing runs: window - (compute or communication or copies) (HTA: idle_time)
  host bound     the idle time that ends with work whose launch began after the device had run dry (HTA: host wait,
                 there per stream, here for the device)
so window = compute + exposed + copies + idle. A kind (tp, dp, ...) is measured alone against compute: two kinds that
run at once both count, hence kinds may sum to more than all communication.

In a trace of a CPU run gloo operations on any thread are communication and aten operators are compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from advisor.trace.classes import Classified, ClassUse, by_kind, class_use, classified, kinds_of, unknown_use
from advisor.trace.events import Trace, Work, launch_of
from advisor.trace.intervals import EMPTY, NS, Intervals, covered, gaps, intersect, join, subtract, union
from advisor.trace.kernels import KINDS
from advisor.trace.steps import Selection, Windows, select


@dataclass(frozen=True, slots=True)
class KindSets:
    """One communication kind: when it runs, when it is hidden, and how many operations begin in each window."""

    runs: Intervals
    hidden: Intervals
    calls: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sets:
    """Everything that was measured of one trace, as sets of time beside its `windows`."""

    trace: Trace
    windows: Windows
    compute: Intervals
    communication: Intervals
    hidden: Intervals
    copies: Intervals
    idle: Intervals
    host_bound: Intervals
    kinds: dict[str, KindSets]
    classes: dict[str, ClassUse]
    unknown: dict[str, ClassUse]
    findings: tuple[str, ...]

    def seconds(self, of: Intervals) -> npt.NDArray[np.float64]:
        """Seconds that a set covers of each window, shape (windows,)."""
        return covered(of, self.windows.low, self.windows.high) / NS

    @property
    def exposed(self) -> Intervals:
        """Communication beside no compute."""
        return subtract(self.communication, self.compute)


def measure(trace: Trace, selection: Selection = "steps") -> Sets:
    """All sets of a trace under a selection; where nothing ran every set is empty and a finding says so."""
    trace, windows = select(trace, selection)
    findings = list(trace.findings)
    work = trace.work
    found = classified(trace, work)
    communicates, computes, copied = map(found.role, ("communication", "compute", "memory"))
    host = EMPTY if trace.on_device else union(trace.host_start, trace.host_end)
    compute = join(host, union(work.start[computes], work.end[computes]))
    communication = union(work.start[communicates], work.end[communicates])
    active = join(compute, communication)
    copies = subtract(union(work.start[copied], work.end[copied]), active)
    low, high = (int(windows.low[0]), int(windows.high[-1])) if len(windows) else (0, 0)
    idle = gaps(join(active, copies), low, high)
    mine = Classified(found.rules, found.index[communicates])
    of_kind = by_kind(*kinds_of(trace, work.only(communicates), mine, findings))
    kinds = _kinds(work.only(communicates), of_kind, compute, windows)
    _say_what_is_missing(trace, selection, windows, findings)
    return Sets(
        trace=trace, windows=windows, compute=compute, communication=communication,
        hidden=intersect(communication, compute), copies=copies, idle=idle, host_bound=_host_bound(trace, idle),
        kinds=kinds, classes=class_use(work, found), unknown=unknown_use(trace, work, found), findings=tuple(findings),
    )  # fmt: skip


def _kinds(
    work: Work, masks: dict[str, npt.NDArray[np.bool_]], compute: Intervals, windows: Windows
) -> dict[str, KindSets]:
    kinds = {}
    for kind in (name for name in KINDS if name in masks):
        start, end = work.start[masks[kind]], work.end[masks[kind]]
        begins = np.sort(start)
        calls = np.searchsorted(begins, windows.high) - np.searchsorted(begins, windows.low)
        runs = union(start, end)
        kinds[kind] = KindSets(runs, intersect(runs, compute), calls.astype(np.int64))
    return kinds


def _host_bound(trace: Trace, idle: Intervals) -> Intervals:
    """The gaps before work whose launch began only after the gap did: nothing was queued."""
    work = trace.device
    if not len(work) or not len(idle):
        return EMPTY
    launch, known = launch_of(trace, work)
    order = np.lexsort((launch, work.start))
    # The first work at the end of a gap ended it; of several at once, the one launched first.
    next_work = np.searchsorted(work.start[order], idle.end)
    ended = next_work < len(work)
    index = order[np.minimum(next_work, len(work) - 1)]
    bound = ended & known[index] & (launch[index] >= idle.start)
    return Intervals(idle.start[bound], idle.end[bound])


def _say_what_is_missing(trace: Trace, selection: Selection, windows: Windows, findings: list[str]) -> None:
    if not len(windows):
        findings.append("the file holds no device work, no gloo operation and no operator: nothing to measure")
        return
    if selection == "steps" and not trace.marks:
        findings.append("no step marks (ProfilerStep): the whole file counts as one window")
    if trace.on_device and not len(trace.launches.start):
        findings.append("no launch calls in the file: host-bound time is not known")
