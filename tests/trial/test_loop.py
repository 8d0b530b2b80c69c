"""The loop on this host, in small: measure, estimate, trial, resume, calibrate; mechanics, not figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.trial.layouts import write_model

pytestmark = pytest.mark.real
LAYOUTS = ({}, {"tp": 2}, {"pp": 2})


def test_the_loop_closes(cli, tmp_path):
    for package in ("megatron.core", "psutil", "scipy"):
        pytest.importorskip(package)
    system, out = tmp_path / "local-cpu.yaml", tmp_path / "trials"
    ran = cli("measure", "--ranks", "2", "--time", "0.002s", "--out", str(system), "--quiet")
    assert ran.code == 0, ran.err
    model = str(write_model(tmp_path, "dense"))
    plans = [estimate(cli, model, system, tmp_path / f"plan-{i}.json", layout) for i, layout in enumerate(LAYOUTS)]
    trial = ["--device", "cpu", "--steps", "3", "--warmup", "1", "--profile-steps", "0", "--out", str(out)]
    records = []
    for plan in plans:
        (record,) = json.loads(cli("trial", str(plan), *trial, "--format", "json").out)["trials"]
        assert record["outcome"] == "measured", record["failure"]
        assert record["predicted"]["low_s"] < record["predicted"]["step_s"] < record["predicted"]["high_s"]
        records.append(record)
    assert len({record["key"] for record in records}) == 3
    assert cli("trial", str(plans[0]), *trial, "--resume", "--quiet").code in {0, 1}
    assert len((out / "trials.jsonl").read_text().splitlines()) == 3
    check_calibration(cli, out, system, tmp_path / "mine.yaml", plans[0], model)


def estimate(cli, model: str, system: Path, path: Path, layout: dict[str, int]) -> Path:
    words = [word for name, value in layout.items() for word in (f"--{name}", str(value))]
    ran = cli(
        "estimate", "--model", model, "--gpus", "2", "--system", str(system), "--precision", "fp32", "--seq-len", "32",
        "--gbs", "8", "--cuda-graph", "none", "--out", str(path), "--quiet", *words,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return path


def check_calibration(cli, out: Path, system: Path, mine: Path, plan: Path, model: str) -> None:
    """The fit moves the profile, within bounds, in a file of its own that plans are made with."""
    before = system.read_text()
    ran = cli("calibrate", "--trials", str(out), "--out", str(mine), "--format", "json")
    assert ran.code == 0, ran.err
    (fit,) = json.loads(ran.out)["fits"]
    assert len(fit["trials"]) == 3
    assert fit["coefficients"]
    assert all(one["low"] <= one["value"] <= one["high"] for one in fit["coefficients"].values())
    assert all(row["error_left_out_pct"] is not None for row in fit["trials"])
    assert system.read_text() == before
    text = mine.read_text()
    assert text.startswith("# Calibrated by advisor calibrate --trials on 3 trials")
    moved = yaml.safe_load(text)["profile"]["fitted"]
    assert {name.removeprefix("gemm_tflops.") for name in fit["coefficients"]} <= {*moved, *moved["gemm_tflops"]}
    again = json.loads(estimate(cli, model, mine, mine.with_name("again.json"), {}).read_text())
    step = again["candidate"]["step"]["step_s"]
    assert step != pytest.approx(json.loads(plan.read_text())["candidate"]["step"]["step_s"], rel=1e-6)
    row = fit["trials"][0]
    assert step == pytest.approx(row["measured_step_s"] * (1 + row["error_after_pct"] / 100), rel=1e-3)
