"""Explanations: the numbers in them are those of the layouts they speak of."""

from __future__ import annotations

import dataclasses
import json

import pytest

import advisor
from advisor.search.explain import MOST_SLOWER, _distance, explain, price
from advisor.search.single import Choice, judge, single_request
from advisor.search.solve import search


def _why(**options):
    return advisor.why("qwen3-30b-a3b", 16, gbs=256, **options)


@pytest.fixture(scope="module")
def slow():
    return _why(tp=4, pp=2, ep=4, mbs=1, recompute="full", dispatcher="alltoall")


@pytest.fixture(scope="module")
def oom():
    return _why(ep=2, mbs=4)


@pytest.fixture(scope="module")
def illegal():
    return _why(tp=3, ep=16)


def test_a_slower_layout_names_the_terms_it_loses_in(slow):
    assert slow.estimate.verdict == "fits"
    own, best = slow.estimate.candidate.step, slow.best.step
    assert own.step_s > best.step_s
    assert slow.reasons
    losses = [reason.value - reason.reference for reason in slow.reasons]
    assert losses == sorted(losses, reverse=True)
    for reason in slow.reasons:
        assert reason.of == "time"
        assert reason.value == own.terms[reason.name].value
        assert reason.reference == pytest.approx(best.terms[reason.name].value)
        assert f"{reason.value:.3f} s" in reason.message
    assert "recompute" in {reason.name for reason in slow.reasons}
    assert slow.changes == (), "a layout that fits is its own nearest"


def test_an_oom_names_stage_moment_and_terms(oom):
    assert oom.estimate.verdict == "oom"
    memory = oom.estimate.candidate.memory
    first, *terms = oom.reasons
    assert f"stage {memory.worst_stage}" in first.message
    assert memory.worst_moment.replace("_", " ") in first.message
    assert (first.value, first.reference) == (memory.peak_device_bytes, memory.budget_bytes)
    values = [reason.value for reason in terms]
    assert values == sorted(values, reverse=True)
    assert sum(values) > 0.95 * memory.peak_device_bytes


def test_an_illegal_layout_names_every_broken_rule(illegal):
    assert illegal.estimate.verdict == "illegal"
    stops = [one for one in illegal.estimate.findings if one.severity == "stop"]
    assert [reason.name for reason in illegal.reasons] == [one.rule for one in stops]
    assert all(reason.fix for reason in illegal.reasons)
    assert all(dial.gain is None for dial in illegal.dials), "nothing to compare an illegal layout with"


@pytest.mark.parametrize("name", ["slow", "oom", "illegal"])
def test_the_nearest_fits_and_is_reached_by_the_changes(name, request):
    found = request.getfixturevalue(name)
    assert found.nearest is not None
    verdict, *_ = judge(found.request, Choice(found.nearest.layout, found.nearest.knobs))
    assert verdict == "fits"
    for change in found.changes:
        field, _, rest = change.partition(" ")
        after = rest.rpartition(" -> ")[2]
        if field in {"tp", "pp", "vpp", "cp", "ep", "etp", "mbs"}:
            assert getattr(found.nearest.layout, field) == int(after)


def test_no_feasible_row_is_nearer_than_the_nearest(oom):
    """With the user's own knobs: distance in doublings over all feasible rows of the search."""
    request, choice = single_request("qwen3-30b-a3b", 16, None, {"gbs": 256, "ep": 2, "mbs": 4})
    found = search(dataclasses.replace(request, reserve_bytes=oom.request.reserve_bytes))
    nearest = explain(request, choice).nearest
    own = _distance(nearest.layout, choice.layout)
    layouts = [layout for layout, _ in found.choices(found.best).values()]
    figures = price(request, [(layout, choice.knobs) for layout in layouts])
    longest = MOST_SLOWER * found.best.step_s.min()
    same_knobs = [
        _distance(layout, choice.layout)
        for layout, one in zip(layouts, figures, strict=True)
        if one.verdict == "fits" and one.step_s <= longest
    ]
    if nearest.knobs == choice.knobs:
        assert own == min(same_knobs)
    else:
        assert own <= min(same_knobs)


@pytest.mark.parametrize("options", [{"tp": 8, "pp": 2, "ep": 1, "mbs": 8}, {"tp": 8, "cp": 2, "mbs": 16}])
def test_the_nearest_is_not_a_run_that_nobody_would_start(monkeypatch, options):
    near = _why(**options)
    assert near.estimate.verdict == "oom"
    assert near.nearest.step.step_s <= MOST_SLOWER * near.best.step.step_s
    monkeypatch.setattr("advisor.search.explain.MOST_SLOWER", 1e9)
    assert _why(**options).nearest.step.step_s > MOST_SLOWER * near.best.step.step_s, "the rule has changed something"


def test_dials_are_single_changes_with_the_gain_of_an_estimate(slow):
    """Two dials are turned by hand and estimated: the gain is that of the two step times."""
    base = {"tp": 4, "pp": 2, "ep": 4, "mbs": 1, "recompute": "full", "dispatcher": "alltoall", "gbs": 256}
    before = advisor.estimate("qwen3-30b-a3b", 16, **base).candidate.step.step_s
    for name, after, options in (("tp", "2", {"tp": 2}), ("mbs", "2", {"mbs": 2})):
        (dial,) = [one for one in slow.dials if (one.name, one.after) == (name, after)]
        turned = advisor.estimate("qwen3-30b-a3b", 16, **{**base, **options})
        assert dial.gain == pytest.approx(before / turned.candidate.step.step_s - 1, rel=1e-6)
        assert dial.verdict == turned.verdict


def test_dials_that_fit_come_first_and_by_gain(slow):
    order = {"fits": 0, "oom": 1, "illegal": 2}
    standing = [order[dial.verdict] for dial in slow.dials]
    assert standing == sorted(standing)
    gains = [dial.gain for dial in slow.dials if dial.verdict == "fits"]
    assert len(gains) > 5
    assert gains == sorted(gains, reverse=True)
    assert len({(dial.name, dial.after) for dial in slow.dials}) == len(slow.dials)
    assert {"tp", "pp", "ep", "mbs", "recompute", "dispatcher", "cuda_graph"} <= {dial.name for dial in slow.dials}
    assert {dial.allow for dial in slow.dials if dial.name == "grad_dtype"} == {"grad-bf16"}
    assert {dial.allow for dial in slow.dials if dial.name == "tp"} == {""}


def test_an_explanation_is_json_and_html(slow, oom, illegal):
    for found in (slow, oom, illegal):
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert len(record["dials"]) == len(found.dials) == len(found.to_frame())
        assert record["verdict"] == found.estimate.verdict
        assert found.reasons[0].message.split(":")[0].split("<")[0] in found._repr_html_()


def test_where_nothing_fits_dials_stand_by_the_memory_they_free():
    found = advisor.why("minimax-m2", 64, tp=8)
    freed = [dial.freed_bytes for dial in found.dials if dial.verdict == "oom"]
    assert found.estimate.verdict == "oom"
    assert len(freed) > 5
    assert freed == sorted(freed, reverse=True)
    assert freed[0] > 100 * 2**30
