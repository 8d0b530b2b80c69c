"""What a study may ask: a candidate of the solver's list, and knobs of its layout in legal combinations that fit.

A row is a candidate with values of the knobs of `KNOBS`; the first row of a candidate is itself. Other rows are priced
like any layout: the rules judge them, memory has to be within the budget, and what the request pins is kept; what is
predicted to be slower than its candidate by more than `KNOB_GAIN` is left out. Bucket size and SMs of the dispatcher
are in no prediction, 0 leaves them to the library.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from advisor.cost.memory import memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import legality
from advisor.search.candidates import make_candidates
from advisor.search.dials import recompute_names
from advisor.search.explain import with_size
from advisor.search.knobs import recompute_ladder
from advisor.spec.layout import Dispatcher, Knobs, Layout, table
from advisor.trial.job import PLAIN, Drive, Tuned
from advisor.trial.trials import Trial, make_trial

Value = int | str

SIZES = {"mbs": (1, 2, 4, 8, 16, 32, 64), "vpp": (1, 2, 3, 4, 6, 8, 12, 16)}
BUCKETS = (0, 1_000_000, 10_000_000, 40_000_000, 160_000_000)
SMS = (0, 8, 12, 16, 20, 24, 32)
KNOBS = (
    "mbs", "vpp", "recompute", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "ep_overlap",
    "bucket_size", "dispatcher_sms",
)  # fmt: skip
NUMBERS = ("mbs", "vpp", "bucket_size", "dispatcher_sms")
# Assumed: what a knob that the prediction prices wrongly, or not at all, gains at most.
KNOB_GAIN = 1.05
FLEX = (Dispatcher.deepep, Dispatcher.hybridep)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to try: candidate `index` of the list with knob `values`; `step_s` is its predicted step."""

    index: int
    values: Mapping[str, Value]
    layout: Layout
    knobs: Knobs
    tuned: Tuned
    step_s: float

    @property
    def identity(self) -> Identity:
        """Equal for rows that are the same job, of whichever candidate."""
        return self.layout, self.knobs, self.tuned


Identity = tuple[Layout, Knobs, Tuned]


@dataclass(slots=True)
class Space:
    """The trials of the list, in the order of prediction, and the rows of each, made when they are first looked at.

    `barred` are rows that the worker cannot run.
    """

    pool: Sequence[Trial]
    drive: Drive
    barred: set[Identity] = field(default_factory=set)
    _rows: dict[int, dict[tuple[Value, ...], Row]] = field(default_factory=dict)

    def first(self, index: int) -> Row:
        """A candidate as it is."""
        trial = self.pool[index]
        layout, knobs = trial.candidate.layout, trial.candidate.knobs
        step = trial.candidate.step
        return Row(index, values_of(layout, knobs, PLAIN), layout, knobs, PLAIN, 0.0 if step is None else step.step_s)

    def rows(self, index: int) -> Collection[Row]:
        """All rows of a candidate, itself first."""
        return self._of(index).values()

    def row(self, index: int, values: Mapping[str, Any]) -> Row | None:
        """The row of a candidate with these values, None where there is none (any more)."""
        wanted = tuple(values.get(name) for name in KNOBS)
        first = self.first(index)
        return first if key_of(first.values) == wanted else self._of(index).get(wanted)  # type: ignore[arg-type]

    def _of(self, index: int) -> dict[tuple[Value, ...], Row]:
        if index not in self._rows:
            self._rows[index] = {key_of(row.values): row for row in _rows(self.pool[index], index, self.drive)}
        return self._rows[index]

    def trial(self, row: Row) -> Trial:
        """The trial of a row; InputError for what the worker cannot run."""
        base = self.pool[row.index]
        if row.identity == self.first(row.index).identity:
            return base
        (found,) = make_candidates(base.request, [(row.layout, row.knobs)], ranks=[base.candidate.rank])
        return make_trial(base.source, base.request, found, self.drive, base.proxy_layers, row.tuned)

    def values(self, name: str) -> tuple[Value, ...]:
        """All values that a knob can have in the study, so that its range never changes."""
        if name in SIZES:
            own = {int(getattr(trial.candidate.layout, name)) for trial in self.pool}
            return tuple(sorted(own | {*SIZES[name]}))
        if name == "bucket_size":
            return BUCKETS
        if name == "dispatcher_sms":
            return SMS
        if name == "recompute":
            request = self.pool[0].request
            ladder = [_recompute(Knobs(**one)) for one in recompute_ladder(request.model, request.workload)]
            return tuple(dict.fromkeys([*ladder, *(_recompute(trial.candidate.knobs) for trial in self.pool)]))
        return "off", "on"


def _recompute(knobs: Knobs) -> str:
    return "+".join(recompute_names(knobs)) or "none"


def key_of(values: Mapping[str, Value]) -> tuple[Value, ...]:
    """Values in the order of `KNOBS`."""
    return tuple(values[name] for name in KNOBS)


def values_of(layout: Layout, knobs: Knobs, tuned: Tuned) -> dict[str, Value]:
    """The knobs of a row as a study shows them."""
    switches = ("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "ep_overlap")
    found: dict[str, Value] = {"mbs": layout.mbs, "vpp": layout.vpp, "recompute": _recompute(knobs)}
    found |= {name: "on" if getattr(knobs, name) else "off" for name in switches}
    return found | {"bucket_size": tuned.bucket_size, "dispatcher_sms": tuned.dispatcher_sms}


def _rows(trial: Trial, index: int, drive: Drive) -> Iterator[Row]:
    """Itself, and every combination that is legal, fits and keeps what is pinned."""
    request, candidate = trial.request, trial.candidate
    base = (candidate.layout, candidate.knobs)
    crossed = itertools.product(_layouts(trial), _knobs(trial))
    own = candidate.knobs.overlap_p2p
    pairs = list(
        dict.fromkeys([base, *((one, knobs) for one, knobs in crossed if one.vpp > 1 or knobs.overlap_p2p is own)])
    )
    columns = table([layout for layout, _ in pairs], [knobs for _, knobs in pairs])
    legal = legality(request.model, request.cluster, request.workload, columns).legal
    fits = memory(request.model, request.cluster, request.workload, columns).device_bytes <= request.budget_bytes
    profile = load_profile(request.cluster.gpu)
    step_s = step(request.model, request.cluster, request.workload, columns, profile).step_s
    good = np.broadcast_to(legal & fits & (step_s <= KNOB_GAIN * step_s[0]), columns.shape)
    for at, (layout, knobs) in enumerate(pairs):
        if at == 0 or good[at]:
            for tuned in _tuned(layout, knobs, drive):
                yield Row(index, values_of(layout, knobs, tuned), layout, knobs, tuned, float(step_s[at]))


def _layouts(trial: Trial) -> list[Layout]:
    """The layout with other microbatch sizes and numbers of chunks."""
    request, base = trial.request, trial.candidate.layout
    chunked = [base]
    if base.pp > 1 and "vpp" not in request.fixed:
        sized = (with_size(request, base, "vpp", vpp) for vpp in SIZES["vpp"] if vpp != base.vpp)
        chunked += [layout for layout in sized if layout is not None]
    sizes = SIZES["mbs"] if "mbs" not in request.fixed else ()
    fitting = [mbs for mbs in sizes if base.gbs % (mbs * base.dp) == 0]
    return [dataclasses.replace(layout, mbs=mbs) for layout in chunked for mbs in (base.mbs, *fitting)]


def _knobs(trial: Trial) -> list[Knobs]:
    """The knobs with other recompute sets and overlap switches, where the layout has something to overlap."""
    request, layout, base = trial.request, trial.candidate.layout, trial.candidate.knobs
    axes: list[list[dict[str, Any]]] = [[{}, *recompute_ladder(request.model, request.workload)]]
    if layout.dp * layout.cp > 1:
        axes.append([{}, *({"overlap_grad_reduce": reduce, "overlap_param_gather": gather}
                           for reduce, gather in ((True, True), (True, False), (False, False)))])  # fmt: skip
    if layout.pp > 1:
        axes.append([{}, {"overlap_p2p": not base.overlap_p2p}])
    if layout.ep > 1:
        on = not base.ep_overlap
        axes.append([{}, {"ep_overlap": on, "delay_wgrad": on, "shared_expert_overlap": False}])
    found = []
    for changes in itertools.product(*axes):
        changed = {name: value for one in changes for name, value in one.items()}
        if all(request.fixed.get(name, value) == value for name, value in changed.items()):
            found.append(dataclasses.replace(base, **changed))
    return list(dict.fromkeys(found))


def _tuned(layout: Layout, knobs: Knobs, drive: Drive) -> Iterator[Tuned]:
    """What no prediction knows: buckets of overlapped reductions, SMs of DeepEP and HybridEP."""
    buckets = BUCKETS if knobs.overlap_grad_reduce and layout.dp * layout.cp > 1 else (0,)
    sms = SMS if drive.device == "cuda" and knobs.dispatcher in FLEX else (0,)
    yield from dict.fromkeys([*(Tuned(bucket, 0) for bucket in buckets), *(Tuned(0, number) for number in sms)])
