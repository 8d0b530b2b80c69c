"""The fit finds known coefficients again, stays inside bounds, and writes them where they belong."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from advisor.cost.profile import load_profile
from advisor.fit.calibrate import DIALS, Dial, Fit, calibrate, left_out_errors, turned, weights
from advisor.fit.intervals import quantiles
from advisor.fit.predict import predicted_step_s
from advisor.fit.runs import published_runs
from advisor.fit.write import write_fit

ROOT = Path(__file__).parents[2]
DIAL = (Dial(("gemm.bf16", "gemm.fp16"), ("b200-sxm",), 0.01), Dial(("memory_share",), pull=0.01))


@pytest.fixture(scope="module")
def runs():
    return [run for run in published_runs()[0] if run.group == "simumax-b200"][:8]


def made(runs, factors) -> list:
    """The runs as they would be measured on a machine whose dials are turned by `factors`."""
    seconds = predicted_step_s(runs, lambda gpu: turned(load_profile(gpu), DIAL, np.array(factors)))
    return [dataclasses.replace(run, step_s=float(one)) for run, one in zip(runs, seconds, strict=True)]


def test_a_known_machine_is_found_again(runs) -> None:
    truth = (0.93, 1.08)
    fit = calibrate(made(runs, truth), {}, DIAL, steps=20)
    assert fit.factors == pytest.approx(truth, rel=0.02)
    assert fit.gpus == ("b200-sxm-180gb",)


def test_left_out_runs_are_predicted_from_the_others(runs) -> None:
    synthetic = made(runs, (0.93, 1.0))
    fit = calibrate(synthetic, {}, DIAL, steps=20)
    errors = left_out_errors(fit, synthetic, {}, lambda run: run.model_name)
    assert len({run.model_name for run in synthetic}) > 1
    assert np.abs(errors).max() < 0.03


def test_dials_stay_inside_bounds_and_on_their_gpus() -> None:
    b200, h100 = load_profile("b200"), load_profile("h100")
    far = turned(b200, DIAL, np.array([9.0, 9.0]))
    assert far.gemm["bf16"].value == b200.gemm["bf16"].high
    assert far.value("memory_share") == b200.coefficients["memory_share"].high
    assert turned(h100, DIAL, np.array([9.0, 1.0])).gemm["bf16"] == h100.gemm["bf16"]


def test_every_dial_moves_something() -> None:
    for dial in DIALS:
        gpus = [gpu for gpu in ("a100", "h100", "b200", "gb200", "gb300") if not dial.where]
        gpus = gpus or [gpu for gpu in ("a100", "h100", "b200", "gb200", "gb300")
                        if load_profile(gpu).gpu.name.startswith(dial.where)]  # fmt: skip
        assert gpus, dial.key
        for gpu in gpus:
            profile = load_profile(gpu)
            lower = turned(profile, [dial], np.array([0.97]))
            higher = turned(profile, [dial], np.array([1.03]))
            assert lower != profile or higher != profile


def test_groups_named_in_shares_weigh_that_many_runs(runs) -> None:
    assert (weights(runs, {"simumax-b200": 4.0}) ** 2).sum() == pytest.approx(4.0)
    assert (weights(runs, {}) == 1).all()


def test_writing_keeps_the_files_and_says_where_values_come_from(tmp_path: Path) -> None:
    folder = tmp_path / "fitted"
    shutil.copytree(ROOT / "profiles" / "fitted", folder)
    fit = Fit(
        (Dial(("gemm.bf16",), ("h100", "h200")), Dial(("memory_share",))), np.array([0.9, 1.1]), ("h100-sxm-80gb",)
    )
    changed = {path.stem for path in write_fit(fit, folder, "a test")}
    assert changed == {"h100-sxm-80gb", "h200-sxm-141gb", "default"}

    def entry(stem: str, *keys: str) -> dict:
        found = yaml.safe_load((folder / f"{stem}.yaml").read_text(encoding="utf-8"))
        for key in keys:
            found = found[key]
        return found

    before = load_profile("h100")
    assert entry("h100-sxm-80gb", "gemm_tflops", "bf16")["value"] == pytest.approx(
        0.9 * before.gemm["bf16"].value / 1e12, rel=1e-3
    )
    assert entry("h100-sxm-80gb", "gemm_tflops", "bf16")["kind"] == "fitted"
    assert entry("h200-sxm-141gb", "gemm_tflops", "bf16")["kind"] == "assumed"
    assert entry("default", "memory_share")["value"] == pytest.approx(1.1 * before.value("memory_share"), rel=1e-3)
    assert entry("default", "memory_share")["source"].startswith("a test; started from: ")


def test_quantiles_hold_four_in_five_left_out_runs() -> None:
    runs = [run for run in published_runs()[0] if run.group == "dgxc"]
    errors = np.linspace(-0.1, 0.1, len(runs))
    found = quantiles(runs, errors)["dense-fitted"]
    inside = sum(found["low"] <= 1 / (1 + error) <= found["high"] for error in errors)
    assert inside / len(runs) == pytest.approx(0.8, abs=0.03)
    assert found["n"] == len(runs)
    assert quantiles(runs[:3], errors[:3]) == {}
