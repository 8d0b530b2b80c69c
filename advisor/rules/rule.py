"""The one form of every rule, and how rules are applied to columns and to a single row.

A rule says which entries of a table it finds broken (a mask that broadcasts with the columns it reads), and for one
row the sentence with the numbers and the nearest value that would be fine. Search, estimate, configuration and the
documentation see the same objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from advisor.spec.hardware import Cluster
from advisor.spec.layout import LAYOUT_COLUMNS, Array, Columns, Knobs, Layout, knob_values, table
from advisor.spec.model import Model
from advisor.spec.plan import Finding, Severity
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

TC = "ML:megatron/core/transformer/transformer_config.py"
MPC = "ML:megatron/core/model_parallel_config.py"
PS = "ML:megatron/core/parallel_state.py"
SCH = "ML:megatron/core/pipeline_parallel/schedules.py"
TD = "ML:megatron/core/transformer/moe/token_dispatcher.py"
OPT = "ML:megatron/core/optimizer/optimizer_config.py"
ARG = "ML:megatron/training/arguments.py"
MB = "MB:src/megatron/bridge/training"
CPY = "TE:transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py"


class AnyRule(Protocol):
    """What every rule says of itself, whether it is asked of columns (`Rule`) or of a configuration (`ConfigRule`)."""

    @property
    def id(self) -> str:
        """The name under which findings and `advisor rules` show it."""

    @property
    def severity(self) -> Severity:
        """stop, silent, slow or info."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Whose rule it is."""

    @property
    def versions(self) -> str:
        """Releases that have it."""

    @property
    def source(self) -> str:
        """Where it comes from."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What a predicate sees: one job and the columns of its layouts and knobs."""

    model: Model
    cluster: Cluster
    workload: Workload
    columns: Columns


@dataclass(frozen=True, slots=True)
class Row:
    """What a message sees: one job with one layout and one choice of knobs."""

    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    knobs: Knobs


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of Megatron, of a library below it, or of experience.

    `severity`: stop = refused or crashes, silent = accepted but not what was asked for, slow = runs and wastes time,
    info = worth knowing. `fields` are the columns that `broken` reads; it returns a mask, True = broken, that
    broadcasts with them. `source` is ALIAS:path:line with ML = NVIDIA/Megatron-LM@d98e8a64,
    MB = NVIDIA-NeMo/Megatron-Bridge@067f987d, TE = NVIDIA/TransformerEngine@d0067d0d. `targets` names the code that
    enforces it, `versions` the megatron-core releases. `weighed` marks advice to turn a knob that a search has turned:
    where the knob was free, the layout that it chose is better for all that the cost functions know.
    """

    id: str
    severity: Severity
    fields: tuple[str, ...]
    source: str
    broken: Callable[[Case], Array]
    message: Callable[[Row], str]
    fix: Callable[[Row], str]
    targets: tuple[str, ...] = ("mcore",)
    versions: str = ">=0.16"
    weighed: bool = False


NEVER = np.zeros((), dtype=np.bool_)
"""The mask of a rule that the job cannot break, whatever its layout."""


def always(flag: bool) -> Array:
    """`flag` as the mask of a rule about the job itself, which reads no field of a layout."""
    return np.array(flag)


def partial_columns(known: Mapping[str, Array], splits: tuple[PipelineSplit, ...] = ()) -> Columns:
    """Columns with the `known` fields; the others hold one placeholder, so ask only rules about the known ones."""
    values: dict[str, Any] = {name: np.ones(1, dtype=np.int64) for name in LAYOUT_COLUMNS}
    values["sp"] = np.zeros(1, dtype=np.bool_)
    values.update({name: np.array([value]) for name, value in knob_values(Knobs()).items()})
    values.update(known)
    return Columns(**values, splits=splits)


def divisors(number: int) -> list[int]:
    """Divisors of `number` in ascending order; [] for 0."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0] if number > 0 else []
    return sorted({*small, *(number // n for n in small)})


def nearest(name: str, value: int, legal: Iterable[int], why: str = "") -> str:
    """`name`=best with the legal value closest to `value` in ratio, smaller first; `why` if there is none."""
    options = sorted(set(legal) - {value})
    if not options:
        return why
    best = min(options, key=lambda option: (max(option, value) / max(min(option, value), 1), option))
    return f"{name}={best}"


def nearest_grid(world: int, allowed: Mapping[str, Container[int]] = MappingProxyType({}), **sizes: int) -> str:
    """Sizes closest to those given, in ratio, whose product divides `world`: "tp=4,pp=2", only what changes.

    `allowed` names what else a size must be; 1 is always allowed.
    """
    names = sorted(sizes)
    values = [[n for n in divisors(world) if n == 1 or name not in allowed or n in allowed[name]] for name in names]

    def distance(values: tuple[int, ...]) -> tuple[float, int]:
        moved = [abs(math.log(value / max(sizes[name], 1))) for name, value in zip(names, values, strict=True)]
        return round(sum(moved), 9), sum(move > 0 for move in moved)

    legal = (one for one in product(*values) if world % math.prod(one) == 0)
    best = min(legal, key=lambda one: (*distance(one), one))
    return ",".join(f"{name}={value}" for name, value in zip(names, best, strict=True) if value != sizes[name])


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What `stop` rules say about every entry of a table of shape `shape`.

    `masks[id]` (True = broken) broadcasts with the table, is as small as the columns that the rule reads, and is there
    only for rules that some entry breaks, in the order in which rules are asked.
    """

    shape: tuple[int, ...]
    masks: dict[str, Array]

    def mask(self, rule: str) -> Array:
        """Broken entries of one rule over the full table."""
        return np.broadcast_to(self.masks.get(rule, NEVER), self.shape)

    @cached_property
    def legal(self) -> Array:
        """Entries that break no rule, full shape."""
        legal = np.ones(self.shape, dtype=np.bool_)
        for mask in self.masks.values():
            legal &= ~mask
        return legal

    def count(self, weight: Array | int = 1) -> dict[str, int]:
        """Entries per rule, each under the first rule it breaks, counted `weight` times (int64, broadcasts)."""
        weights = np.asarray(weight, dtype=np.int64)
        left = np.ones(self.shape, dtype=np.bool_)
        found = {}
        for rule, mask in self.masks.items():
            first = left & mask
            once = weights.ndim == 0
            found[rule] = (
                int(np.count_nonzero(first)) * int(weights) if once else int(np.where(first, weights, 0).sum())
            )
            left &= ~mask
        return {rule: count for rule, count in found.items() if count}

    @cached_property
    def counts(self) -> dict[str, int]:
        """Entries per rule, each under the first rule it breaks."""
        return self.count()


def judge(rules: Sequence[Rule], case: Case) -> Verdicts:
    """Asks `rules` in order over every entry of the case."""
    asked = {rule.id: np.asarray(rule.broken(case)) for rule in rules}
    return Verdicts(case.columns.shape, {rule: mask for rule, mask in asked.items() if mask.any()})


def answers(rules: Sequence[Rule], rows: Sequence[Row]) -> tuple[tuple[Finding, ...], ...]:
    """Findings of all broken `rules` about each of some rows of one job, in the order of the rules."""
    if not rows:
        return ()
    job = rows[0]
    case = Case(job.model, job.cluster, job.workload, table([row.layout for row in rows], [row.knobs for row in rows]))
    asked = [(rule, np.asarray(rule.broken(case))) for rule in rules]
    broken = [(rule, np.broadcast_to(mask, (len(rows),)).tolist()) for rule, mask in asked if mask.any()]
    return tuple(
        tuple(Finding(rule.id, rule.severity, rule.message(row), rule.fix(row)) for rule, mask in broken if mask[i])
        for i, row in enumerate(rows)
    )
