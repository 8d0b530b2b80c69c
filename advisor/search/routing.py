"""What measured router statistics cost a layout, and what a capacity factor or another EP would gain."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.cost.router import load_table, routed
from advisor.search.explain import Figures, price, with_size
from advisor.search.request import Request
from advisor.spec.plan import Candidate, Finding
from advisor.spec.router import RouterStats, shares

CAPACITIES = (1.0, 1.25, 1.5, 2.0)
ASSUMED_SKEW = 1.3
"""Tokens on the hottest rank over the mean, where real routing is to be imagined without statistics (assumed)."""
WORTH, MOST_DROPPED = 0.005, 0.1
"""A change is proposed if it gains as much, and drops at most so many token copies."""


@dataclass(frozen=True, slots=True)
class RouterChange:
    """One change of a layout under router statistics, everything else kept.

    `hottest` is the load of the hottest rank over the mean, averaged over layers; `dropped` the share of token copies
    that are dropped; `gain` the relative change of tokens/s; `freed_bytes` of device memory.
    """

    name: Literal["ep", "capacity_factor"]
    value: float
    hottest: float
    dropped: float
    verdict: str
    gain: float | None
    freed_bytes: float

    @property
    def words(self) -> str:
        """The options that make the change."""
        return f"ep={self.value:g}" if self.name == "ep" else f"routing=token-drop,capacity_factor={self.value:g}"

    @property
    def price(self) -> str:
        """What it costs beside its gain, as the end of a sentence."""
        return "" if self.name == "ep" else f" and drops {self.dropped:.1%} of the token copies"


@dataclass(frozen=True, slots=True)
class Imbalance:
    """What router statistics make of one layout.

    `hottest` is the load of the hottest of `ep` ranks over the mean, averaged over layers, `worst` that of layer
    `worst_layer` (numbered as in the file) on rank `worst_rank`; `slowdown` is the step over that of balanced experts,
    less 1; `extra_bytes` the memory beyond that of balanced experts.
    """

    stats: RouterStats
    ep: int
    hottest: float
    worst: float
    worst_layer: int
    worst_rank: int
    slowdown: float
    extra_bytes: float
    changes: tuple[RouterChange, ...]

    def finding(self) -> Finding:
        """The same as one sentence with the changes that gain most."""
        found = (
            f"by {self.stats.source} the hottest of {self.ep} expert-parallel ranks gets {self.hottest:.2f} x the mean"
            f" of tokens (layer {self.worst_layer}: {self.worst:.2f} x, rank {self.worst_rank}): step"
            f" {self.slowdown:+.1%} and {self.extra_bytes / 2**30:+.1f} GiB against balanced experts"
        )
        proposed = [one for one in map(self._best, ("ep", "capacity_factor")) if one is not None]
        said = "".join(f"; {one.words} gains {one.gain:.1%}{one.price}" for one in proposed)
        return Finding("router-imbalance", "info", found + said, proposed[0].words if proposed else "")

    def _best(self, name: str) -> RouterChange | None:
        """The change of one kind that gains most, of those worth proposing."""
        worth = [
            one
            for one in self.changes
            if one.name == name and one.verdict == "fits" and (one.gain or 0.0) >= WORTH and one.dropped <= MOST_DROPPED
        ]
        return max(worth, key=lambda one: (one.gain or 0.0, -one.value), default=None)


def imbalance(request: Request, candidate: Candidate | None) -> Imbalance | None:
    """What the statistics of a request cost `candidate` and what helps; None without statistics or candidate."""
    router = routed(request.workload)
    if router is None or candidate is None or candidate.step is None:
        return None
    layout, pairs = candidate.layout, [(candidate.layout, candidate.knobs)]
    (own,) = price(request, pairs)
    even = dataclasses.replace(request.workload, router=None, router_skew=1.0)
    (balanced,) = price(request.replaced(workload=even), pairs)
    stats = router.stats
    ranks = [shares(load, layout.ep, router.capacity) for load in stats.loads]
    worst = max(range(len(ranks)), key=lambda at: float(ranks[at].max()))
    return Imbalance(
        stats=stats,
        ep=layout.ep,
        hottest=_hottest(request, layout.ep),
        worst=float(ranks[worst].max()),
        worst_layer=stats.layers[worst] + stats.first,
        worst_rank=int(np.argmax(ranks[worst])),
        slowdown=own.step_s / balanced.step_s - 1 if balanced.step_s else 0.0,
        extra_bytes=own.device_bytes - balanced.device_bytes,
        changes=(*_other_ep(request, candidate, own), *_capacities(request, candidate, own)),
    )


def assumption(request: Request, candidate: Candidate | None) -> Finding | None:
    """Which routing a layout with expert parallelism is priced for, and what another would cost.

    None with router statistics, without expert parallelism, and outside of training.
    """
    workload = request.workload
    if candidate is None or candidate.step is None or workload.router is not None:
        return None
    if not request.model.is_moe or candidate.layout.ep == 1:
        return None
    pairs = [(candidate.layout, candidate.knobs)]
    (own,) = price(request, pairs)
    others = {
        "balanced": dataclasses.replace(workload, routing="balanced", router_skew=1.0, capacity_factor=None),
        "dropless": dataclasses.replace(workload, routing="dropless", router_skew=ASSUMED_SKEW, capacity_factor=None),
        "token-drop": dataclasses.replace(workload, routing="token-drop", capacity_factor=1.0),
    }
    said = []
    for name, other in others.items():
        (then,) = price(request.replaced(workload=other), pairs)
        if name != workload.routing and then.step_s and own.step_s:
            skew = f" at {ASSUMED_SKEW:g} x the mean on the hottest rank" if name == "dropless" else ""
            said.append(f"{name}{skew} {then.step_s / own.step_s - 1:+.1%}")
    return Finding(
        "routing-assumed", "info",
        f"{workload.routing} routing is assumed, {workload.router_skew:g} x the mean on the hottest rank; a step would"
        f" change with {', '.join(said)}. Public runs force balance. Ranks with more tokens, like a straggler, let"
        " all others wait in all-gathers and reduce-scatters: compare compute per rank before blaming the network",
        "--router-stats FILE for measured routing; advisor trace for compute per rank",
    )  # fmt: skip


def _hottest(request: Request, ep: int) -> float:
    """Load of the hottest rank, averaged over all layers."""
    router = routed(request.workload)
    return 1.0 if router is None else float(load_table(router, router.stats.layers)[0, ep])


def _other_ep(request: Request, candidate: Candidate, own: Figures) -> Iterator[RouterChange]:
    """Every other legal EP of the layout."""
    experts = request.model.moe.experts if request.model.moe is not None else 1
    layouts = {
        ep: changed
        for ep in range(1, experts + 1)
        if experts % ep == 0 and ep != candidate.layout.ep
        if (changed := with_size(request, candidate.layout, "ep", ep)) is not None
    }
    found = price(request, [(layout, candidate.knobs) for layout in layouts.values()])
    for ep, figures in zip(layouts, found, strict=True):
        if figures.verdict != "illegal":
            yield _change(request, own, figures, name="ep", value=ep, hottest=_hottest(request, ep))


def _capacities(request: Request, candidate: Candidate, own: Figures) -> Iterator[RouterChange]:
    """Token drop at a few capacity factors."""
    for factor in CAPACITIES:
        if request.workload.routing == "token-drop" and request.workload.capacity_factor == factor:
            continue
        drops = dataclasses.replace(request.workload, routing="token-drop", capacity_factor=factor)
        changed = request.replaced(workload=drops)
        (figures,) = price(changed, [(candidate.layout, candidate.knobs)])
        if figures.verdict != "illegal":
            hottest = _hottest(changed, candidate.layout.ep)
            yield _change(changed, own, figures, name="capacity_factor", value=factor, hottest=hottest)


def _change(
    request: Request,
    own: Figures,
    then: Figures,
    *,
    name: Literal["ep", "capacity_factor"],
    value: float,
    hottest: float,
) -> RouterChange:
    router = routed(request.workload)
    capacity = None if router is None else router.capacity
    return RouterChange(
        name=name,
        value=value,
        hottest=hottest,
        dropped=0.0 if router is None or capacity is None else router.stats.dropped(capacity),
        verdict=then.verdict,
        gain=own.step_s / then.step_s - 1 if then.step_s else None,
        freed_bytes=own.device_bytes - then.device_bytes,
    )
