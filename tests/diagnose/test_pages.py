"""The page of a diagnosis as reviewable text, and advice from the plan of the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
OOM = (
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of "
    "79.11 GiB of which 0.51 GiB is free. Of the allocated memory 75.10 GiB is allocated by PyTorch, and 1.20 GiB is "
    "reserved by PyTorch but unallocated.\n"
)


@pytest.mark.parametrize("name", ["ecc_rank12", "ib_retry_exceeded", "pp_recv_timeout_rotating"])
def test_page(cli, golden, monkeypatch, name):
    monkeypatch.chdir(DATA)
    ran = cli("diagnose", f"{name}.log", "--verbose")
    assert ran.code == 1
    golden(f"diagnose_{name}.txt", f"$ advisor diagnose {name}.log --verbose\n{ran.out}{ran.err}")


@pytest.fixture
def oom(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(OOM, encoding="utf-8")
    return str(path)


def test_advice_knows_the_plan(cli, oom, tmp_path):
    plan = tmp_path / "plan.json"
    layout = ("--model", "qwen3-30b-a3b", "--gpus", "16", "--tp", "2", "--ep", "8", "--mbs", "2", "--gbs", "256")
    cli("estimate", *layout, "--out", str(plan))
    ran = cli("diagnose", oom, "--plan", str(plan), "--format", "json")
    advice = json.loads(ran.out)["advice"]
    assert ran.code == 1
    peak = json.loads(plan.read_text(encoding="utf-8"))["candidate"]["memory"]["peak_device_gib"]
    assert advice[0].startswith(f"the plan predicted a peak of {peak:.3g} GiB")
    assert any("frees" in line and "predicted peak" in line for line in advice[1:])
    assert advice[1] in cli("diagnose", oom, "--plan", str(plan)).out.replace("\n", " ")


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"request": 1, "candidate": 2}', '{"request": {}, "candidates": []}', "\x00", "[" * 100_000],
)
def test_a_file_that_is_no_plan(cli, oom, tmp_path, content):
    plan = tmp_path / "plan.json"
    plan.write_text(content, encoding="utf-8")
    ran = cli("diagnose", oom, "--plan", str(plan))
    assert ran.code == 2
    assert "plan.json" in ran.err


def test_a_plan_that_is_missing(cli, oom):
    assert cli("diagnose", oom, "--plan", "nowhere.json").code == 2
