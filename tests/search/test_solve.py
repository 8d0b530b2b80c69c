"""The search against a loop over one-row evaluations, its counts, and what pins and budgets do to it."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest

from advisor.cost.memory import memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import findings, legality
from advisor.search.merge import in_order, regroup
from advisor.search.parts import make_parts
from advisor.search.rank import SIMPLER
from advisor.search.request import resolve
from advisor.search.solve import ranking, search, search_parts
from advisor.search.sources import Setting
from advisor.search.sweep import MOST_MISSES
from advisor.spec.layout import CudaGraph, Knobs, table
from advisor.units import GIB


def _request(**given):
    return resolve({name: Setting(value, "argument") for name, value in given.items()})


SMALL = {
    "experts": {"model": "olmoe-1b-7b", "gpus": 4, "gbs": 8, "seq_len": 4096, "headroom": "30%",
                "fix": "cuda_graph=none,cp=1,mbs=1,tp=1", "top": 4},
    "dense, tight": {"model": "llama3-8b", "gpus": 4, "gbs": 8, "seq_len": 8192, "top": 3,
                     "fix": "optimizer_instances=1,vpp=1,tp=2"},
}  # fmt: skip


@dataclasses.dataclass
class _One:
    layout: object
    knobs: Knobs
    device: float
    step_s: float


@cache
def _brute_force(name):
    """Every row x knob by itself, with the rules of one row and tables of one entry."""
    request = _request(**SMALL[name])
    job = (request.model, request.cluster, request.workload)
    profile = load_profile(request.cluster.gpu.name)
    parts, ruled_out, rejected = make_parts(request)
    count, fitting = Counter(rejected), []
    searched = ruled_out
    for part in parts:
        for row, choice in itertools.product(range(part.rows), range(part.choices)):
            layout, knobs = part.layout(row), part.knobs(choice)
            searched += 1
            stops = [one.rule for one in findings(*job, layout, knobs) if one.severity == "stop"]
            if stops:
                count[stops[0]] += 1
                continue
            columns = table([layout], [knobs])
            device = float(memory(*job, columns).device_bytes[0])
            if device > request.budget_bytes:
                count["memory"] += 1
                continue
            fitting.append(_One(layout, knobs, device, float(step(*job, columns, profile).step_s[0])))
    return searched, count, fitting


def _in_steps(ones, objective):
    """Sorted by steps of 1 % above the fastest and of 4 GiB, then simplicity, then the exact figures."""
    fastest = min(np.float32(one.step_s) for one in ones)

    def key(one):
        exact = [np.float32(one.step_s), np.float32(one.device)]
        steps = [np.floor(np.log(exact[0] / fastest) / np.log(1.01)), np.floor(exact[1] / (4 * GIB))]
        if objective == "memory":
            exact.reverse()
            steps.reverse()
        return (*steps, *(getattr(one.layout, name) for name in SIMPLER), *exact)

    return sorted(ones, key=key)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_the_result_is_that_of_brute_force(name, objective):
    request = _request(**SMALL[name], objective=objective)
    searched, count, fitting = _brute_force(name)
    found = search(request)
    assert found.searched == searched
    assert found.feasible == len(fitting) > 50
    count = Counter(count)
    by_memory = sum(number for rule, number in found.rejected.items() if rule.startswith("memory-"))
    assert by_memory == count.pop("memory", 0) > 0
    assert {rule: number for rule, number in found.rejected.items() if not rule.startswith("memory-")} == dict(count)

    figures = ("step_s", "device") if objective == "throughput" else ("device", "step_s")
    best = {}
    for one in sorted(fitting, key=lambda one: tuple(np.float32(getattr(one, figure)) for figure in figures)):
        best.setdefault(one.layout, one)
    expected = _in_steps(list(best.values()), objective)[: request.top]
    top = ranking(found).candidates
    assert [one.rank for one in top] == list(range(1, len(top) + 1))
    for candidate, one in zip(top, expected, strict=True):
        assert candidate.step.step_s == pytest.approx(one.step_s, rel=1e-6)
        assert candidate.memory.peak_device_bytes == pytest.approx(one.device, rel=1e-6)
    assert [candidate.layout for candidate in top] == [one.layout for one in expected]
    assert len({candidate.layout for candidate in top}) == len(top), "distinct layouts"


@pytest.mark.parametrize("name", SMALL)
def test_pareto_holds_the_fastest_and_nothing_is_beaten(name):
    request = _request(**SMALL[name])
    *_, fitting = _brute_force(name)
    front = ranking(search(request)).pareto
    assert front[0].step.step_s == pytest.approx(min(one.step_s for one in fitting), rel=1e-6)
    for one in front:
        better = [
            other for other in fitting
            if other.step_s < one.step.step_s * (1 - 1e-6)
            and other.device < one.memory.peak_device_bytes * (1 - 1e-6)
        ]  # fmt: skip
        assert not better


def test_every_entry_is_counted_once():
    found = search(_request(model="qwen3-30b-a3b", gpus=16, gbs=64))
    assert found.searched == found.feasible + sum(found.rejected.values())
    assert all(number > 0 for number in found.rejected.values())


def test_joined_parts_hold_the_same_entries():
    request = _request(model="qwen3-30b-a3b", gpus=16, gbs=64)
    parts, ruled_out, rejected = make_parts(request)
    alone, joined = search_parts(request, parts, ruled_out, rejected), search(request)
    assert len(regroup(parts)) < len(parts)
    assert sum(part.entries for part in regroup(parts)) == sum(part.entries for part in parts)
    assert (alone.searched, alone.feasible, alone.rejected) == (joined.searched, joined.feasible, joined.rejected)
    assert ranking(alone).candidates == ranking(joined).candidates


def test_choices_keep_their_order_when_parts_are_joined():
    a, b, c, d = (Knobs(optimizer_instances=n) for n in range(1, 5))
    assert in_order([(a, d), (a, b, c, d), (a, c)]) == (a, b, c, d)
    assert in_order([(a, c), (a, b)])[0] == a


@pytest.mark.parametrize(
    "limits",
    [
        {"solve.PIECE": 100},
        {"solve.PIECE": 100, "solve.MANY_PIECES": 10**9},
        {"sweep.MOST_ENTRIES": 100},
        {"cells.CELL_ENTRIES": 0},
        {"cells.CELL_ENTRIES": 10**9},
        {"cells.CELL_ENTRIES": 10**9, "sweep.MOST_ENTRIES": 100},
    ],
)
@pytest.mark.parametrize("name", SMALL)
def test_the_answer_does_not_depend_on_how_the_table_is_cut(monkeypatch, name, limits):
    request = _request(**SMALL[name])
    whole = search(request)
    for limit, value in limits.items():
        monkeypatch.setattr(f"advisor.search.{limit}", value)
    cut = search(request)
    assert ranking(cut) == ranking(whole)
    assert len(cut.best) == len(whole.best)
    assert cut.nearest_miss.device_bytes == pytest.approx(whole.nearest_miss.device_bytes, rel=1e-12)


def _brute_force_misses(request):
    job = (request.model, request.cluster, request.workload)
    least = []
    for part in make_parts(request)[0]:
        columns = part.table(slice(0, part.rows))
        legal = legality(*job, columns).legal
        device = np.where(legal, memory(*job, columns).device_bytes, np.inf).reshape(-1, part.rows).min(axis=0)
        least += [size for size in device.tolist() if request.budget_bytes < size < np.inf]
    return sorted(least)


@pytest.mark.parametrize("gpus", [16, 32])
def test_the_rows_that_come_nearest_are_known_with_their_smallest_entry(gpus):
    request = _request(model="minimax-m2", gpus=gpus, gbs=64, fix="tp=2")
    found = search(request)
    expected = _brute_force_misses(request)
    assert len(expected) > MOST_MISSES
    assert found.nearest_miss.device_bytes == pytest.approx(expected[:MOST_MISSES], rel=1e-12)
    for size, (layout, knobs) in zip(
        found.nearest_miss.device_bytes, found.choices(found.nearest_miss).values(), strict=True
    ):
        alone = memory(request.model, request.cluster, request.workload, table([layout], [knobs])).device_bytes
        assert size == pytest.approx(float(alone[0]), rel=1e-12)


def test_more_memory_never_loses_a_feasible_layout():
    shape = {"model": "llama3-70b", "gpus": 32, "gbs": 64, "fix": "tp=8"}
    some = search(_request(**shape, usable_gib=70))
    more = search(_request(**shape, usable_gib=76))
    assert 0 < some.feasible < more.feasible
    best = [ranking(found).candidates[0].step.step_s for found in (some, more)]
    assert best[1] <= best[0]


def test_fixed_fields_stay():
    found = ranking(
        search(_request(model="qwen3-30b-a3b", gpus=16, gbs=64, fix="tp=2,ep=8,recompute=moe_act,cuda_graph=scoped"))
    )
    assert found.candidates
    for one in (*found.candidates, *found.pareto, *found.families):
        assert (one.layout.tp, one.layout.ep) == (2, 8)
        assert one.knobs.recompute == ("moe_act",)
        assert one.knobs.cuda_graph == CudaGraph.scoped


def test_knobs_that_change_the_mathematics_are_taken_only_when_allowed():
    shape = {"model": "minimax-m2", "gpus": 64, "fix": "tp=2,pp=1,cp=1"}
    kept = search(_request(**shape))
    assert all(one.knobs.grad_dtype == "fp32" for one in ranking(kept).pareto)
    allowed = search(_request(**shape, allow="grad-bf16,moment-bf16"))
    assert allowed.feasible > kept.feasible
    chosen = ranking(allowed).pareto
    assert {one.knobs.grad_dtype for one in chosen} | {one.knobs.moment_dtype for one in chosen} == {"fp32", "bf16"}


def test_nothing_fits_is_an_answer():
    found = search(_request(model="deepseek-v3", gpus=8, gbs=8))
    assert found.feasible == 0
    assert len(found.nearest_miss) > 0
    assert ranking(found).candidates == ()
    assert found.winner() is None


def test_modes_without_a_step_rank_by_memory():
    request = _request(model="minimax-m2", gpus=16, gbs=16)
    weights = dataclasses.replace(request, workload=dataclasses.replace(request.workload, mode="weights"))
    found = ranking(search(weights))
    assert found.candidates[0].step is None
    sizes = [one.memory.peak_device_bytes for one in found.candidates]
    assert sizes == sorted(sizes)


def test_advice_that_the_search_has_weighed_is_given_for_pinned_knobs_only():
    """A full recomputation that the search chose over everything else is no slip of the user's."""
    pinned = _request(model="minimax-m2", gpus=64, fix="recompute=full-uniform:1")
    free = _request(model="minimax-m2", gpus=64)
    for request, wanted in ((pinned, True), (free, False)):
        best = search(request).winner()
        assert best.knobs.full_uniform == 1
        assert ("full-recompute-costs" in {one.rule for one in best.findings}) is wanted
