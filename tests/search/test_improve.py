"""Single changes of a job: every figure is that of the job with the change made, and nothing else is promised."""

from __future__ import annotations

import dataclasses
import math

import pytest

from advisor.cost.pairs import pair_errors
from advisor.search import improve
from advisor.search.improve import improvements
from advisor.search.improve_measured import UNPREDICTED, Measured
from advisor.search.improve_turns import CONNECTIONS, MATHEMATICS, turns
from advisor.search.single import Choice, judge, single_request
from advisor.spec.layout import CudaGraph

JOBS = {
    "dense": ("llama3-8b", 64, {"system": "dgx-h100", "tp": 4, "pp": 2, "gbs": 128, "recompute": "full"}),
    "experts": ("qwen3-30b-a3b", 32, {"system": "dgx-h100", "ep": 8, "gbs": 256, "dispatcher": "alltoall"}),
    "oom": ("minimax-m2", 64, {"system": "dgx-h100", "tp": 2, "pp": 2, "ep": 32, "gbs": 512}),
    "illegal": ("llama3-8b", 64, {"system": "dgx-h100", "tp": 3, "gbs": 512}),
}


def as_asked(_layout, knobs):
    return knobs


@pytest.fixture(scope="module")
def found():
    out = {}
    for name, (model, gpus, options) in JOBS.items():
        request, choice = single_request(model, gpus, None, options, keep_free=True)
        out[name] = (request, choice, improvements(request, choice, as_asked))
    return out


@pytest.mark.parametrize("name", ["dense", "experts", "oom"])
def test_every_change_is_priced_as_the_job_it_makes(found, name):
    request, _, answer = found[name]
    assert len(answer.kept) > 15
    assert len(answer.changed) > 4
    everything = (*answer.kept, *answer.changed, *([answer.pair] if answer.pair else []))
    for one in everything:
        verdict, alone, _ = judge(one.request.replaced(reserve_bytes=0.0), one.choice)
        assert verdict != "illegal", one.names
        assert alone.step.step_s == pytest.approx(one.candidate.step.step_s, rel=1e-9)
        assert alone.memory.peak_device_bytes == pytest.approx(one.candidate.memory.peak_device_bytes, rel=1e-9)
        rates = [c.layout.gbs / c.step.step_s for c in (one.candidate, answer.now)]
        assert one.gain == pytest.approx(rates[0] / rates[1] - 1, rel=1e-9, abs=1e-12)
        assert one.freed_bytes == pytest.approx(
            answer.now.memory.peak_device_bytes - one.candidate.memory.peak_device_bytes, abs=1.0
        )
        assert (one.verdict == "oom") == (verdict == "oom")
        assert (one.verdict == "fits") == (one.candidate.memory.peak_device_bytes <= request.budget_bytes)
        assert one.gain != 0 or one.freed_bytes != 0


@pytest.mark.parametrize("name", ["dense", "experts", "oom"])
def test_what_keeps_the_mathematics_keeps_it(found, name):
    request, choice, answer = found[name]
    for one in answer.kept:
        assert one.mathematics == ""
        assert one.request.gbs == request.gbs
        for field in ("precision", "optimizer", "routing", "capacity_factor", "mtp_depth", "seq_len"):
            assert getattr(one.request.workload, field) == getattr(request.workload, field)
        for field in MATHEMATICS:
            assert getattr(one.choice.knobs, field) == getattr(choice.knobs, field)
    said = {name for one in answer.changed for name in one.names}
    assert said >= {"precision", "grad_dtype", "moment_dtype", "gbs"}
    assert all(one.mathematics for one in answer.changed)


def test_a_captured_iteration_of_dropless_experts_is_an_offer():
    options = {"system": "gb200-nvl72", "ep": 8, "gbs": 256, "dispatcher": "hybridep"}
    for routing, kept in (("balanced", True), ("dropless", False)):
        request, choice = single_request("qwen3-30b-a3b", 64, None, {**options, "routing": routing}, keep_free=True)
        answer = improvements(request, choice, as_asked)
        whole = [one for one in (*answer.kept, *answer.changed) if one.names == ("cuda_graph",)
                 and one.choice.knobs.cuda_graph is CudaGraph.full_iteration]  # fmt: skip
        assert [one.mathematics == "" for one in whole] == [kept]


def test_order_and_sureness(found):
    _, _, answer = found["dense"]
    ranks = [{"fits": 0, "tight": 1, "oom": 2}[one.verdict] for one in answer.kept]
    assert ranks == sorted(ranks)
    fitting = [one.candidate.step.step_s for one in answer.kept if one.verdict == "fits"]
    assert fitting == sorted(fitting)
    assert answer.kept[0].names == ("recompute",)
    assert answer.sure
    for one in answer.sure:
        assert one.verdict == "fits"
        assert one.low > 0


def test_the_pair_is_two_dials_and_beats_each_alone(found):
    _, choice, answer = found["dense"]
    pair = answer.pair
    assert len({*pair.names}) == 2
    assert pair.gain > max(one.gain for one in answer.kept if one.verdict == "fits")
    request, made = found["dense"][0], choice
    for turn in pair.turns:
        request, made = turn.apply(request, made)
    assert (made.layout, made.knobs) == (pair.choice.layout, pair.choice.knobs)
    assert answer.best_gain >= pair.gain - 1e-9


def test_an_illegal_job_gets_ways_out_without_gains(found):
    _, _, answer = found["illegal"]
    assert answer.verdict == "illegal"
    assert answer.now is None
    assert answer.kept
    assert all(one.gain is None and one.low is None and one.freed_bytes is None for one in answer.kept)


def test_intervals_come_from_pairs_of_measured_runs(found):
    widths = pair_errors()["turned"]
    assert widths[1]["n"] > 100
    for name in ("dense", "oom"):
        _, _, answer = found[name]
        for one in (*answer.kept, *([answer.pair] if answer.pair else [])):
            step = one.candidate.step
            half = math.log(step.high_s / step.low_s) / 2
            spread = math.exp(widths[len(one.names)]["width"] * half)
            assert 1 + one.high == pytest.approx((1 + one.gain) * spread)
            assert 1 + one.low == pytest.approx((1 + one.gain) / spread)
    kinds = {one.names: one.kind for one in found["dense"][2].kept}
    assert kinds["tp",] == "fitted"
    assert kinds["tp_overlap",] == "assumed"


def test_a_change_that_restores_what_is_lost_is_credited_with_it():
    request, choice = single_request(
        "llama3-70b", 64, None, {"system": "dgx-h100", "tp": 8, "pp": 2, "gbs": 128, "sp": False, "tp_overlap": True},
        keep_free=True,
    )  # fmt: skip

    def settle(layout, knobs):
        return dataclasses.replace(knobs, tp_overlap=knobs.tp_overlap and layout.sp)

    def on(answer):
        return next(one for one in answer.kept if one.names == ("sp",))

    lost = on(improvements(request, choice, settle))
    plain = Choice(choice.layout, dataclasses.replace(choice.knobs, tp_overlap=False))
    never = on(improvements(request, plain, settle))
    assert lost.candidate.knobs.tp_overlap
    assert lost.restores == ("tp_overlap",)
    assert never.restores == ()
    assert lost.gain > never.gain


def test_a_measured_run_scales_seconds_and_moves_bytes_but_no_ratio(found):
    request, choice, plain = found["dense"]
    measured = Measured(step_s=1.25 * plain.now.step.step_s,
                        peak_allocated_bytes=plain.now.memory.peak_allocated_bytes + 3e9)  # fmt: skip
    answer = improvements(request, choice, as_asked, measured)
    assert answer.now.step.step_s == pytest.approx(measured.step_s)
    assert answer.now.memory.peak_allocated_bytes == pytest.approx(measured.peak_allocated_bytes)
    terms = answer.now.memory.terms
    assert terms[UNPREDICTED].value == pytest.approx(3e9)
    assert sum(term.value for term in terms.values()) == pytest.approx(answer.now.memory.peak_device_bytes)
    before = {(one.names, one.after): one for one in plain.kept}
    for one in answer.kept:
        other = before[one.names, one.after]
        assert one.gain == pytest.approx(other.gain, abs=1e-9)
        assert (one.low, one.high) == (pytest.approx(other.low), pytest.approx(other.high))
        assert one.candidate.step.step_s == pytest.approx(1.25 * other.candidate.step.step_s)
        assert one.candidate.memory.peak_device_bytes == pytest.approx(other.candidate.memory.peak_device_bytes + 3e9)


def test_what_is_predicted_too_high_is_so_in_proportion(found):
    request, choice, plain = found["dense"]
    predicted = plain.now.memory.peak_allocated_bytes
    measured = Measured(peak_allocated_bytes=predicted / 4)
    answer = improvements(request, choice, as_asked, measured)
    assert answer.now.memory.peak_allocated_bytes == pytest.approx(predicted / 4)
    before = {(one.names, one.after): one.candidate.memory for one in plain.kept}
    smaller = 0
    for one in answer.kept:
        memory, other = one.candidate.memory, before[one.names, one.after]
        given = other.peak_allocated_bytes - memory.peak_allocated_bytes
        assert given == pytest.approx(min(0.75 * predicted, 0.75 * other.peak_allocated_bytes))
        assert memory.peak_allocated_bytes > 0
        assert memory.terms[UNPREDICTED].value == pytest.approx(-given)
        smaller += other.peak_allocated_bytes < 0.75 * predicted
    assert smaller


def test_every_dial_of_the_model_is_turned():
    request, choice = single_request(
        "deepseek-v3", 256, None, {"system": "gb200-nvl72", "pp": 4, "vpp": 2, "ep": 64, "tp": 2, "cp": 2},
        keep_free=True,
    )  # fmt: skip
    names = {turn.name for turn in turns(request, choice)}
    assert names >= {
        "tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "sp", "recompute", "dispatcher", "ep_overlap", "delay_wgrad",
        "shared_expert_overlap", "tp_overlap", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p",
        "cuda_graph", "fsdp", "optimizer_offload", "optimizer_instances", "distributed_optimizer", "cp_comm",
        "grad_dtype", "moment_dtype", "main_param_dtype", "precision", "gbs", "optimizer", "routing",
    }  # fmt: skip
    seen = [(turn.name, turn.size, turn.sp, tuple(sorted(map(str, turn.knobs.items()))), turn.request and (
        turn.request.gbs, turn.request.workload)) for turn in turns(request, choice)]  # fmt: skip
    assert len(seen) == len(set(seen))


def test_needs_of_dials_name_dials_and_their_values():
    request, choice = single_request("qwen3-30b-a3b", 32, None, {"system": "gb200-nvl72", "ep": 8}, keep_free=True)
    answer = improvements(request, choice, as_asked)
    said = {risk for one in (*answer.kept, *answer.changed) for risk in one.risks}
    assert any("deep_ep" in risk for risk in said)
    assert any("Transformer Engine" in risk for risk in said)
    known = {turn.name for turn in turns(request, choice)}
    of_other_jobs = {"tp_overlap", CONNECTIONS}  # user buffers are for dense models, the variable for a job's files
    assert {*improve._needs()["needs"]} <= known | of_other_jobs


@pytest.mark.slow
def test_the_committed_widths_are_those_of_the_runs():
    from advisor.fit.pairs import widths
    from advisor.fit.runs import published_runs
    from advisor.fit.validate import predict_rows

    found, seen = widths(predict_rows([run for run in published_runs()[0] if run.scored], "none", with_memory=False))
    committed = pair_errors()
    assert set(committed["turned"]) == set(found)
    for count, row in committed["turned"].items():
        assert row["n"] == found[count]["n"]
        assert row["width"] == pytest.approx(found[count]["width"], abs=0.1)
    assert tuple(committed["seen"]) == seen
