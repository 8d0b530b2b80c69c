"""Process groups of torchrun whose ranks only act: outcomes, limits, budget, resume, and that nobody survives."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("psutil")
pytest.importorskip("torch")

import jsonschema
import psutil

from advisor.errors import InputError
from advisor.trial.job import Drive
from advisor.trial.local import Local
from advisor.trial.processes import Limits
from advisor.trial.runner import Rules, run_trials
from advisor.trial.store import Store
from advisor.trial.trials import read_trials
from tests.trial.layouts import write_estimate

pytestmark = pytest.mark.real

ACTING = (str(Path(__file__).parent / "acting.py"),)
DRIVE = Drive("cpu", steps=4, warmup=1, profile_steps=0)
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "presets" / "schemas" / "trial.schema.json").read_text())


@pytest.fixture
def trials(tmp_path):
    return read_trials(write_estimate(tmp_path, "dense", 2, tp=2), 1, DRIVE, None)[0]


def act(tmp_path: Path, **acts: str) -> Store:
    store = Store(tmp_path / "out")
    (store.folder / "act.json").write_text(json.dumps({name.removeprefix("r"): what for name, what in acts.items()}))
    return store


def run(trials, store, tell=lambda *_: None, **rules):
    limits = rules.pop("limits", Limits())
    return list(run_trials(trials, store, Rules(limits, backend=Local(ACTING), **rules), tell))


def alive(store: Store) -> list[int]:
    """Ranks of all attempts that still live."""
    found = []
    for path in store.folder.glob("*/*/progress-*.jsonl"):
        pid = json.loads(path.read_text().splitlines()[0])["pid"]
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            found.append(pid)
    return found


def gone(store: Store, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while alive(store) and time.monotonic() < end:
        time.sleep(0.1)
    return not alive(store)


def test_a_measured_trial_is_recorded_and_resumed(tmp_path, trials):
    store = act(tmp_path)
    (first,) = run(trials, store)
    record = first.record
    assert record["outcome"] == "measured"
    assert record["measured"]["steps_s"] == [0.01] * 4
    assert record["measured"]["losses"] == [4.0, 3.0, 2.0, 1.0]
    assert record["measured"]["tokens_per_s_per_gpu"] == pytest.approx(8 * 32 / 0.01 / 2)
    assert record["measured"]["peak_resident_bytes"] == 1001
    assert record["ratio"] == pytest.approx(0.01 / record["predicted"]["step_s"])
    assert record["inside"] == (record["predicted"]["low_s"] <= 0.01 <= record["predicted"]["high_s"])
    folder = Path(record["folder"])
    assert {"job.json", "command", "stdout", "stderr", "logs"} <= {path.name for path in folder.iterdir()}
    assert "torch.distributed.run" in (folder / "command").read_text()
    (again,) = run(trials, store, resume=True)
    assert not again.fresh
    assert again.record["key"] == record["key"]
    assert len(store.records()) == 1


@pytest.mark.parametrize(
    ("outcome", "fresh"), [("oom", False), ("hang", False), ("cancelled", True), ("preempted", True)]
)
def test_a_resumed_call_runs_again_what_was_cut_off_from_outside(tmp_path, trials, outcome, fresh):
    store = act(tmp_path)
    (first,) = run(trials, store)
    store.append({**first.record, "outcome": outcome, "measured": None})
    (again,) = run(trials, store, resume=True)
    assert again.fresh is fresh
    store.append({**first.record, "schema_version": 0})
    (again,) = run(trials, store, resume=True)
    assert again.fresh


def test_a_disk_that_is_full_is_an_error_of_the_folder_and_leaves_nobody(tmp_path, trials, monkeypatch):
    store = act(tmp_path, r0="deaf", r1="deaf")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(InputError, match=r"/1: No space left on device") as problem:
        run(trials, store, tell=full)
    assert "room" in problem.value.hint
    assert gone(store)


def test_a_crash_names_its_rank_and_the_next_trial_runs(tmp_path, trials):
    store = act(tmp_path, r1="crash")
    crashed, other = run([trials[0], trials[0]], store)
    for one in (crashed, other):
        jsonschema.validate(one.record, {"$ref": "#/$defs/record", "$defs": SCHEMA["$defs"]})
        assert one.record["outcome"] == "crash"
        assert one.record["failure"]["rank"] == 1
        assert one.record["inside"] is None
        assert any("the act says so" in line for line in one.record["failure"]["excerpt"])
    assert Path(crashed.record["folder"]) != Path(other.record["folder"])


def test_a_killed_rank_is_the_one_that_is_named(tmp_path, trials):
    store = act(tmp_path, r1="kill", r0="hang")
    (one,) = run(trials, store)
    assert one.record["outcome"] in {"crash", "oom"}
    assert one.record["failure"]["rank"] == 1
    assert one.record["failure"]["exit_code"] in {-9, 137}
    assert gone(store)


def test_a_hang_ends_at_the_step_timeout_and_nobody_survives(tmp_path, trials):
    store = act(tmp_path, r1="deaf")
    (one,) = run(trials, store, limits=Limits(step_s=3.0))
    assert one.record["outcome"] == "hang"
    assert one.record["failure"]["rank"] == 1
    assert "step 1" in one.record["failure"]["message"]
    assert gone(store)


def test_a_trial_that_is_stopped_early_is_measured_by_its_steps(tmp_path):
    plan = write_estimate(tmp_path, "dense", 2, tp=2)
    (trial,), _ = read_trials(plan, 1, Drive("cpu", steps=100_000, warmup=1), None)
    store = act(tmp_path)
    (one,) = run([trial], store, tell=lambda _, progress: len(progress.steady_s) >= 5)
    assert one.record["outcome"] == "measured"
    assert one.record["ending"] == "stopped"
    assert 5 <= len(one.record["measured"]["steps_s"]) < 1000
    assert gone(store)


def test_a_spent_budget_leaves_trials_for_a_resumed_call(tmp_path, trials):
    store = act(tmp_path, r0="late", r1="late")
    cut, never = run([trials[0], trials[0]], store, budget_s=2.0)
    assert (cut.record, never.record) == (None, None)
    assert store.records() == []
    assert len(list((store.folder / trials[0].name).iterdir())) == 1
    assert gone(store)


def started(tmp_path: Path, store: Store, plan: Path) -> subprocess.Popen[bytes]:
    """A process that runs a trial whose ranks hang, once they do."""
    code = (
        "import sys; from pathlib import Path; from tests.trial.test_runner import *;"
        "trials, _ = read_trials(Path(sys.argv[1]), 1, DRIVE, None);"
        "run(trials, Store(Path(sys.argv[2])))"
    )
    words = [sys.executable, "-c", code, str(plan), str(store.folder)]
    runner = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 120
    while len(alive(store)) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert len(alive(store)) == 2
    return runner


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill-9", "ctrl-c"])
def test_no_rank_survives_the_runner(tmp_path, how):
    store = act(tmp_path, r0="deaf", r1="deaf")
    runner = started(tmp_path, store, write_estimate(tmp_path, "dense", 2, tp=2))
    time.sleep(0.5)
    os.kill(runner.pid, how)
    runner.wait(timeout=30)
    assert gone(store), f"survivors: {alive(store)}"
