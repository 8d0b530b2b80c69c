"""Expert exchange beside a neighbouring microbatch: the formula against the two streams played event by event."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.cost.elementwise import Pass
from advisor.cost.hiding import beside_neighbour_s

LAYERS = 40


def played(transfer: float, experts: Pass, others: Pass, delayed: bool) -> float:
    """Seconds per layer of a compute and a communication stream, each in the order of Megatron's schedule plan."""
    compute = comm = attention_back = combine = 0.0
    ends = []
    wait = experts.weights if delayed else 0.0
    other_wait = others.weights if delayed else 0.0
    for _ in range(LAYERS):
        comm = combine_back = max(comm, attention_back) + transfer
        compute = attention = max(compute, combine) + others.forward
        compute = experts_back = max(compute, combine_back) + experts.backward - wait
        comm = dispatch = max(comm, attention) + transfer
        compute += wait
        comm = dispatch_back = max(comm, experts_back) + transfer
        compute = mlp = max(compute, dispatch) + experts.forward
        comm = combine = max(comm, mlp) + transfer
        compute = attention_back = max(compute, dispatch_back) + others.backward - other_wait
        compute += other_wait
        ends.append(max(compute, comm))
    return (ends[-1] - ends[LAYERS // 2 - 1]) / (LAYERS - LAYERS // 2)


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_formula_is_the_period_of_the_schedule(seed: int, delayed: bool) -> None:
    draw = np.random.default_rng(seed).uniform(0.05, 1.0, 7)
    experts = Pass(draw[0], draw[1] + draw[2], draw[2])
    others = Pass(draw[3], draw[4] + draw[5], draw[5])
    found = float(beside_neighbour_s(draw[6], experts, others, np.asarray(delayed)))
    assert found + experts.both + others.both == pytest.approx(played(draw[6], experts, others, delayed))
    assert found >= -1e-12


def test_short_transfers_hide_and_putting_off_weight_gradients_never_costs() -> None:
    rng = np.random.default_rng(3)
    part = rng.uniform(0.1, 1.0, (6, 200))
    experts, others = Pass(part[0], part[1] + part[2], part[2]), Pass(part[3], part[4] + part[5], part[5])
    short = beside_neighbour_s(np.full(200, 0.01), experts, others, np.asarray(False))
    assert np.allclose(short, 0.0)
    transfer = rng.uniform(0.1, 2.0, 200)
    plain, late = (beside_neighbour_s(transfer, experts, others, np.asarray(on)) for on in (False, True))
    assert (late <= plain + 1e-12).all()
    assert (late < plain - 1e-6).any()
    assert (plain <= 4 * transfer).all()
