"""Seconds of normalisation layers: what a margin of SMs left to communication slows, and what it lets through."""

from __future__ import annotations

from advisor.cost.elementwise import NOTHING, Pass, elementwise
from advisor.cost.profile import Profile
from advisor.spec.layout import Columns
from advisor.spec.model import Model
from advisor.spec.workload import Workload


def norm_s(model: Model, workload: Workload, columns: Columns, profile: Profile) -> Pass:
    """Seconds of norms and residual additions of one step on the mean pipeline rank (columns)."""
    found = NOTHING
    times = columns.num_microbatches / columns.pp / profile.memory_Bps
    for layer, count in zip(model.kinds, model.count, strict=True):
        norms = elementwise(layer, model, workload, columns).norms
        found = found + Pass(count * times * norms.forward, count * times * norms.backward)
    return found
