"""The verbs trial and tune on the command line: what they refuse, a dry run, and one real trial end to end."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.trial.layouts import write_estimate, write_plan

SCHEMA = json.loads((Path(__file__).parents[2] / "presets" / "schemas" / "trial.schema.json").read_text())


def test_a_dry_run_says_the_commands_and_runs_nothing(cli, tmp_path):
    plan = write_plan(tmp_path, "dense", 2, top=3)
    out = tmp_path / "out"
    ran = cli("trial", str(plan), "--device", "cpu", "--dry-run", "--format", "json", "--out", str(out))
    assert ran.code == 0
    answer = json.loads(ran.out)
    assert [row["ranks"] for row in answer["trials"]] == [2, 2, 2]
    assert all("torch.distributed.run" in row["command"] for row in answer["trials"])
    assert not out.exists()
    table = cli("trial", str(plan), "--device", "cpu", "--dry-run")
    assert answer["trials"][0]["name"] in table.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--budget", "soon"], "no length of time"),
        (["--budget", "0m"], "no length of time"),
        (["--steps", "1"], "steps"),
        (["--backend", "slrum"], "backend"),
        (["--proxy-layers", "99"], "proxy"),
        (["--step-timeout", "1d2"], "no length of time"),
    ],
)
def test_bad_input(cli, tmp_path, args, words):
    plan = write_plan(tmp_path, "dense", 2)
    ran = cli("trial", str(plan), "--device", "cpu", "--dry-run", *args)
    assert ran.code == 2
    assert words in ran.err


def test_no_plan(cli, tmp_path):
    assert cli("trial", str(tmp_path / "none.json")).code == 2
    (tmp_path / "other.json").write_text("{}")
    for verb in ("trial", "tune"):
        ran = cli(verb, str(tmp_path / "other.json"))
        assert ran.code == 2
        assert "neither a plan nor an estimate" in ran.err


@pytest.mark.real
def test_a_plan_for_many_gpus_cannot_run_here(cli, tmp_path):
    plan = write_estimate(tmp_path, "dense", 64, gbs=64)
    ran = cli("trial", str(plan), "--device", "cpu", "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert "64 GPUs" in ran.err


@pytest.mark.real
def test_a_real_trial_from_plan_to_record(cli, tmp_path):
    pytest.importorskip("megatron.core")
    plan, out = write_estimate(tmp_path, "moe", 1, dispatcher="alltoall", gbs=2), tmp_path / "out"
    args = ["trial", str(plan), "--device", "cpu", "--steps", "4", "--warmup", "1", "--out", str(out)]
    ran = cli(*args, "--format", "json", "--proxy-layers", "2")
    jsonschema.validate(json.loads(ran.out), SCHEMA)
    (record,) = json.loads(ran.out)["trials"]
    assert record["outcome"] == "measured", record["failure"]
    assert ran.code == (0 if record["inside"] else 1)
    assert record["proxy"] == {"layers": 2, "gbs": 2, "num_microbatches": 2}
    assert len(record["measured"]["steps_s"]) == 4
    assert record["measured"]["peak_resident_bytes"] > 100e6
    assert record["effective"]["num_layers"] == 2
    assert record["environment"]["megatron_core"]
    factor = record["measured"]["step_s"] / record["predicted"]["step_s"]
    assert record["full"]["factor"] == pytest.approx(factor)
    assert record["full"]["step_s"] == pytest.approx(record["candidate"]["step"]["step_s"] * factor)
    again = cli(*args, "--proxy-layers", "2", "--resume")
    assert f"{record['name']} *" in again.out
    assert len((out / "trials.jsonl").read_text().splitlines()) == 1
