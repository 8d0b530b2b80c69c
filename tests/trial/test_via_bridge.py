"""Trials through Megatron-Bridge: the command, what a host lacks, and logs in the words of the real framework."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import advisor
from advisor.configure.chosen import read_plan
from advisor.export.overrides import overrides
from advisor.export.subject import subject
from advisor.trial import via_bridge
from advisor.trial.via_bridge import make_recipe, run_recipe, short_run

# The form of training/utils/train_utils.py of megatron-bridge 0.3.1.
REPORT = (
    " [2026-01-01 00:00:{second:02d}] iteration {number:8d}/      22 | consumed samples: {samples:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 400.0 |"
    " learning rate: 3.000000E-04 | global batch size: {gbs:5d} | lm loss: 1.100000E+01 | loss scale: 1.0 |"
    " grad norm: 2.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
MEMORY = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 20000.0 | max allocated: {mb:.1f} | reserved: 30000.0"


@pytest.fixture
def plan(tmp_path):
    found = advisor.estimate("llama3-8b", gpus=8, tp=2, tp_overlap=True, gbs=64, seq_len=8192, mbs=1)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found.to_dict()))
    return path


def log(plan: Path, name: str = "job.log", *, slower: float = 1.0, more: tuple[str, ...] = ()) -> Path:
    """What a run of the plan prints, `slower` times its predicted step."""
    chosen = read_plan(plan)
    ms = 1e3 * chosen.step.step_s * slower
    reports = [
        REPORT.format(second=i, number=i, samples=64 * i, ms=5 * ms if i < 3 else ms, gbs=64) for i in range(1, 23)
    ]
    mb = chosen.candidate.memory.peak_allocated_bytes / 2**20
    path = plan.with_name(name)
    path.write_text("\n".join([*more, reports[0], MEMORY.format(mb=mb), *reports[1:]]) + "\n")
    return path


def test_a_dry_run_prints_the_command_with_the_overrides_of_export(cli, plan, tmp_path):
    args = ["trial", str(plan), "--via", "bridge", "--dry-run", "--steps", "20", "--warmup", "2"]
    found = json.loads(cli(*args, "--format", "json").out)
    made = subject(read_plan(plan), "bridge-overrides", None)
    exported = [word for _, group in overrides(made) for word in group]
    assert found["overrides"] == [*exported, *short_run(made.version, 20, 2)]
    assert found["recipe"] == "llama3_8b_pretrain_config"
    assert {"train.train_iters=22", "logger.log_interval=1", "checkpoint.save=null"} <= set(found["overrides"])
    words = shlex.split(found["command"])
    assert words[0] == "torchrun"
    assert "--nproc-per-node=8" in words
    assert words[words.index("scripts/training/run_recipe.py") + 1 :] == [
        "--recipe",
        found["recipe"],
        *found["overrides"],
    ]
    assert found["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"]
    table = cli(*args)
    assert table.code == 0
    assert "".join(table.out.split()) == "".join(found["command"].split())
    assert not (tmp_path / "trials").exists()


def test_evaluation_is_off_in_the_section_of_each_version():
    assert "train.eval_iters=0" in short_run("0.3", 5, 1)
    assert "validation.eval_iters=0" in short_run("0.6", 5, 1)


def test_a_host_without_bridge_says_so_once(cli, plan, monkeypatch):
    monkeypatch.setattr(via_bridge, "installed_version", lambda: None)
    ran = cli("trial", str(plan), "--via", "bridge")
    assert ran.code == 3
    assert "Megatron-Bridge is not installed on this host" in ran.err
    assert "--dry-run" in ran.err
    assert ran.out == ""


def test_what_else_a_host_may_lack(cli, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(via_bridge, "installed_version", lambda: "0.3.1")
    monkeypatch.setattr(via_bridge, "find_spec", lambda _: object())
    ran = cli("trial", str(plan), "--via", "bridge", "--bridge-script", str(tmp_path / "none.py"))
    assert (ran.code, "--bridge-script PATH" in ran.err) == (3, True)
    script = tmp_path / "run_recipe.py"
    script.write_text("")
    ran = cli("trial", str(plan), "--via", "bridge", "--bridge-script", str(script))
    assert (ran.code, "the plan is for 8 GPUs, this host has 0" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--via", "bridge", "--ab", "tp_overlap"], "--ab is for the worker"),
        (["--via", "bridge", "--proxy-layers", "4"], "--proxy-layers is for the worker"),
        (["--via", "bridge", "--backend", "slurm"], "--backend is for the worker"),
        (["--log", "job.log"], "--log is for a recipe of Bridge"),
        (["--via", "brigde"], "bridge"),
        (["--via", "bridge", "--log", "/nowhere/job.log"], "/nowhere/job.log"),
    ],
)
def test_bad_input(cli, plan, args, words):
    ran = cli("trial", str(plan), *args)
    assert ran.code == 2
    assert words in ran.err


def test_a_model_without_a_recipe_is_refused(cli, tmp_path):
    found = advisor.estimate("grok-1", gpus=64, ep=8, tp=8, gbs=64)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found.to_dict()))
    ran = cli("trial", str(path), "--via", "bridge", "--dry-run")
    assert ran.code == 2
    assert "recipe" in ran.err or "express" in ran.err


def test_a_log_that_is_as_planned(cli, plan):
    ran = cli("trial", str(plan), "--via", "bridge", "--log", str(log(plan)), "--format", "json")
    assert ran.code == 0, ran.out + ran.err
    found = json.loads(ran.out)
    assert found["outcome"] == "as planned"
    assert found["measured"]["step"]["median_s"] == pytest.approx(read_plan(plan).step.step_s, rel=1e-3)
    assert {one["name"]: one["inside"] for one in found["compared"]} == {"step_s": True, "peak_allocated_bytes": True}


def test_a_slow_run_and_a_lost_overlap_are_negative(cli, plan):
    slow = cli("trial", str(plan), "--via", "bridge", "--log", str(log(plan, slower=2.0)), "--format", "json")
    assert (slow.code, json.loads(slow.out)["outcome"]) == (1, "outside")
    lost = log(plan, more=(
        "WARNING:root:Disabling tensor parallel communication overlap due to sequence_parallel=False.",
    ))  # fmt: skip
    ran = cli("trial", str(plan), "--via", "bridge", "--log", str(lost), "--format", "json")
    assert (ran.code, json.loads(ran.out)["outcome"]) == (1, "silently off")
    other = plan.with_name("other.log")
    other.write_text("nothing of a training job\n")
    assert cli("trial", str(plan), "--via", "bridge", "--log", str(other)).code == 2


@pytest.mark.real
def test_a_run_leaves_its_command_its_logs_and_why_it_failed(tmp_path):
    """The process group is real; in place of the recipe a script prints what one would print, or fails."""
    pytest.importorskip("torch")
    pytest.importorskip("psutil")
    from advisor.trial.processes import Limits
    from advisor.trial.store import Store

    found = advisor.estimate("llama3.2-1b", gpus=2, tp=2, tp_overlap=True, gbs=8, seq_len=2048)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found.to_dict()))
    one = make_recipe(read_plan(path), "0.3.1", 20, 2)
    script = tmp_path / "run_recipe.py"
    script.write_text(
        "import os, sys\nassert sys.argv[1] == '--recipe', sys.argv\nassert os.environ['CUDA_DEVICE_MAX_CONNECTIONS']\n"
        f"print({log(path).read_text()!r}, end='') if os.environ['RANK'] == '1' else None\n"
    )
    store = Store(tmp_path / "out")
    ran = run_recipe(one, script, store, Limits())
    assert ran.failure is None
    assert "--nproc-per-node=2" in (ran.folder / "command").read_text()
    assert any("iteration       22/" in Path(name).read_text() for name in ran.logs)
    script.write_text("raise RuntimeError('no kernel image is available')\n")
    failed = run_recipe(one, script, store, Limits())
    assert failed.failure is not None
    assert failed.folder != ran.folder
    assert any("no kernel image" in line for line in (failed.failure.message, *failed.failure.excerpt))
