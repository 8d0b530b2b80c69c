"""The best single changes of a job that runs today, the best two together, and how far away the best layout is.

What is priced is what really takes effect: `Settle` turns knobs that are asked for into those that hold on a layout, so
that a dial which makes a lost setting effective is credited with it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from advisor import data
from advisor.cost.pairs import pair_errors, ratio_spread
from advisor.search.candidates import make_candidates
from advisor.search.dials import KNOB_DIALS
from advisor.search.explain import price
from advisor.search.improve_measured import Measured
from advisor.search.improve_turns import CONNECTIONS, Turn, mathematics, pinned, turns, words
from advisor.search.request import Request
from advisor.search.single import Choice, judge
from advisor.search.solve import search
from advisor.spec.layout import Knobs, Layout
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.plan import Candidate, Finding
from advisor.spec.workload import Workload

Settle = Callable[[Layout, Knobs], Knobs]
Verdict = Literal["fits", "tight", "oom", "illegal"]

NOT_MEASURED = Measured()
NOTHING = 1e-6
"""Relative change of the step below which nothing changes."""
MOST_ALONE, MOST_FREEING, MOST_PAIRS = 24, 12, 8
"""How many single changes are tried in pairs (the fastest whatever they need, and those that free most memory), and how
many pairs are priced in full."""
DECIDING = 0.5
"""Share of a change above which assumed numbers are said to decide it."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A change of one dial or two, priced.

    `verdict` is fits, tight (fits, but leaves less than the headroom asked for), or oom. `gain` is the relative change
    of tokens/s against today, between `low` and `high` in `pairs.yaml`'s share of measured pairs; None where today is
    illegal. `kind` is fitted where measured pairs turn these dials, else assumed. `mathematics` says what changes
    about the training, "" where nothing does. `choice` is what is asked for, `candidate` what then takes effect;
    `restores` names knobs that are asked for today, are lost, and then take effect.
    """

    turns: tuple[Turn, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    request: Request
    choice: Choice
    candidate: Candidate
    verdict: Verdict
    gain: float | None
    low: float | None
    high: float | None
    kind: Literal["fitted", "assumed"]
    freed_bytes: float | None
    risks: tuple[str, ...]
    mathematics: str
    restores: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The dials that are turned."""
        return tuple(turn.name for turn in self.turns)

    @property
    def sure(self) -> bool:
        """Whether the whole interval is a gain, in memory that leaves the headroom asked for."""
        return self.verdict == "fits" and self.low is not None and self.low > 0


@dataclass(frozen=True, slots=True)
class Improvements:
    """Today and what is better.

    `now` is None where the job is illegal; `kept` are changes that leave the mathematics as they are, `changed` the
    others, both best first and without those that change nothing; `illegal` counts values that rules refuse; `pair` is
    the best change of two dials where it beats every single one, `best` what a search of the same job would choose.
    """

    now: Candidate | None
    verdict: Verdict
    findings: tuple[Finding, ...]
    kept: tuple[Improvement, ...]
    changed: tuple[Improvement, ...]
    illegal: int
    pair: Improvement | None
    best: Candidate | None
    best_gain: float | None

    @property
    def sure(self) -> tuple[Improvement, ...]:
        """Changes that keep the mathematics and whose whole interval is a gain."""
        return tuple(one for one in self.kept if one.sure)


@lru_cache(maxsize=1)
def _needs() -> Mapping[str, Any]:
    return read_yaml_mapping(data.require("presets", "dials.yaml"))


def improvements(request: Request, asked: Choice, settle: Settle, measured: Measured = NOT_MEASURED) -> Improvements:
    """Every single change of `asked`, the best pair, and the best layout of the same job.

    `measured` is what a run of the job as it is showed: it scales predictions, not the ratios between them.
    """
    pricing = _Pricing(request, asked, settle, measured)
    priced, illegal = pricing.price([(turn,) for turn in turns(request, asked)])
    moving = [one for one in priced if pricing.moves(one)]
    kept, changed = ([one for one in moving if bool(one.mathematics) is flag] for flag in (False, True))
    pairs, _ = pricing.price(_pairs(kept), most=MOST_PAIRS)
    beaten = max((one.gain or 0.0 for one in kept if one.verdict == "fits"), default=0.0)
    pair = next((one for one in sorted(pairs, key=_order) if one.verdict == "fits" and not one.mathematics), None)
    best = _best(request, asked, pricing)
    return Improvements(
        now=pricing.now,
        verdict=pricing.verdict,
        findings=pricing.findings,
        kept=tuple(sorted(kept, key=_order)),
        changed=tuple(sorted(changed, key=_order)),
        illegal=illegal,
        pair=pair if pair is not None and (pair.gain is None or pair.gain > beaten) else None,
        best=best,
        best_gain=pricing.ratio(best),
    )


def _order(one: Improvement) -> tuple[Any, ...]:
    """What leaves the headroom first, then the fastest, then the roomiest."""
    rank = {"fits": 0, "tight": 1, "oom": 2, "illegal": 3}[one.verdict]
    step_s = one.candidate.step.step_s / one.candidate.layout.gbs if one.candidate.step is not None else math.inf
    return rank, step_s, one.candidate.memory.peak_device_bytes, one.names, one.after


def _pairs(kept: Sequence[Improvement]) -> list[tuple[Turn, ...]]:
    """Pairs of different dials among the fastest and the most freeing single changes."""
    fastest = sorted(kept, key=lambda one: _order(one)[1:])[:MOST_ALONE]
    freeing = sorted(kept, key=lambda one: one.candidate.memory.peak_device_bytes)[:MOST_FREEING]
    chosen = list({id(one): one.turns[0] for one in (*fastest, *freeing)}.values())
    return [(one, other) for one, other in itertools.combinations(chosen, 2) if one.name != other.name]


def _best(request: Request, asked: Choice, pricing: _Pricing) -> Candidate | None:
    """What `advisor plan` would choose with the mathematics of today."""
    wanted = replace(request.workload, connections=None)
    fixed = MappingProxyType({**request.fixed, **pinned(asked)})
    found = search(request.replaced(workload=wanted, fixed=fixed))
    winner = found.winner()
    return None if winner is None else pricing.corrected(winner)


class _Pricing:
    """Prices changes against the job as it runs today."""

    def __init__(self, request: Request, asked: Choice, settle: Settle, measured: Measured) -> None:
        self.request, self.asked, self.settle, self.measured = request, asked, settle, measured
        held = replace(asked, knobs=settle(asked.layout, asked.knobs))
        whole = request.replaced(reserve_bytes=0.0)
        self.held = held.knobs
        verdict, self.predicted, self.findings = judge(whole, held)
        self.now = None if self.predicted is None else self.corrected(self.predicted)
        self.verdict: Verdict = verdict if self.now is None else self.fit(self.now)

    def corrected(self, one: Candidate) -> Candidate:
        """A candidate under the headroom asked for, as the measured run corrects it."""
        one = replace(one, memory=replace(one.memory, budget_bytes=self.request.budget_bytes))
        return one if self.predicted is None else self.measured.correct(one, self.predicted)

    def moves(self, one: Improvement) -> bool:
        """Whether a change does anything: to the step, or to the memory."""
        return one.gain is None or abs(one.gain) > NOTHING or bool(one.freed_bytes)

    def fit(self, one: Candidate) -> Verdict:
        """Whether a candidate leaves the headroom asked for."""
        peak = one.memory.peak_device_bytes
        if peak > self.request.cluster.usable_bytes:
            return "oom"
        return "fits" if peak <= self.request.budget_bytes else "tight"

    def ratio(self, one: Candidate | None) -> float | None:
        """Relative change of tokens per second against today."""
        now = self.now
        if one is None or now is None or one.step is None or now.step is None:
            return None
        return (now.step.step_s / now.layout.gbs) / (one.step.step_s / one.layout.gbs) - 1

    def price(self, changes: Iterable[tuple[Turn, ...]], most: int | None = None) -> tuple[list[Improvement], int]:
        """The legal ones of some changes (or only the `most` fastest that fit), and how many are refused."""
        groups: dict[tuple[Workload, int], list[tuple[tuple[Turn, ...], Request, Choice]]] = defaultdict(list)
        for change in changes:
            made = self._made(change)
            if made is not None:
                groups[made[0].workload, made[0].gbs].append((change, *made))
        found: list[Improvement] = []
        illegal = 0
        for group in groups.values():
            request = group[0][1]
            pairs = [(choice.layout, self.settle(choice.layout, choice.knobs)) for _, _, choice in group]
            figures = price(request, pairs)
            legal = [at for at, one in enumerate(figures) if one.verdict != "illegal"]
            illegal += len(group) - len(legal)
            if most is not None:
                fitting = [at for at in legal if figures[at].verdict == "fits"]
                legal = sorted(fitting, key=lambda at: figures[at].step_s)[:most]
            candidates = make_candidates(request, [pairs[at] for at in legal], ranks=[0] * len(legal))
            found += [self._improvement(*group[at], one) for at, one in zip(legal, candidates, strict=True)]
        return found, illegal

    def _made(self, change: tuple[Turn, ...]) -> tuple[Request, Choice] | None:
        request, choice = self.request, self.asked
        for turn in change:
            made = turn.apply(request, choice)
            if made is None:
                return None
            request, choice = made
        return request, choice

    def _improvement(self, change: tuple[Turn, ...], request: Request, choice: Choice, one: Candidate) -> Improvement:
        before, after = (self.request, self.asked), (request, choice)
        candidate = self.corrected(one)
        said = [words(turn, before, after) for turn in change]
        gain = self.ratio(candidate)
        low, high = (None, None) if gain is None else _interval(gain, one, len(change))
        if low is not None and low > 0 and _perhaps_nothing(change, request, choice):
            low = 0.0
        freed = None if self.now is None else self.now.memory.peak_device_bytes - candidate.memory.peak_device_bytes
        return Improvement(
            turns=change,
            before=tuple(old for old, _ in said),
            after=tuple(new for _, new in said),
            request=request,
            choice=choice,
            candidate=candidate,
            verdict=self.fit(candidate),
            gain=gain,
            low=low,
            high=high,
            kind=_kind(change),
            freed_bytes=freed,
            risks=tuple(self._risks(change, said, candidate)),
            mathematics=mathematics(before, after),
            restores=self._restored(choice.knobs, candidate.knobs),
        )

    def _restored(self, asked: Knobs, held: Knobs) -> tuple[str, ...]:
        """Switches that are on in both requests and off in effect today, but not after the change."""
        today = self.asked.knobs
        return tuple(
            name
            for name in KNOB_DIALS
            if getattr(today, name) is True is getattr(asked, name)
            and not getattr(self.held, name)
            and getattr(held, name)
        )

    def _risks(self, change: tuple[Turn, ...], said: Sequence[tuple[str, str]], candidate: Candidate) -> Iterable[str]:
        left = candidate.memory.budget_bytes - candidate.memory.peak_device_bytes
        if self.fit(candidate) == "oom":
            yield "out of memory"
        elif left < 0:
            yield "leaves less memory than the headroom asked for"
        share = self._assumed_share(candidate)
        if share > DECIDING:
            yield f"assumed numbers make {share:.0%} of the change of the step"
        needs = _needs()["needs"]
        for turn, (_, after) in zip(change, said, strict=True):
            rows = needs.get(turn.name, {})
            row = rows.get(after, rows.get("any"))
            if row is not None:
                yield str(row)

    def _assumed_share(self, candidate: Candidate) -> float:
        """Share of the change of the step, term by term, in terms that rest on assumed numbers."""
        if self.now is None or self.now.step is None or candidate.step is None:
            return 0.0
        old, new = self.now.step.terms, candidate.step.terms
        moved: dict[str, float] = defaultdict(float)
        for name in {*old, *new}:
            term = new.get(name) or old[name]
            change = (new[name].value if name in new else 0.0) - (old[name].value if name in old else 0.0)
            moved[term.kind] += abs(change)
        whole = sum(moved.values())
        return moved["assumed"] / whole if whole > 0 else 0.0


def _perhaps_nothing(change: tuple[Turn, ...], request: Request, choice: Choice) -> bool:
    """Whether a gain may be none: what queues lose is not ensured, which is not measured but for expert overlap."""
    alone = len(change) == 1 and change[0].name == CONNECTIONS
    return alone and not (choice.knobs.ep_overlap and request.workload.connections != 1)


def _kind(change: tuple[Turn, ...]) -> Literal["fitted", "assumed"]:
    names = {turn.name if {*turn.knobs} != {"full_uniform"} else "full_uniform" for turn in change}
    return "fitted" if names <= {*pair_errors()["seen"]} else "assumed"


def _interval(gain: float, candidate: Candidate, turned: int) -> tuple[float, float]:
    """Ends of a gain: the ratio of two predictions errs by so many half widths of the interval of one of them."""
    step = candidate.step
    if step is None:
        return gain, gain
    spread = ratio_spread(step, turned)
    return (1 + gain) / spread - 1, (1 + gain) * spread - 1
