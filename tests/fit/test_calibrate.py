"""The fit finds known coefficients again, stays inside bounds, and writes them where they belong."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from advisor.cost.interval import widening
from advisor.cost.profile import load_profile
from advisor.fit.calibrate import Fit, calibrate, leave_out, weights
from advisor.fit.dials import DIALS, STACK_DIALS, Dial, at_start, fitted_profile, turned
from advisor.fit.intervals import quantiles
from advisor.fit.predict import predicted_step_s
from advisor.fit.runs import published_runs
from advisor.fit.write import write_fit
from advisor.spec.layout import table

ROOT = Path(__file__).parents[2]
DIAL = (Dial(("gemm.bf16", "gemm.fp16"), ("b200-sxm",), 0.01), Dial(("memory_share",), pull=0.01))


@pytest.fixture(scope="module")
def runs():
    return [run for run in published_runs()[0] if run.group == "simumax-b200"][:8]


def machine(gpu, factors):
    return turned(at_start(load_profile(gpu), DIALS), DIAL, factors)


def made(runs, factors) -> list:
    """The runs as they would be measured on a machine whose dials are turned by `factors`."""
    seconds = predicted_step_s(runs, lambda gpu: machine(gpu, factors))
    return [dataclasses.replace(run, step_s=float(one)) for run, one in zip(runs, seconds, strict=True)]


def test_a_known_machine_is_found_again(runs) -> None:
    truth = (0.93, 1.08)
    fit = calibrate(made(runs, truth), {}, DIAL)
    assert fit.factors == pytest.approx(truth, rel=0.02)
    assert fit.gpus == ("b200-sxm-180gb",)


def test_fitting_twice_gives_the_same_numbers(runs) -> None:
    synthetic = made(runs, (0.93, 1.08))
    assert (calibrate(synthetic, {}, DIAL).factors == calibrate(synthetic, {}, DIAL).factors).all()


def test_left_out_runs_are_predicted_from_the_others(runs) -> None:
    synthetic = made(runs, (0.93, 1.0))
    found = leave_out(synthetic, {"model": lambda run: run.model_name}, {}, DIAL)
    models = {run.model_name for run in synthetic}
    assert set(found.factors["model"]) == models
    assert len(models) > 1
    for model, factors in found.factors["model"].items():
        own = [run for run in synthetic if run.model_name == model]
        seconds = predicted_step_s(own, lambda gpu, factors=factors: machine(gpu, factors))
        assert np.abs(seconds / [run.step_s for run in own] - 1).max() < 0.03


def test_what_is_left_out_does_not_move_its_fit(runs) -> None:
    synthetic = made(runs, (0.93, 1.0))
    wrong = [
        dataclasses.replace(run, step_s=3 * run.step_s) if run.model_name == "llama3-70b" else run for run in synthetic
    ]
    key = {"model": lambda run: run.model_name}
    clean, dirty = (leave_out(some, key, {}, DIAL, again=6).factors["model"] for some in (synthetic, wrong))
    assert dirty["llama3-70b"] == pytest.approx(clean["llama3-70b"], rel=0.01)
    assert dirty["deepseek-v2"] != pytest.approx(clean["deepseek-v2"], rel=0.05)


def test_dials_stay_inside_bounds_and_on_their_gpus() -> None:
    b200, h100 = load_profile("b200"), load_profile("h100")
    far = turned(b200, DIAL, np.array([9.0, 9.0]))
    assert far.gemm["bf16"].value == b200.gemm["bf16"].high
    assert far.value("memory_share") == b200.coefficients["memory_share"].high
    assert turned(h100, DIAL, np.array([9.0, 1.0])).gemm["bf16"] == h100.gemm["bf16"]


def test_every_dial_moves_something() -> None:
    for dial in (*DIALS, *STACK_DIALS):
        profiles = [load_profile(gpu) for gpu in ("a100", "h100", "b200", "gb200", "gb300")]
        profiles = [at_start(one, DIALS) for one in profiles if not dial.where or one.gpu.name.startswith(dial.where)]
        assert profiles, dial.key
        lower, higher = ([turned(one, [dial], [by]) for one in profiles] for by in (0.97, 1.03))
        assert any(
            low.coefficients != high.coefficients or low.gemm != high.gemm
            for low, high in zip(lower, higher, strict=True)
        ), dial.key


def test_a_fit_begins_at_the_start_whatever_is_committed() -> None:
    profile = load_profile("h100")
    moved = turned(profile, DIALS, [1.05] * len(DIALS))
    assert at_start(moved, DIALS).gemm == at_start(profile, DIALS).gemm
    assert at_start(moved, DIALS).coefficients == at_start(profile, DIALS).coefficients


def test_groups_named_in_shares_weigh_that_many_runs(runs) -> None:
    assert (weights(runs, {"simumax-b200": 4.0}) ** 2).sum() == pytest.approx(4.0)
    assert (weights(runs, {}) == 1).all()


def test_writing_keeps_the_files_and_says_where_values_come_from(tmp_path: Path) -> None:
    folder = tmp_path / "fitted"
    shutil.copytree(ROOT / "profiles" / "fitted", folder)
    dials = (Dial(("gemm.bf16",), ("h100", "h200")), Dial(("gemm.bf16",)), Dial(("memory_share",)))
    fit = Fit(dials, np.array([0.9, 0.95, 1.1]), ("h100-sxm-80gb",))
    write_fit(fit, folder, "a test")
    first = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    assert write_fit(fit, folder, "a test") == [], "writing twice changes nothing"
    assert first == {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}

    def entry(stem: str, *keys: str) -> dict:
        found = yaml.safe_load((folder / f"{stem}.yaml").read_text(encoding="utf-8"))
        for key in keys:
            found = found[key]
        return found

    before = load_profile("h100")
    rate = entry("h100-sxm-80gb", "gemm_tflops", "bf16")
    assert rate["value"] == pytest.approx(0.9 * 0.95 * before.gemm["bf16"].start / 1e12, rel=1e-3)
    assert rate["kind"] == "fitted"
    assert entry("h200-sxm-141gb", "gemm_tflops", "bf16")["kind"] == "assumed"
    start = before.coefficients["memory_share"].start
    assert entry("default", "memory_share")["value"] == pytest.approx(1.1 * start, rel=1e-3)
    assert entry("default", "memory_share")["source"].startswith("a test; started from: ")
    assert "memory_share" not in first["h100-sxm-80gb.yaml"]


def test_committed_values_are_those_of_the_committed_factors() -> None:
    from advisor.fit.committed import factors

    found = factors()
    assert found["dials"] == [dial.key for dial in DIALS]
    for gpu in ("a100", "h100", "b200", "gb200", "gb300"):
        profile = load_profile(gpu)
        again = fitted_profile(profile.gpu, DIALS, found["factors"])
        for name, one in profile.coefficients.items():
            assert one.value == pytest.approx(again.value(name), rel=2e-3), (gpu, name)
        for name, one in profile.gemm.items():
            assert one.value == pytest.approx(again.gemm[name].value, rel=2e-3), (gpu, name)


def test_quantiles_hold_four_in_five_left_out_runs() -> None:
    runs = [run for run in published_runs()[0] if run.group == "dgxc" and run.workload.precision.name == "bf16"]
    errors = np.linspace(-0.1, 0.1, len(runs))
    found = quantiles(runs, errors)["dense-16bit"]
    inside = sum(found["low"] <= 1 / (1 + error) <= found["high"] for error in errors)
    assert inside / len(runs) == pytest.approx(0.8, abs=0.03)
    assert found["n"] == len(runs)
    assert quantiles(runs[:3], errors[:3]) == {}


def test_what_is_unknown_widens() -> None:
    run = next(run for run in published_runs()[0] if run.group == "moefold-t3")
    columns = table([run.layout], [run.knobs])
    known, unknown = (widening(run.workload, run.model, run.cluster, columns, what) for what in (False, True))
    assert unknown > known >= 1
