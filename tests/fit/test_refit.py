"""Refitting is one command whose files are the same bytes every time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from advisor.fit import refit as command
from advisor.fit.calibrate import leave_out
from advisor.fit.dials import DIALS, fitted_profile
from advisor.fit.predict import Jobs
from advisor.fit.runs import Run, published_runs
from advisor.fit.validate import timed

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns("scripts", "__pycache__")
WRITTEN = (
    "factors.json",
    "intervals.yaml",
    "runs/predictions.csv",
    "fitted/default.yaml",
    "fitted/b200-sxm-180gb.yaml",
)


@pytest.fixture
def few():
    """Some runs of every kind that is fitted apart: one node of B200, one sweep of a stack of its own, small models."""
    runs = published_runs()[0]
    own = [run for run in runs if run.group == "aleph" and run.cluster.gpus == 32 and run.step_s is not None]
    small = [run for run in runs if run.group == "vtrain-single"]
    return [run for run in runs if run.group == "simumax-b200"] + own + small[::25]


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


@pytest.fixture
def refitted(tmp_path: Path, monkeypatch, few):
    """Files of a copy of the profiles after a refit to `few`; `share` is its `memory_share` before."""

    def made(share: str) -> dict[str, bytes]:
        folder = tmp_path / share
        shutil.copytree(ROOT / "profiles", folder, ignore=NOT_COPIED)
        path = folder / "fitted" / "default.yaml"
        text, changed = re.subn(
            r"(?m)^(memory_share: \{value: )[^,]+", rf"\g<1>{share}", path.read_text(encoding="utf-8")
        )
        assert changed == 1
        path.write_text(text, encoding="utf-8")
        monkeypatch.setenv("ADVISOR_PROFILES", str(folder))
        command.forget()
        command.refit(folder, few)
        return written(folder)

    yield made
    monkeypatch.undo()
    command.forget()


def test_a_refit_writes_the_same_bytes_whatever_was_committed(refitted) -> None:
    first, second = refitted("0.55"), refitted("0.65")
    assert first == second
    committed = written(ROOT / "profiles")
    for name in WRITTEN:
        assert first[name] != committed[name], f"{name}: fewer runs must give other numbers"


@pytest.mark.slow
def test_the_committed_files_are_what_the_command_writes(tmp_path: Path) -> None:
    """`make calibrate` in two processes with other hash seeds, on copies of the profiles."""
    for seed in ("1", "2"):
        folder = tmp_path / seed
        shutil.copytree(ROOT / "profiles", folder, ignore=NOT_COPIED)
        (folder / "runs" / "predictions.csv").write_text("", encoding="utf-8")
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "advisor.fit.refit", str(folder)], cwd=ROOT, env=environment, check=True)
        committed = written(ROOT / "profiles")
        assert {name: text for name, text in written(folder).items() if committed[name] != text} == {}


@pytest.mark.slow
def test_a_run_of_one_node_is_predicted_from_all_others() -> None:
    """simumax-b200 without the run itself: median and 90th percentile of the absolute error that are promised."""
    runs = [run for run in published_runs()[0] if run.group in command.FITTED_GROUPS and timed(run)]
    own = [run for run in runs if run.group == "simumax-b200"]

    def key(run: Run) -> str:
        return run.id if run.group == "simumax-b200" else "others"

    factors = leave_out(runs, {"run": key}).factors["run"]
    seconds = Jobs(own, key).seconds(lambda run: fitted_profile(run.cluster.gpu, DIALS, factors[key(run)]))
    errors = [100 * abs(one / (run.step_s or 0.0) - 1) for one, run in zip(seconds, own, strict=True)]
    assert np.quantile(errors, 0.5) <= 4
    assert np.quantile(errors, 0.9) <= 9
