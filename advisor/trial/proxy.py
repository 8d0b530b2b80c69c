"""Proxy trials: the same layer shapes and parallel sizes with fewer layers and microbatches, and the way back.

Rule. What is run is priced by the same formulae as the layout as planned. Its measured over its predicted step is one
factor, and the layout as planned is expected to take its own predicted step times that factor. So a proxy corrects the
rates that the prediction rests on (kernels, communication, host), while how layers, microbatches and the bubble add up
stays the prediction's. The interval is carried over in the same way, as wide as the prediction's own.
"""

from __future__ import annotations

import dataclasses

from advisor.errors import InputError
from advisor.search.candidates import make_candidates
from advisor.search.request import Request
from advisor.search.stages import even_split
from advisor.spec.model import Model
from advisor.spec.plan import Candidate

ROUNDS = 2


def shorter(model: Model, layers: int) -> Model:
    """The model with `layers` decoder layers: every kind keeps its share, at least one layer, and its place in order.

    Raises InputError where `layers` is fewer than the kinds, or more than the model has.
    """
    total, used = model.num_layers, sorted(set(model.pattern))
    if not len(used) <= layers <= total:
        raise InputError(
            f"a proxy of {layers} layers: {model.name} has {total} layers of {len(used)} kinds",
            f"give {len(used)} to {total}",
        )
    keep = {kind: max(1, model.pattern.count(kind) * layers // total) for kind in used}
    while sum(keep.values()) != layers:
        more = 1 if sum(keep.values()) < layers else -1
        able = [kind for kind in used if (keep[kind] > 1 if more < 0 else keep[kind] < model.pattern.count(kind))]
        keep[max(able, key=lambda kind: more * (model.pattern.count(kind) * layers / total - keep[kind]))] += more
    picked: list[int] = []
    for kind in used:
        places = [at for at, found in enumerate(model.pattern) if found == kind]
        picked += [places[i * len(places) // keep[kind]] for i in range(keep[kind])]
    return dataclasses.replace(model, pattern=tuple(model.pattern[at] for at in sorted(picked)))


def make_proxy(request: Request, candidate: Candidate, layers: int) -> tuple[Request, Candidate]:
    """Request and candidate of the proxy with about `layers` layers, a whole number of them in every chunk.

    Microbatches shrink to two rounds of the pipeline (the full number where that is fewer).
    """
    full = candidate.layout
    chunks = full.pp * full.vpp
    kinds = len(set(request.model.pattern))
    rounded = -(-max(layers, kinds) // chunks) * chunks
    if rounded > request.model.num_layers:
        raise InputError(
            f"a proxy needs {rounded} layers for {chunks} chunks, the model has {request.model.num_layers}",
            "leave --proxy-layers out",
        )
    model = shorter(request.model, rounded)
    microbatches = min(full.num_microbatches, max(ROUNDS * full.pp, ROUNDS))
    batch = microbatches * full.mbs * full.dp
    split = even_split(rounded, full.pp, full.vpp, candidate.mtp_depth)
    layout = dataclasses.replace(full, gbs=batch, split=split or full.split)
    smaller = request.replaced(model=model, gbs=batch)
    (found,) = make_candidates(smaller, [(layout, candidate.knobs)], ranks=[candidate.rank])
    return smaller, found
