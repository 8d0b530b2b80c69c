"""Which overlaps can be compared on which device, and a comparison whose sides the library made alike."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from advisor.errors import InputError
from advisor.spec.layout import CpComm
from advisor.trial.ab import FLAGS, ab_record, make_sides, no_effect, run_sides
from advisor.trial.job import Drive
from advisor.trial.trials import read_trials
from tests.trial.layouts import write_estimate

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "presets" / "schemas" / "ab.schema.json").read_text())
CPU = Drive("cpu", steps=4, warmup=1, profile_steps=0)
CUDA = Drive("cuda", steps=4, warmup=1, profile_steps=0)
EXPERTS = {"ep": 2, "dispatcher": "alltoall"}
# Flag: model, ranks, layout with the overlap, what differs in the jobs of a GPU, and the reason why not on a CPU.
CASES = {
    "tp_overlap": ("dense", 2, {"tp": 2, "sp": True, "tp_overlap": True}, {"config", "user_buffers"}, "user buffers"),
    "overlap_p2p": ("deep", 4, {"pp": 4, "vpp": 2}, {"config"}, ""),
    "overlap_grad_reduce": ("dense", 2, {}, {"ddp", "optimizer"}, ""),
    "overlap_param_gather": ("dense", 2, {}, {"ddp", "optimizer"}, ""),
    "ep_overlap": ("moe", 2, {**EXPERTS, "ep_overlap": True}, {"config"}, ""),
    "delay_wgrad": ("moe", 2, {**EXPERTS, "ep_overlap": True, "delay_wgrad": True}, {"config", "ddp"}, "delayed ones"),
    "shared_expert_overlap": ("latent", 2, {**EXPERTS, "shared_expert_overlap": True}, {"config"}, ""),
    "cp_comm": ("dense", 2, {"cp": 2, "cp_comm": "all_gather"}, {"config"}, "context parallelism"),
}


def trial_of(folder, model, ranks, layout, drive):
    return read_trials(write_estimate(folder, model, ranks, **layout), 1, drive, None)[0][0]


def test_every_flag_has_a_case_and_stands_in_the_schema():
    assert set(CASES) == set(FLAGS) == set(SCHEMA["properties"]["flag"]["enum"])
    assert {kind for _, kind in FLAGS.values()} <= set(SCHEMA["properties"]["kind"]["enum"])


@pytest.mark.parametrize("flag", list(CASES))
def test_every_overlap_can_be_switched_off_on_gpus(tmp_path, flag):
    model, ranks, layout, differs, _ = CASES[flag]
    sides = make_sides(trial_of(tmp_path, model, ranks, layout, CUDA), flag, CUDA)
    apart = {name for name in sides.on.job if sides.on.job[name] != sides.off.job[name]}
    assert apart - {"environment", "stand_ins"} <= differs
    assert apart & differs
    off = CpComm.p2p if flag == "cp_comm" else False
    assert getattr(sides.off.candidate.knobs, flag) == off
    assert getattr(sides.on.candidate.knobs, flag) != off


@pytest.mark.parametrize("flag", list(CASES))
def test_on_a_cpu_it_can_be_compared_or_the_reason_is_said(tmp_path, flag):
    model, ranks, layout, _, why = CASES[flag]
    if not why:
        sides = make_sides(trial_of(tmp_path, model, ranks, layout, CPU), flag, CPU)
        assert sides.on.job["config"] != sides.off.job["config"] or sides.on.job["ddp"] != sides.off.job["ddp"]
        return
    with pytest.raises(InputError) as problem:
        make_sides(trial_of(tmp_path, model, ranks, layout, CPU), flag, CPU)
    assert why in problem.value.message


def test_graphs_and_a_plain_ring_have_no_other_side(tmp_path):
    trial = trial_of(tmp_path, "dense", 2, {"cp": 2}, CUDA)
    with pytest.raises(InputError, match="cp_comm is off") as problem:
        make_sides(trial, "cp_comm", CUDA)
    assert problem.value.hint == "plan with --fix cp_comm=all_gather"
    with pytest.raises(InputError, match="no CUDA graphs"):
        make_sides(trial, "cuda_graph", CUDA)


def record(tp=False, reduce=True, **more):
    return {"effective": {"tp_comm_overlap": tp, "ddp": {"overlap_grad_reduce": reduce}}, **more}


def test_sides_that_the_library_made_alike_compare_nothing():
    said = no_effect("tp_overlap", record(stand_ins=["plain collectives in place of user buffers: why"]), record())
    assert said == "tp_comm_overlap is False on both sides (plain collectives in place of user buffers: why)"
    assert no_effect("overlap_grad_reduce", record(), record()) == "overlap_grad_reduce is True on both sides"
    assert no_effect("tp_overlap", record(tp=True), record()) == ""
    assert no_effect("overlap_grad_reduce", record(), record(reduce=False)) == ""
    assert no_effect("tp_overlap", {"effective": None}, {}) == "", "a record that does not say is taken at its word"


def test_such_a_comparison_ends_after_its_first_pair_and_decides_nothing(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from advisor.trial import ab
    from advisor.trial.processes import Limits
    from advisor.trial.runner import Rules
    from advisor.trial.store import Store

    trial = trial_of(tmp_path, *CASES["tp_overlap"][:3], CUDA)
    runs = []

    def run(trials, *_):
        runs.append(trials[0].name)
        told = record(measured={"steps_s": [0.1, 0.1, 0.1]}, hiding=[], environment=None, stand_ins=["plain ones"])
        yield SimpleNamespace(record=told)

    monkeypatch.setattr(ab, "run_trials", run)
    sides = make_sides(trial, "tp_overlap", CUDA)
    found = run_sides(sides, 3, Store(tmp_path / "out"), Rules(Limits()), lambda *_: None)
    jsonschema.validate(found, SCHEMA)
    assert runs == [sides.on.name, sides.off.name]
    assert (found["pairs"], found["verdict"]) == ([], "not decided")
    assert found["why"].startswith("tp_comm_overlap is False on both sides (plain ones)")


def test_what_the_ranks_say_of_stand_ins_is_part_of_the_comparison(tmp_path):
    sides = make_sides(trial_of(tmp_path, "dense", 2, {}, CPU), "overlap_grad_reduce", CPU)
    one = {"measured": {"steps_s": [0.1, 0.2, 0.1]}, "hiding": [], "environment": None, "stand_ins": ["this for that"]}
    assert ab_record(sides, [(one, one)], "")["stand_ins"] == ["this for that"]
