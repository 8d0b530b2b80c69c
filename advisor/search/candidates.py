"""From chosen layouts to candidates: memory and step in full detail, judged against the budget of the request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from advisor.cost.memory import memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.search.request import Request
from advisor.spec.layout import Knobs, Layout, table
from advisor.spec.plan import Candidate, Finding


def make_candidates(
    request: Request,
    chosen: Sequence[tuple[Layout, Knobs]],
    found: Sequence[tuple[Finding, ...]] = (),
    ranks: Sequence[int] = (),
) -> tuple[Candidate, ...]:
    """Candidates of (layout, knobs) pairs in the order given, ranked 1, 2, ... unless `ranks` says otherwise.

    `found` holds the findings of each; the budget is that of the request (usable memory less the headroom).
    """
    if not chosen:
        return ()
    columns = table([layout for layout, _ in chosen], [knobs for _, knobs in chosen])
    sizes = memory(request.model, request.cluster, request.workload, columns)
    times = None
    if request.workload.mode == "train":
        profile = load_profile(request.cluster.gpu)
        times = step(request.model, request.cluster, request.workload, columns, profile)
    return tuple(
        Candidate(
            rank=ranks[i] if ranks else i + 1,
            layout=layout,
            knobs=knobs,
            memory=dataclasses.replace(sizes.detail(i), budget_bytes=request.budget_bytes),
            step=None if times is None else times.detail(i),
            findings=found[i] if found else (),
            mtp_depth=request.workload.mtp_depth,
        )
        for i, (layout, knobs) in enumerate(chosen)
    )
