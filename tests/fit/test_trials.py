"""Calibration with recorded trials: closer after than before, also for a trial left out; what is not used is said."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

pytest.importorskip("scipy")

from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.errors import InputError
from advisor.fit.changed import UNMOVED, with_changes
from advisor.fit.predict import predicted_step_s
from advisor.fit.trials import TRIAL_DIALS, fit_trials, median_pct
from advisor.spec.layout import table
from advisor.spec.load.system import load_system
from advisor.spec.precision import PRECISIONS
from advisor.trial.calibration import calibrate_trials
from advisor.trial.measured import read_measured

DATA = Path(__file__).parent / "data" / "trials"
ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "presets" / "schemas"


@pytest.fixture
def recorded(tmp_path):
    """A folder of trials as `advisor trial` left it, its paths pointing to copies of what was planned with."""
    for path in DATA.iterdir():
        if path.suffix == ".jsonl":
            (tmp_path / path.name).write_text(path.read_text().replace("{here}", str(tmp_path)))
        else:
            shutil.copy(path, tmp_path)
    return tmp_path


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def write(folder: Path, records: list[dict]) -> None:
    (folder / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_recorded_trials_are_records(recorded):
    schema = json.loads((SCHEMAS / "trial.schema.json").read_text())
    record = {"$defs": schema["$defs"], "$ref": "#/$defs/record"}
    assert len(lines(recorded)) >= 6
    for line in lines(recorded):
        jsonschema.validate(line, record)


def test_the_prediction_is_closer_after_also_for_a_trial_left_out(recorded):
    (found,) = calibrate_trials(recorded).fits
    before, after, left = (median_pct(errors) for errors in (found.fit.before, found.fit.after, found.fit.left_out))
    assert after < 0.7 * before
    assert left < 0.8 * before
    assert np.abs(found.fit.left_out).mean() < np.abs(found.fit.before).mean()


def test_what_changed_is_bounded_sourced_and_what_predicts_after(recorded):
    (found,) = calibrate_trials(recorded).fits
    fit = found.fit
    assert fit.changed
    assert {name.removeprefix("gemm_tflops.") for name in fit.changed} <= {
        name.removeprefix("gemm.") for dial in TRIAL_DIALS for name in dial.names
    }
    for one in fit.changed.values():
        assert one.low <= one.value <= one.high
        assert one.source.startswith(f"{len(fit.runs)} trials of advisor trial, left out ")
        assert "; started from: " in one.source
    seconds = predicted_step_s(fit.runs, lambda _: fit.profile)
    assert np.log(seconds / [run.step_s for run in fit.runs]) == pytest.approx(fit.after, abs=UNMOVED)


def test_a_machine_of_known_speed_is_found_again(recorded):
    """Steps made by a profile whose dials are turned: the fit predicts them within a few per cent, left out or not."""
    runs = [one.run for one in read_measured(recorded).trials]
    profile = load_profile(runs[0].cluster.gpu)
    moved = {
        "memory_share": dataclasses.replace(profile.coefficients["memory_share"], value=0.7),
        "gemm_tflops.tf32": dataclasses.replace(profile.gemm["tf32"], value=0.7 * profile.gemm["tf32"].value),
    }
    seconds = predicted_step_s(runs, lambda _: with_changes(profile, moved))
    made = [dataclasses.replace(run, step_s=float(one)) for run, one in zip(runs, seconds, strict=True)]
    fit = fit_trials(made, [0.01] * len(made))
    assert median_pct(fit.before) > 15
    assert median_pct(fit.after) < 2
    assert median_pct(fit.left_out) < 3


def test_the_left_out_error_does_not_see_its_trial(recorded):
    """A trial made thrice as slow is not predicted by its own fit any better than by the others'."""
    runs = [one.run for one in read_measured(recorded).trials]
    slow = [dataclasses.replace(runs[0], step_s=3 * runs[0].step_s), *runs[1:]]
    clean, dirty = (fit_trials(some, [0.02] * len(some)) for some in (runs, slow))
    assert dirty.left_out[0] == pytest.approx(clean.left_out[0] - np.log(3), abs=0.3)
    assert abs(dirty.after[0]) < abs(dirty.left_out[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_fit_begins_where_an_estimate_is(recorded, precision):
    """Also in bf16, where a host's profile has coefficients of that format."""
    runs = [one.run for one in read_measured(recorded).trials]
    runs = [
        dataclasses.replace(run, workload=dataclasses.replace(run.workload, precision=PRECISIONS[precision]))
        for run in runs
    ]
    profile = load_profile(runs[0].cluster.gpu)
    assert any(name.endswith(".bf16") for name in profile.coefficients)
    seconds = [
        step(run.model, run.cluster, run.workload, table([run.layout], [run.knobs]), profile).step_s[0] for run in runs
    ]
    assert predicted_step_s(runs) == pytest.approx(seconds)


def test_one_outlier_bends_the_fit_little(recorded):
    runs = [one.run for one in read_measured(recorded).trials]
    profile = load_profile(runs[0].cluster.gpu)
    made = [dataclasses.replace(run, step_s=float(one)) for run, one in zip(runs, predicted_step_s(runs), strict=True)]
    made[0] = dataclasses.replace(made[0], step_s=5 * made[0].step_s)
    fit = fit_trials(made, [0.02] * len(made))
    assert np.median(np.abs(fit.after[1:])) < 0.12
    assert fit.profile.gemm["tf32"].value > 0.8 * profile.gemm["tf32"].value


def test_few_trials_have_no_error_left_out(recorded):
    runs = [one.run for one in read_measured(recorded).trials][:2]
    fit = fit_trials(runs, [0.02, 0.02])
    assert np.isnan(fit.left_out).all()
    assert all("too few to leave one out" in one.source for one in fit.changed.values())


def test_repeats_count_once_with_their_median(recorded):
    first = lines(recorded)[0]
    steps = [first["measured"]["step_s"] * factor for factor in (1.0, 1.1, 5.0)]
    write(recorded, [{**first, "measured": {**first["measured"], "step_s": step}} for step in steps])
    (one,) = read_measured(recorded).trials
    assert (one.repeats, one.run.step_s) == (3, pytest.approx(steps[1]))
    assert one.spread > 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "oom", "measured": None, "failure": {"message": "CUDA out of memory"}}, "oom: CUDA out of memory"),
        ({"environment": None}, "does not say on which host"),
        ({"environment": {"torch": "1.0", "machine": "x86_64"}}, "measured elsewhere"),
        ({"request": {}}, "model is missing"),
    ],
)
def test_records_that_say_nothing_are_left_out_with_the_reason(recorded, change, reason):
    records = lines(recorded)
    write(recorded, [*records[1:], {**records[0], **change}])
    found = read_measured(recorded)
    assert len(found.trials) == len(records) - 1
    (left,) = found.left
    assert left.name == records[0]["name"]
    assert reason in left.reason


def test_a_cpu_says_nothing_about_a_gpu(recorded):
    records = lines(recorded)
    for record in records:
        record["request"]["system"] = "dgx-h100"
    write(recorded, records)
    with pytest.raises(InputError, match="it ran on a CPU, the plan is for h100-sxm-80gb"):
        read_measured(recorded)


def test_a_card_is_told_from_another(recorded):
    records = lines(recorded)
    for record, card in zip(records, ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), strict=False):
        record["request"] |= {"system": "dgx-h100", "gpus": 4}
        record["device"] = "cuda"
        record["environment"] |= {"gpu": card}
    write(recorded, [records[0], records[0], records[1]])
    assert [one.repeats for one in read_measured(recorded).trials] == [2]
    write(recorded, [records[1]])
    with pytest.raises(InputError, match="A100-SXM4-80GB, the plan is for h100"):
        read_measured(recorded)


@pytest.mark.parametrize("content", [None, "", "{}\n", "not json\n"])
def test_no_usable_record(cli, tmp_path, content):
    if content is not None:
        (tmp_path / "trials.jsonl").write_text(content)
    ran = cli("calibrate", "--trials", str(tmp_path))
    assert ran.code == 2
    assert "advisor trial" in ran.err


def test_one_source_at_a_time(cli, recorded):
    for args in ([], ["--trials", str(recorded), "--runs", "runs.csv"]):
        ran = cli("calibrate", *args)
        assert ran.code == 2
        assert "one of them" in ran.err


def test_the_verb_writes_a_system_that_plans_are_made_with(cli, recorded, tmp_path):
    out, before = tmp_path / "mine.yaml", (recorded / "local-cpu-4.yaml").read_text()
    ran = cli("calibrate", "--trials", str(recorded), "--out", str(out), "--format", "json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    jsonschema.validate(record, json.loads((SCHEMAS / "calibrate_trials.schema.json").read_text()))
    (fit,) = record["fits"]
    assert (recorded / "local-cpu-4.yaml").read_text() == before
    text = out.read_text()
    assert all(row["name"] in text for row in fit["trials"])
    assert "machine x86_64" in text
    profile = load_profile(load_system(str(out)).gpu)
    for name, one in fit["coefficients"].items():
        rate = name.startswith("gemm_tflops.")
        held = profile.gemm[name.removeprefix("gemm_tflops.")] if rate else profile.coefficients[name]
        assert held.value == pytest.approx(one["value"], rel=1e-4)
    table = cli("calibrate", "--trials", str(recorded))
    assert "left out" in table.out
    assert "--out mine.yaml" in table.err
    assert yaml.safe_load(text)["profile"]["kernels"]


def test_a_fit_that_brings_nothing_closer_says_so(cli, recorded, monkeypatch):
    assert "no closer than before" not in cli("calibrate", "--trials", str(recorded)).out

    def useless(runs, spreads):
        found = fit_trials(runs, spreads)
        return dataclasses.replace(found, after=2 * found.before)

    monkeypatch.setattr("advisor.trial.calibration.fit_trials", useless)
    assert "no closer than before" in cli("calibrate", "--trials", str(recorded)).out


def test_several_gpus_make_several_files(cli, recorded, tmp_path):
    other = (recorded / "local-cpu-4.yaml").read_text().replace("local-cpu-4", "other-cpu")
    (recorded / "other.yaml").write_text(other)
    records = lines(recorded)
    records[0]["request"]["system"] = str(recorded / "other.yaml")
    write(recorded, records)
    assert len(calibrate_trials(recorded).fits) == 2
    ran = cli("calibrate", "--trials", str(recorded), "--out", str(tmp_path / "mine.yaml"))
    assert ran.code == 2
    assert "a system file each" in ran.err
