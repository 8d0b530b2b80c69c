"""The closed form of a pipelined step against an event simulation of Megatron's in-order schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.arrays import largest
from advisor.cost.pipeline import fill_and_drain_s, p2p_exposed, steady_s
from advisor.spec.layout import Knobs, Layout, table
from advisor.spec.split import PipelineSplit


def order(rank: int, pp: int, vpp: int, microbatches: int) -> list[tuple[str, int, int]]:
    """(pass, chunk of the model, microbatch) in the order Megatron runs them on a rank (groups of pp)."""
    total = microbatches * vpp
    warmup = min(pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp, total)

    def unit(index: int, forward: bool) -> tuple[int, int]:
        group, within = divmod(index, pp * vpp)
        chunk = within // pp
        chunk = chunk if forward else vpp - 1 - chunk
        return chunk * pp + rank, group * pp + within % pp

    out = [("F", *unit(i, True)) for i in range(warmup)]
    for i in range(total - warmup):
        out += [("F", *unit(warmup + i, True)), ("B", *unit(i, False))]
    return out + [("B", *unit(total - warmup + i, False)) for i in range(warmup)]


def makespan(pp: int, vpp: int, microbatches: int, forward: list[float], backward: list[float]) -> float:
    """Time of a step; `forward[r]` and `backward[r]` are seconds of one microbatch on rank r over all its chunks."""
    queues = [order(rank, pp, vpp, microbatches) for rank in range(pp)]
    done: dict[tuple[str, int, int], float] = {}
    clock, at, last = [0.0] * pp, [0] * pp, pp * vpp - 1
    while any(at[rank] < len(queues[rank]) for rank in range(pp)):
        moved = False
        for rank in range(pp):
            while at[rank] < len(queues[rank]):
                kind, chunk, micro = queues[rank][at[rank]]
                if kind == "F":
                    need = ("F", chunk - 1, micro) if chunk > 0 else None
                else:
                    need = ("B", chunk + 1, micro) if chunk < last else ("F", chunk, micro)
                if need is not None and need not in done:
                    break
                start = max(clock[rank], done[need] if need else 0.0)
                clock[rank] = start + (forward if kind == "F" else backward)[rank] / vpp
                done[kind, chunk, micro] = clock[rank]
                at[rank] += 1
                moved = True
        assert moved, "the schedule deadlocks"
    return max(clock)


def columns(pp: int, vpp: int, microbatches: int, **knobs: object):
    layout = Layout(
        tp=1, pp=pp, vpp=vpp, cp=1, ep=1, etp=1, dp=1, edp=1, mbs=1, gbs=microbatches, sp=False,
        split=PipelineSplit(pp, vpp, (1,) * (pp * vpp)),
    )  # fmt: skip
    return table([layout], [Knobs(**knobs)])


def closed_form(pp: int, vpp: int, microbatches: int, per_rank: list[float]) -> float:
    rows = columns(pp, vpp, microbatches)
    worst = largest([np.array([seconds]) for seconds in per_rank])
    mean = np.array([sum(per_rank) / pp])
    return float((steady_s(worst, rows) + fill_and_drain_s(mean, rows, 1.0))[0])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 5), st.floats(0.5, 3.0))
def test_equal_stages_take_exactly_the_closed_form(pp: int, vpp: int, groups: int, backward: float) -> None:
    vpp = vpp if pp > 1 else 1
    microbatches = groups * pp
    simulated = makespan(pp, vpp, microbatches, [1.0] * pp, [backward] * pp)
    assert closed_form(pp, vpp, microbatches, [1.0 + backward] * pp) == pytest.approx(simulated, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(1, 4), st.integers(4, 8), st.floats(0.0, 0.5))
def test_one_heavier_last_stage_is_close(pp: int, vpp: int, groups: int, extra: float) -> None:
    """Logits and loss on the last stage: steady work is exact, the fill is that of the mean stage."""
    microbatches = groups * pp
    forward = [1.0] * (pp - 1) + [1.0 + extra]
    backward = [2.0 * seconds for seconds in forward]
    simulated = makespan(pp, vpp, microbatches, forward, backward)
    formula = closed_form(pp, vpp, microbatches, [3.0 * seconds for seconds in forward])
    assert formula == pytest.approx(simulated, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(3, 6), st.randoms(use_true_random=False))
def test_random_uneven_stages_are_within_a_tenth(pp: int, vpp: int, groups: int, random) -> None:
    microbatches = groups * pp
    forward = [1.0 + 0.3 * random.random() for _ in range(pp)]
    backward = [2.0 * seconds for seconds in forward]
    simulated = makespan(pp, vpp, microbatches, forward, backward)
    assert closed_form(pp, vpp, microbatches, [3.0 * s for s in forward]) == pytest.approx(simulated, rel=0.1)


def test_a_wrong_bubble_is_noticed() -> None:
    """The simulation tells 1F1B from interleaving: halving the bubble is visible."""
    assert makespan(4, 1, 8, [1.0] * 4, [2.0] * 4) == pytest.approx(33.0)
    assert makespan(4, 2, 8, [1.0] * 4, [2.0] * 4) == pytest.approx(28.5)


def test_messages_hide_only_behind_interleaving() -> None:
    plain, _ = p2p_exposed(columns(4, 1, 8), 0.25)
    overlapped, hidden = p2p_exposed(columns(4, 2, 8), 0.25)
    blocking, behind = p2p_exposed(columns(4, 2, 8, overlap_p2p=False), 0.25)
    assert plain[0] == 2 * 8 + 2 * 3
    assert (overlapped[0], hidden[0]) == (0.25 * 32 + 2 * 3, 0.75 * 32)
    assert (blocking[0], behind[0]) == (32 + 2 * 3, 0)
    assert p2p_exposed(columns(1, 1, 8), 0.25)[0][0] == 0
