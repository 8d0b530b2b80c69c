"""`advisor validate` and `advisor calibrate` from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

HEADER = ["id", "model", "system", "gpus", "precision", "seq_len", "gbs", "mbs", "tp", "pp", "step_s", "oom"]
ROW_KEYS = {
    "id", "group", "model", "system", "gpus", "precision", "moe", "routing", "predicted_step_s", "low_s", "high_s",
    "measured_step_s", "error_pct", "predicted_peak_allocated_gib", "predicted_peak_device_gib",
    "measured_peak_allocated_gib", "verdict", "measured_oom", "flag", "skipped",
}  # fmt: skip
SUMMARY_KEYS = {
    "n", "skipped", "median_abs_error_pct", "p90_abs_error_pct", "bias_pct", "interval_coverage_pct", "kendall_tau",
    "top3_regret_pct", "memory_median_abs_error_pct", "oom_called_fits_pct", "fits_called_oom_pct",
}  # fmt: skip


def runs(folder: Path, *rows: list[str], name: str = "runs.csv") -> str:
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([HEADER, *rows])
    return str(path)


GOOD = ["a", "llama3-8b", "dgx-h100", "8", "bf16", "8192", "128", "1", "1", "2", "12.9", ""]
FAILED = ["b", "llama3-70b", "dgx-h100", "8", "bf16", "8192", "128", "1", "1", "1", "", "yes"]
BAD = ["c", "llama3-8b", "dgx-h100", "8", "bf16", "8192", "128", "1", "3", "1", "12.9", ""]


def test_own_runs_give_the_promised_json(cli, tmp_path: Path) -> None:
    ran = cli("validate", runs(tmp_path, GOOD, FAILED, BAD), "--format", "json")
    assert ran.code == 0
    found = json.loads(ran.out)
    good, failed, bad = found["rows"]
    assert all(set(row) >= ROW_KEYS for row in found["rows"])
    assert good["low_s"] < good["predicted_step_s"] < good["high_s"]
    assert good["error_pct"] == pytest.approx(100 * (good["predicted_step_s"] / 12.9 - 1))
    assert (good["verdict"], good["skipped"]) == ("fits", None)
    assert (failed["verdict"], failed["measured_oom"], failed["measured_step_s"]) == ("oom", True, None)
    assert bad["skipped"].startswith("line 4: ")
    own = found["summary"]["own"]
    assert set(own) >= SUMMARY_KEYS
    assert (own["n"], own["skipped"], own["oom_called_fits_pct"]) == (1, 1, 0.0)
    assert found["sweeps"] == []


def test_keys_are_the_promised_ones_and_names_of_what_else_is_known(cli, tmp_path: Path) -> None:
    found = json.loads(cli("validate", runs(tmp_path, GOOD, BAD), "--format", "json").out)
    assert set(found) == {"schema_version", "leave_out", "rows", "summary", "sweeps", "weak_scaling"}
    assert all(set(row) == ROW_KEYS | {"assumed"} for row in found["rows"])
    assert set(found["summary"]["own"]) == SUMMARY_KEYS | {"interval_half_width_pct"}


def test_flagged_rows_are_shown_apart_and_scored_nowhere(cli, tmp_path: Path) -> None:
    header = [*HEADER, "flag"]
    lines = [
        header,
        [*GOOD, ""],
        ["odd", *GOOD[1:], "check: another recipe"],
        ["out", *GOOD[1:], "exclude: broken clock"],
    ]
    path = tmp_path / "flagged.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(lines)
    found = json.loads(cli("validate", str(path), "--format", "json").out)
    assert found["summary"]["own"]["n"] == 1
    assert [row["flag"] for row in found["rows"]] == ["", "check: another recipe", "exclude: broken clock"]
    scored, apart = cli("validate", str(path)).out.split("Flagged runs, in no score")
    assert "odd" not in scored
    assert "out" not in scored.split("Runs", 1)[1]
    assert "check: another recipe" in apart
    assert "exclude: broken clock" in apart


def test_the_published_runs_are_the_default(cli) -> None:
    found = json.loads(cli("validate", "--group", "dgxc", "--leave-out", "model", "--format", "json").out)
    assert {"dgxc", "dgxc-dense"} == set(found["summary"])
    assert found["summary"]["dgxc-dense"]["median_abs_error_pct"] <= 2.5
    assert {row["group"] for row in found["rows"]} == {"dgxc"}


def test_hidden_rows_next_to_no_model_files_and_with_strange_cells(cli, tmp_path: Path) -> None:
    custom = [
        "x",
        "models/gpt-h1024-l12-a16.json",
        "dgx-a100-80gb",
        "8",
        "fp16",
        "1024",
        "16",
        "1",
        "1",
        "1",
        "0.2",
        "",
    ]
    strange = [
        [*GOOD[:4], "mxfp8", *GOOD[5:]], [*GOOD[:3], "0", *GOOD[4:]], [*GOOD[:10], "-1", ""], [*GOOD[:10], "nan", ""],
        [*GOOD[:6], "", *GOOD[7:]], ["d"],
    ]  # fmt: skip
    ran = cli("validate", runs(tmp_path, custom, *strange), "--format", "json")
    rows = json.loads(ran.out)["rows"]
    assert rows[0]["skipped"] is None
    assert all(row["skipped"] for row in rows[1:])
    assert len(rows) == 1 + len(strange)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--group", "nobody"), "nobody"),
        (("--leave-out", "colour"), "colour"),
        (("missing.csv",), "missing.csv"),
        (("--anchor", "missing.csv", "--group", "seqsel-t5"), "missing.csv"),
    ],
)
def test_wrong_arguments_are_told(cli, arguments: tuple[str, ...], said: str) -> None:
    ran = cli("validate", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_an_anchor_moves_rows_and_candidates_towards_what_was_measured(cli, tmp_path: Path) -> None:
    slow = [*GOOD[:10], "20", ""]
    other = ["z", *GOOD[1:6], "256", *GOOD[7:]]
    anchor = runs(tmp_path, slow, name="anchor.csv")
    plain, anchored = (
        json.loads(cli("validate", runs(tmp_path, other), *more, "--format", "json").out)["rows"][0]
        for more in ((), ("--anchor", anchor))
    )
    assert 1.2 < anchored["predicted_step_s"] / plain["predicted_step_s"] < 1.6
    common = ("estimate", "--model", "llama3-8b", "--gpus", "8", "--seq-len", "8192", "--gbs", "256", "--pp", "2")
    before, after = (
        json.loads(cli(*common, *more, "--format", "json").out)["candidate"] for more in ((), ("--anchor", anchor))
    )
    assert 1.2 < after["step"]["step_s"] / before["step"]["step_s"] < 1.6


def test_own_runs_calibrate_a_system_that_can_be_used(cli, tmp_path: Path) -> None:
    rows = [["r", *GOOD[1:6], str(gbs), *GOOD[7:10], str(0.13 * gbs), ""] for gbs in (64, 128, 256, 512)]
    out = tmp_path / "mine.yaml"
    ran = cli("calibrate", "--runs", runs(tmp_path, *rows), "--out", str(out), "--format", "json")
    assert ran.code == 0, ran.err
    errors = json.loads(ran.out)["median_abs_error_pct"]
    assert errors["after"] < errors["before"]
    fitted = yaml.safe_load(out.read_text(encoding="utf-8"))["profile"]["fitted"]
    assert fitted["gemm_tflops"]["bf16"]["kind"] == "fitted"
    before = json.loads(cli("validate", runs(tmp_path, *rows), "--format", "json").out)["rows"][0]
    mine = [[*row[:2], str(out), *row[3:]] for row in rows]
    after = json.loads(cli("validate", runs(tmp_path, *mine), "--format", "json").out)["rows"][0]
    assert abs(after["error_pct"]) < abs(before["error_pct"])


def test_calibrate_wants_one_kind_of_measurement(cli) -> None:
    ran = cli("calibrate")
    assert ran.code == 2
    assert "--runs" in ran.err
