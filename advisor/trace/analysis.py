"""Traces of many ranks as figures: every file is read, measured and let go before the next one is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import InputError
from advisor.trace.chunks import NoTraceError
from advisor.trace.classes import ClassUse
from advisor.trace.collectives import Collectives, collectives_of
from advisor.trace.events import Trace
from advisor.trace.files import FORMS, rank_in_name, read, trace_files
from advisor.trace.intervals import Intervals, subtract
from advisor.trace.overlap import Sets, measure
from advisor.trace.skew import Skew, skew_of
from advisor.trace.steps import WHOLE, Selection, Windows


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One communication kind over one window: seconds it runs, seconds of these hidden, operations begun."""

    communication_s: float
    hidden_s: float
    calls: int

    @property
    def exposed_s(self) -> float:
        """Seconds beside no compute."""
        return self.communication_s - self.hidden_s


@dataclass(frozen=True, slots=True)
class Figures:
    """One window; `step_s` = compute_s + exposed_s + copies_s + idle_s, and idle_s contains host_bound_s."""

    name: str
    step_s: float
    compute_s: float
    communication_s: float
    hidden_s: float
    copies_s: float
    idle_s: float
    host_bound_s: float
    kinds: dict[str, KindFigures]

    @property
    def exposed_s(self) -> float:
        """Communication beside no compute."""
        return self.communication_s - self.hidden_s


@dataclass(frozen=True, slots=True)
class Part:
    """One file's share of a rank: the sets of time behind its figures, in nanoseconds since `origin_ns`."""

    path: Path
    source: str
    origin_ns: int
    base_ns: int
    device: str
    windows: Windows
    tracks: dict[str, Intervals]
    collectives: Collectives
    steps: tuple[Figures, ...]

    @property
    def begin_ns(self) -> int:
        """Begin of the first window on the file's clock."""
        return int(self.windows.low[0]) + self.origin_ns

    @property
    def end_ns(self) -> int:
        """End of the last window on the file's clock."""
        return int(self.windows.high[-1]) + self.origin_ns


@dataclass(frozen=True, slots=True)
class Rank:
    """All that was found of one rank; `front_end` is device (CUDA streams) or gloo (threads of a CPU run)."""

    rank: int
    world_size: int | None
    backend: str
    source: str
    front_end: str
    parts: tuple[Part, ...]
    classes: dict[str, ClassUse]
    unknown: dict[str, ClassUse]
    findings: tuple[str, ...]

    @property
    def steps(self) -> tuple[Figures, ...]:
        """Windows of all parts in order."""
        return tuple(step for part in self.parts for step in part.steps)

    @property
    def mean(self) -> Figures:
        """The mean window: sums over steps divided by their number, so that the terms still add up."""
        return mean(self.steps)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Ranks in order, how they lie beside each other, and what was found about the files as a whole."""

    selection: Selection
    ranks: tuple[Rank, ...]
    skew: Skew
    findings: tuple[str, ...]

    @property
    def mean(self) -> Figures:
        """The mean rank's mean window."""
        return mean([rank.mean for rank in self.ranks])


def mean(figures: Sequence[Figures]) -> Figures:
    """Term by term, over windows or ranks (at least one); a kind that is missing somewhere counts as zero there."""
    n = len(figures)
    names = dict.fromkeys(name for one in figures for name in one.kinds)
    zero = KindFigures(0.0, 0.0, 0)

    def kind(name: str) -> KindFigures:
        of = [one.kinds.get(name, zero) for one in figures]
        return KindFigures(
            sum(one.communication_s for one in of) / n, sum(one.hidden_s for one in of) / n,
            round(sum(one.calls for one in of) / n),
        )  # fmt: skip

    def term(name: str) -> float:
        return float(sum(getattr(one, name) for one in figures)) / n

    return Figures(
        name="mean", step_s=term("step_s"), compute_s=term("compute_s"), communication_s=term("communication_s"),
        hidden_s=term("hidden_s"), copies_s=term("copies_s"), idle_s=term("idle_s"), host_bound_s=term("host_bound_s"),
        kinds={name: kind(name) for name in names},
    )  # fmt: skip


def analyse(paths: Sequence[Path], selection: Selection = "steps") -> Analysis:
    """Measure every trace that the files and folders hold.

    Raises:
        InputError: a named file is no trace, or nothing that could be measured was found.
    """
    findings: list[str] = []
    found: dict[int, Rank] = {}
    for path, named in trace_files(paths):
        try:
            traces = read(path)
        except NoTraceError as problem:
            if named:
                raise
            findings.append(f"{problem.message}: left out")
            continue
        for index, trace in enumerate(traces):
            _add(found, trace, index if len(traces) > 1 else None, selection, findings)
    if not found:
        detail = f"; {findings[0]}" if findings else ""
        raise InputError(f"{paths[0]}: no trace with anything to measure{detail}", FORMS)
    ranks = tuple(found[number] for number in sorted(found))
    skew = skew_of({rank.rank: [part.collectives for part in rank.parts] for rank in ranks})
    return Analysis(selection, ranks, skew, tuple(findings))


def _add(found: dict[int, Rank], trace: Trace, device: int | None, selection: Selection, findings: list[str]) -> None:
    sets = measure(trace, selection)
    number = _rank_number(found, trace, device, findings)
    if not len(sets.windows):
        findings.append(f"{trace.path}: {'; '.join(sets.findings)}")
        return
    rank, before = _rank(number, trace, sets), found.get(number)
    found[number] = rank if before is None else _joined(before, rank, findings)


def _rank_number(found: dict[int, Rank], trace: Trace, device: int | None, findings: list[str]) -> int:
    """What the file says, else its name, else the next number that is free."""
    named = trace.rank if trace.rank is not None else rank_in_name(trace.path) if device is None else None
    if named is not None:
        return named
    free = next(number for number in range(len(found) + 1) if number not in found)
    if device is None:
        findings.append(f"{trace.path}: neither the file nor its name tells its rank; it counts as rank {free}")
    return free


def _rank(number: int, trace: Trace, sets: Sets) -> Rank:
    tracks = {"compute": sets.compute, "copies": sets.copies, "idle": sets.idle, "host bound": sets.host_bound}
    for kind, of in sets.kinds.items():
        tracks |= {f"{kind} hidden": of.hidden, f"{kind} exposed": subtract(of.runs, sets.compute)}
    part = Part(
        path=trace.path, source=trace.source, origin_ns=trace.origin_ns, base_ns=trace.base_ns,
        device=trace.device_name, windows=sets.windows, tracks=tracks,
        collectives=collectives_of(sets), steps=figures_of(sets),
    )  # fmt: skip
    front_end = "device" if trace.on_device else "gloo"
    return Rank(
        number, trace.world_size, trace.backend, trace.source, front_end, (part,), sets.classes, sets.unknown,
        sets.findings,
    )  # fmt: skip


def figures_of(sets: Sets) -> tuple[Figures, ...]:
    """The figures of every window."""
    of = {name: sets.seconds(getattr(sets, name)).tolist() for name in ("compute", "communication", "hidden")}
    rest = {name: sets.seconds(getattr(sets, name)).tolist() for name in ("copies", "idle", "host_bound")}
    kinds = {
        name: (sets.seconds(kind.runs).tolist(), sets.seconds(kind.hidden).tolist(), kind.calls.tolist())
        for name, kind in sets.kinds.items()
    }
    lengths = ((sets.windows.high - sets.windows.low) / 1e9).tolist()
    return tuple(
        Figures(
            name, lengths[at], of["compute"][at], of["communication"][at], of["hidden"][at], rest["copies"][at],
            rest["idle"][at], rest["host_bound"][at],
            {kind: KindFigures(runs[at], hidden[at], calls[at]) for kind, (runs, hidden, calls) in kinds.items()},
        )
        for at, name in enumerate(sets.windows.names)
    )  # fmt: skip


def _joined(before: Rank, after: Rank, findings: list[str]) -> Rank:
    """Two files of one rank: two pieces of its time, or the same time twice, of which the first counts."""
    new = after.parts[0]
    for part in before.parts:
        apart = new.begin_ns >= part.end_ns or new.end_ns <= part.begin_ns
        if not apart or before.front_end != after.front_end:
            findings.append(f"{new.path}: covers the same time of rank {after.rank} as {part.path}; left out")
            return before
    parts = tuple(sorted((*before.parts, new), key=lambda part: part.begin_ns))
    said = tuple(dict.fromkeys((*before.findings, *after.findings)))
    return Rank(
        before.rank, before.world_size or after.world_size, before.backend or after.backend, before.source,
        before.front_end, parts, _summed(before.classes, after.classes), _summed(before.unknown, after.unknown), said,
    )  # fmt: skip


def _summed(a: dict[str, ClassUse], b: dict[str, ClassUse]) -> dict[str, ClassUse]:
    calls: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    roles: dict[str, str] = {}
    for name, use in (*a.items(), *b.items()):
        calls[name] += use.calls
        spent[name] += use.kernel_ns
        roles[name] = use.role
    return {name: ClassUse(roles[name], calls[name], ns) for name, ns in spent.most_common()}


def unmarked(analysis: Analysis) -> bool:
    """Whether no rank has step marks, so that windows are whole files."""
    return all(step.name == WHOLE for rank in analysis.ranks for step in rank.steps)
