"""What the guard ties together: a process and its starter, also where the starter is gone before it is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("psutil")
pytest.importorskip("torch")

import psutil

from advisor.trial.guard import STARTER
from tests.trial.layouts import write_estimate

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
GUARD = [sys.executable, "-m", "advisor.trial.guard"]


def tied(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_a_file_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside\nif __name__ == '__main__': print(beside.WORD, *sys.argv)")
    ran = tied([*GUARD, str(os.getpid()), str(script), "--steps", "3"])
    assert (ran.returncode, ran.stdout) == (0, f"beside {script} --steps 3\n"), ran.stderr


def test_what_begins_after_its_starter_has_died_ends_at_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ran = tied([*GUARD, "starter", str(script)], **{STARTER: str(dead.pid)})
    assert (ran.returncode, ran.stdout) == (1, "")
    assert tied([*GUARD, "starter", str(script)], **{STARTER: str(os.getpid())}).stdout == "ran\n"


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ranks(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [one for one in descendants(process) if one.ppid() != process.pid]


def until(true: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(true())


RUNNERS = {
    "worker": "from tests.trial.test_runner import *; trials, _ = read_trials(Path(sys.argv[1]), 1, DRIVE, None);"
              "run(trials, Store(Path(sys.argv[2])))",
    "recipe": "from advisor.trial.via_bridge import *; from advisor.configure.chosen import read_plan;"
              "one = make_recipe(read_plan(sys.argv[1]), '0.3.1', 20, 2);"
              "run_recipe(one, Path(sys.argv[3]), Store(Path(sys.argv[2])), Limits())",
}  # fmt: skip


def runner(tmp_path: Path, what: str) -> subprocess.Popen[bytes]:
    """A process that runs two ranks which hang: those of the worker's place, or of a recipe of Bridge."""
    out, script = tmp_path / "out", tmp_path / "run_recipe.py"
    out.mkdir()
    (out / "act.json").write_text(json.dumps({"0": "deaf", "1": "deaf"}))
    script.write_text("import time\ntime.sleep(600)")
    if what == "worker":
        plan = write_estimate(tmp_path, "dense", 2, tp=2)
    else:
        import advisor

        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(advisor.estimate("llama3.2-1b", gpus=2, tp=2, gbs=8, seq_len=2048).to_dict()))
    code = f"import sys; from pathlib import Path; {RUNNERS[what]}"
    words = [sys.executable, "-c", code, str(plan), str(out), str(script)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.parametrize("what", RUNNERS)
@pytest.mark.parametrize("moment", ["torchrun begins", "the first rank begins", "ranks run"])
def test_a_runner_that_is_killed_leaves_nobody(tmp_path, what, moment):
    process = runner(tmp_path, what)
    seen = ranks if moment != "torchrun begins" else descendants
    assert until(lambda: seen(process), 120), "nothing was started"
    if moment == "ranks run":
        time.sleep(2.0)
    family = descendants(process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    def left() -> list[psutil.Process]:
        return [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    until(lambda: not left(), 20)
    survivors = left()
    for one in survivors:
        one.kill()
    assert not survivors
