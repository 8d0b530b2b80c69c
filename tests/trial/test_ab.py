"""An overlap on and off: the interval of the difference, the verdict, what is refused, and the runs in turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from advisor.cli.pages.ab import ab_document
from advisor.cli.render import table_text
from advisor.errors import InputError
from advisor.trial.ab import ab_record, judged, make_sides, run_sides
from advisor.trial.difference import Difference, block_length, difference, student
from advisor.trial.job import Drive
from advisor.trial.trials import read_trials
from tests.trial.layouts import write_estimate

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "presets" / "schemas" / "ab.schema.json").read_text())
DRIVE = Drive("cpu", steps=4, warmup=1, profile_steps=0)
ACTING = (str(Path(__file__).parent / "acting.py"),)


def noisy(random: np.random.Generator, mean: float, *, steps: int = 20, alike: float = 0.8) -> list[float]:
    """Steps of one run: an offset of its own, and noise whose neighbours are alike."""
    noise = np.zeros(steps)
    for i in range(1, steps):
        noise[i] = alike * noise[i - 1] + 0.01 * random.standard_normal()
    return list(mean + 0.01 * random.standard_normal() + noise)


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (3, 3.18245), (10, 2.22814), (1000, 1.96234)])
def test_quantiles_of_student_are_those_of_the_tables(freedom, quantile):
    assert student(0.95, freedom) == pytest.approx(quantile, rel=1e-4)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Alike steps and runs that differ: an interval by steps alone would hold it in less than half of the cases."""
    random, held, narrow = np.random.default_rng(3), 0, 0
    for _ in range(150):
        found = difference([(noisy(random, 1.0), noisy(random, 1.05)) for _ in range(4)])
        held += found.low_s <= 0.05 <= found.high_s
        naive = 1.96 * 0.01 * (2 / 80) ** 0.5
        narrow += abs(found.mean_s - 0.05) <= naive
    assert held >= 0.9 * 150
    assert narrow < 0.5 * 150


def test_equal_pairs_are_as_wide_as_their_steps_say():
    steps = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 0.8, 1.0]
    found = difference([(steps, steps)] * 3)
    assert (found.mean_s, found.between_s) == (0.0, 0.0)
    assert found.high_s == found.within_s > 0.02


def test_one_pair_has_no_interval():
    with pytest.raises(ValueError, match="1 pairs"):
        difference([([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])])


def test_blocks_grow_with_what_neighbours_have_in_common():
    random = np.random.default_rng(1)
    assert block_length([1.0] * 10) == 1
    assert block_length(list(random.standard_normal(200))) <= 2
    assert block_length(noisy(random, 1.0, steps=200, alike=0.95)) >= 10
    assert block_length(noisy(random, 1.0, steps=8, alike=0.99)) <= 4


@pytest.fixture
def trial(tmp_path):
    return read_trials(write_estimate(tmp_path, "dense", 2), 1, DRIVE, None)[0][0]


def promising(sides, saved_s):
    """The same sides with another prediction for the side without."""
    step = replace(sides.on.predicted, step_s=sides.on.predicted.step_s + saved_s)
    return replace(sides, off=replace(sides.off, run_candidate=replace(sides.off.run_candidate, step=step)))


@pytest.mark.parametrize(
    ("promised", "low", "high", "verdict"),
    [
        (0.010, 0.005, 0.015, "confirmed"),
        (0.010, 0.012, 0.015, "confirmed"),
        (0.010, 0.002, 0.006, "less than predicted"),
        (0.010, -0.002, 0.006, "not effective"),
        (0.010, -0.002, 0.012, "not decided"),
        (0.010, -0.020, -0.001, "slower with it"),
        (0.0, -0.001, 0.001, "confirmed"),
        (0.0, -5.0, 5.0, "not decided"),
        (0.0, 0.001, 0.003, "confirmed"),
        (0.0, -0.003, -0.001, "slower with it"),
    ],
)
def test_verdicts(trial, promised, low, high, verdict):
    sides = promising(make_sides(trial, "overlap_grad_reduce", DRIVE), promised)
    assert sides.predicted_s == pytest.approx(promised)
    apart = Difference((low + high) / 2, (high - low) / 2, 0.0)
    assert judged(sides, apart)[0] == verdict


def test_the_parameter_gather_goes_off_with_the_gradient_reduction(trial):
    sides = make_sides(trial, "overlap_grad_reduce", DRIVE)
    assert sides.also == ("overlap_param_gather",)
    assert sides.off.job["ddp"] == {
        **sides.on.job["ddp"], "overlap_grad_reduce": False, "overlap_param_gather": False
    }  # fmt: skip
    assert {name for name in sides.on.job if sides.on.job[name] != sides.off.job[name]} <= {
        "ddp",
        "optimizer",
        "environment",
    }
    gather = make_sides(trial, "overlap_param_gather", DRIVE)
    assert gather.also == ()
    assert gather.off.job["ddp"]["overlap_grad_reduce"]


@pytest.mark.parametrize(
    ("layout", "flag", "words"),
    [
        ({}, "overlap", "no overlap"),
        ({}, "tp_overlap", "is off"),
        ({}, "overlap_p2p", "PP is 1"),
        ({"pp": 2}, "overlap_grad_reduce", "DP is 1"),
        ({"tp": 2, "tp_overlap": True}, "tp_overlap", "same job"),
        ({"pp": 2, "vpp": 2}, "overlap_p2p", "cannot run without"),
        ({"distributed_optimizer": False}, "overlap_param_gather", "is off"),
    ],
)
def test_what_has_no_effect_is_refused_with_the_reason(tmp_path, layout, flag, words):
    trial = read_trials(write_estimate(tmp_path, "dense", 2, **layout), 1, DRIVE, None)[0][0]
    with pytest.raises(InputError) as problem:
        make_sides(trial, flag, DRIVE)
    assert words in problem.value.message


def test_a_comparison_of_one_pair_decides_nothing(trial):
    sides = make_sides(trial, "overlap_grad_reduce", DRIVE)
    measured = {"measured": {"steps_s": [0.1, 0.2, 0.1]}, "hiding": [], "environment": None}
    record = ab_record(sides, [(measured, measured)], "the budget is spent")
    jsonschema.validate(record, SCHEMA)
    assert (record["verdict"], record["saved_s"], record["low_s"]) == ("not decided", None, None)
    assert "the budget is spent" in record["why"]


PAGE = {
    "schema_version": 1, "flag": "overlap_grad_reduce", "also_off": ["overlap_param_gather"], "kind": "dp",
    "on": {"name": "dp8-mbs1-aaaaaaaa", "key": "a" * 64, "predicted_step_s": 1.0},
    "off": {"name": "dp8-mbs1-bbbbbbbb", "key": "b" * 64, "predicted_step_s": 1.04},
    "pairs": [{"on_s": [1.01, 1.0, 1.02], "off_s": [1.03, 1.02, 1.04]}, {"on_s": [1.0, 1.0, 1.0], "off_s": [1.01] * 3}],
    "predicted_saved_s": 0.04, "saved_s": 0.015, "low_s": 0.004, "high_s": 0.026, "level": 0.95,
    "verdict": "less than predicted", "why": "all of the interval is above zero and below the prediction",
    "hiding": {
        "kind": "dp", "predicted_share": 0.9, "measured_share": 0.3, "verdict": "less than predicted",
        "reason": "check overlap_grad_reduce",
    },
    "environment": None, "stand_ins": [],
}  # fmt: skip


def test_the_page(golden):
    jsonschema.validate(PAGE, SCHEMA)
    document = ab_document(PAGE, "trials")
    golden("ab.txt", "\n".join([table_text(document.blocks, None), *document.hints, ""]))


@pytest.mark.real
class TestRuns:
    """Groups of real processes, whose ranks act or train."""

    @pytest.fixture(autouse=True)
    def stack(self):
        pytest.importorskip("torch")
        pytest.importorskip("psutil")

    def test_sides_run_in_turn(self, tmp_path, trial):
        from advisor.trial.local import Local
        from advisor.trial.processes import Limits
        from advisor.trial.runner import Rules
        from advisor.trial.store import Store

        store = Store(tmp_path / "out")
        (store.folder / "act.json").write_text("{}")
        sides = make_sides(trial, "overlap_grad_reduce", DRIVE)
        record = run_sides(sides, 2, store, Rules(Limits(), backend=Local(ACTING)), lambda *_: None)
        jsonschema.validate(record, SCHEMA)
        names = [one["name"] for one in store.records()]
        assert names == [sides.on.name, sides.off.name] * 2
        assert record["saved_s"] == pytest.approx(0.0)
        assert len(record["pairs"]) == 2
        (path,) = store.folder.glob("ab-overlap_grad_reduce-*.json")
        assert json.loads(path.read_text()) == record
        (store.folder / "act.json").write_text(json.dumps({"1": "crash"}))
        failed = run_sides(sides, 3, store, Rules(Limits(), backend=Local(ACTING)), lambda *_: None)
        assert failed["verdict"] == "not decided"
        assert "crash" in failed["why"]
        assert failed["pairs"] == []
        spent = run_sides(sides, 3, store, Rules(Limits(), budget_s=0.0, backend=Local(ACTING)), lambda *_: None)
        assert "the budget is spent" in spent["why"]

    def test_a_real_comparison_from_plan_to_page(self, cli, tmp_path):
        pytest.importorskip("megatron.core")
        plan, out = write_estimate(tmp_path, "dense", 2), tmp_path / "out"
        args = ["trial", str(plan), "--device", "cpu", "--ab", "overlap_grad_reduce", "--pairs", "2", "--steps", "3",
                "--warmup", "1", "--out", str(out), "--format", "json"]  # fmt: skip
        dry = cli(*args, "--dry-run")
        assert dry.code == 0
        assert len(json.loads(dry.out)["runs"]) == 4
        assert not out.exists()
        ran = cli(*args)
        record = json.loads(ran.out)
        jsonschema.validate(record, SCHEMA)
        assert ran.code == (0 if record["verdict"] == "confirmed" else 1)
        assert record["low_s"] <= record["saved_s"] <= record["high_s"]
        lines = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
        assert [line["effective"]["ddp"]["overlap_grad_reduce"] for line in lines] == [True, False, True, False]
        assert record["hiding"] is None or record["hiding"]["kind"] == "dp"
