"""Every event's rule and communication kind as columns: each distinct name or group is looked up once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from advisor.trace.events import Group, Sort, Trace, Work
from advisor.trace.kernels import (
    UNKNOWN,
    Collective,
    KernelRule,
    classify,
    collective_of,
    kind_of,
    kinds_present,
    only_kind,
)

T = TypeVar("T")

OTHER = "other"
# Where a CPU run names no groups: Megatron sends point to point between stages and exchanges tokens all to all.
BY_COLLECTIVE = {"send_recv": "pp", "all_to_all": "ep"}


@dataclass(frozen=True, slots=True)
class ClassUse:
    """Kernels of one class or name: role, how many, and the sum of their durations in nanoseconds (no union)."""

    role: str
    calls: int
    kernel_ns: int


@dataclass(frozen=True, slots=True)
class Classified:
    """`rules[index[i]]` is the rule of event i."""

    rules: tuple[KernelRule, ...]
    index: npt.NDArray[np.int64]

    def role(self, role: str) -> npt.NDArray[np.bool_]:
        """Mask of the events of a role, shape (n,)."""
        mine = np.array([rule.role == role for rule in self.rules], np.bool_)
        return mine[self.index] if len(self.rules) else np.zeros(len(self.index), np.bool_)


def _looked_up(keys: Iterable[npt.NDArray[np.generic]], of: Callable[..., T]) -> tuple[list[T], npt.NDArray[np.int64]]:
    """`of(key...)` of every distinct row of the key columns, and which of them each row has."""
    rows = np.stack([np.asarray(key, np.int64) for key in keys], axis=1)
    if not len(rows):
        return [], np.zeros(0, np.int64)
    flat = np.zeros(len(rows), np.int64)
    for column in rows.T:
        flat = flat * (int(column.max()) + 2) + column + 1
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    return [of(*map(int, rows[at])) for at in first], inverse


def classified(trace: Trace, work: Work) -> Classified:
    """The rule of every event; whatever gloo does is communication."""
    gloo = KernelRule("gloo", "communication", UNKNOWN.pattern)

    def rule(name: int, sort: int) -> KernelRule:
        return classify(trace.names[name], Sort(sort)) if trace.on_device else gloo

    rules, index = _looked_up((work.name, work.sort), rule)
    return Classified(tuple(rules), index)


def class_use(work: Work, found: Classified) -> dict[str, ClassUse]:
    """Use by class, the longest first."""
    return _use(work, found.index, [(rule.name, rule.role) for rule in found.rules])


def unknown_use(trace: Trace, work: Work, found: Classified) -> dict[str, ClassUse]:
    """Use by name of the kernels that no rule knows, the longest first."""
    unknown = np.array([rule is UNKNOWN for rule in found.rules], np.bool_)
    mine = work.only(unknown[found.index]) if unknown.any() else work.only(np.zeros(len(work), np.bool_))
    names, index = _looked_up((mine.name,), lambda name: trace.names[name])
    return _use(mine, index, [(name, UNKNOWN.role) for name in names])


def _use(work: Work, index: npt.NDArray[np.int64], labels: list[tuple[str, str]]) -> dict[str, ClassUse]:
    if not labels:
        return {}
    calls = np.bincount(index, minlength=len(labels))
    spent = np.bincount(index, weights=(work.end - work.start).astype(np.float64), minlength=len(labels))
    summed: dict[str, ClassUse] = {}
    for (name, role), n, ns in zip(labels, calls.tolist(), spent.tolist(), strict=True):
        before = summed.get(name, ClassUse(role, 0, 0))
        summed[name] = ClassUse(role, before.calls + n, before.kernel_ns + round(ns))
    return dict(sorted(summed.items(), key=lambda item: (-item[1].kernel_ns, item[0])))


def collective_names(trace: Trace, work: Work) -> tuple[list[Collective | None], npt.NDArray[np.int64]]:
    """The collective of every communication event: what the event says, else what its name says."""

    def one(name: int, said: int) -> Collective | None:
        return collective_of(*((trace.names[said],) if said >= 0 else ()), trace.names[name])

    return _looked_up((work.name, work.collective), one)


def kinds_of(
    trace: Trace, work: Work, found: Classified, findings: list[str]
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The kind of every communication event; what was inferred and what stayed open goes to `findings`."""
    configured = {group.name: group for group in trace.known_groups}
    present = kinds_present(trace.known_groups, trace.rank)
    only = only_kind(present)
    reasons: Counter[str] = Counter()
    collectives, of_collective = collective_names(trace, work)

    def one(group: int, rule: int, collective: int) -> tuple[str, str]:
        if group >= 0:
            return _grouped(trace.groups[group], configured), ""
        if found.rules[rule].kind is not None:
            return str(found.rules[rule].kind), ""
        entry = collectives[collective]
        kind = BY_COLLECTIVE.get(entry.name) if entry is not None and not trace.on_device else None
        if kind is not None and entry is not None and (kind in present or not present):
            return kind, f"name no process group; {entry.name} counts as {kind}"
        if only is not None:
            return only, f"name no process group and count as {only}, the only kind they can be in this job"
        return OTHER, "name no process group and count as other"

    answers, index = _looked_up((work.group, found.index, of_collective), one)
    for (_, reason), calls in zip(answers, np.bincount(index, minlength=len(answers)).tolist(), strict=True):
        reasons[reason] += calls
    findings.extend(f"{calls} communication events {reason}" for reason, calls in reasons.items() if reason)
    return [kind for kind, _ in answers], index


def _grouped(group: Group, configured: dict[str, Group]) -> str:
    """By the event's own words, else by what the job's configuration says of the group's name."""
    known = configured.get(group.name)
    return kind_of(group) or (kind_of(known) if known is not None else None) or OTHER


def by_kind(kinds: list[str], index: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.bool_]]:
    """Mask of events per kind."""
    of: defaultdict[str, list[int]] = defaultdict(list)
    for position, kind in enumerate(kinds):
        of[kind].append(position)
    return {kind: np.isin(index, positions) for kind, positions in of.items()}
