"""Several workers on one study: real processes, one storage, no job twice, and what kill -9 leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("optuna")
pytest.importorskip("psutil")

from advisor.configure.chosen import read_plan
from advisor.trial.asking import OWNER, begin, claim, is_stale
from advisor.trial.job import Drive
from advisor.trial.study import finished, open_study, pool_of, tune
from advisor.trial.workers import in_workers, share_of_gpus
from tests.trial.layouts import write_estimate, write_plan
from tests.trial.test_study import make_space, record, storages

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
WORKER = """
import sys, time
from pathlib import Path
from tests.trial.test_workers import *
folder, storage, number, trials = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
home = folder / f"worker-{number}"
home.mkdir(exist_ok=True)
space = make_space(home)
study = open_study("s", storage, space.pool, number)
(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
def run(trial):
    with (folder / "ran").open("a") as file:
        file.write(f"{number} {trial.key}\\n")
    time.sleep(0.2 if number or not (folder / "hold").exists() else 600)
    return record(trial, 1000.0)
list(tune(study, space, trials, run))
"""


def start(folder: Path, storage: str, count: int, trials: int) -> list[subprocess.Popen]:
    """Workers that begin at the same moment."""
    words = [sys.executable, "-c", WORKER, str(folder), storage]
    workers = [subprocess.Popen([*words, str(number), str(trials)], cwd=ROOT) for number in range(count)]
    until(lambda: all((folder / f"ready-{number}").exists() for number in range(count)))
    (folder / "go").touch()
    return workers


def until(holds, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def ran(folder: Path) -> list[tuple[str, str]]:
    path = folder / "ran"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_no_job_runs_twice_and_no_trial_too_many(tmp_path, kind):
    storage = storages(tmp_path)[kind]
    space = make_space(tmp_path)
    open_study("s", storage, space.pool, 0)
    workers = start(tmp_path, storage, 3, 12)
    assert [worker.wait(timeout=200) for worker in workers] == [0, 0, 0]
    done = ran(tmp_path)
    assert len(done) == 12
    assert max(Counter(key for _, key in done).values()) == 1
    assert len({number for number, _ in done}) > 1
    study = open_study("s", storage, space.pool, 0)
    assert len(finished(study)) == 12
    assert sorted(trial.user_attrs["key"] for trial in finished(study)) == sorted(key for _, key in done)


def test_a_killed_worker_leaves_its_trial_to_the_others(tmp_path):
    storage = storages(tmp_path)["journal"]
    (tmp_path / "hold").touch()
    workers = start(tmp_path, storage, 2, 6)
    until(lambda: len(ran(tmp_path)) >= 3 and any(number == "0" for number, _ in ran(tmp_path)))
    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].wait()
    assert workers[1].wait(timeout=200) == 0
    space = make_space(tmp_path)
    study = open_study("s", storage, space.pool, 0)
    done = ran(tmp_path)
    (lost,) = [key for number, key in done if number == "0"]
    assert all(count == (2 if key == lost else 1) for key, count in Counter(key for _, key in done).items())
    assert len(finished(study)) == 6
    assert "RUNNING" not in [trial.state.name for trial in study.get_trials()]
    assert list(tune(study, space, 6, lambda trial: record(trial, 1.0))) == []


def test_the_earlier_claim_holds_whoever_writes_first(tmp_path):
    study = open_study("s", storages(tmp_path)["journal"], (), 0)
    first, second = begin(study), begin(study)
    assert claim(study, first, "job", 10) == "mine"
    assert claim(study, second, "job", 10) == "taken"
    assert claim(study, begin(study), "other", 10) == "mine"
    assert claim(study, begin(study), "third", 2) == "enough"


def test_a_worker_of_another_host_is_stale_when_it_is_silent(tmp_path):
    study = open_study("s", storages(tmp_path)["journal"], (), 0)
    trial = begin(study)
    trial.set_user_attr(OWNER, {"host": "elsewhere", "pid": 1, "begun": 0.0})
    (frozen,) = study.get_trials()
    assert not is_stale(frozen)
    trial.set_user_attr("seen", time.time() - 3600)
    (frozen,) = study.get_trials()
    assert is_stale(frozen)


def test_workers_end_with_the_exception_of_their_parent_and_say_nothing(tmp_path, capfd):
    def work(number: int) -> int:
        (tmp_path / f"{number}-{os.getpid()}").touch()
        time.sleep(600)
        return 0

    def look() -> None:
        if len(list(tmp_path.iterdir())) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_workers(2, work, look)
    assert not any(Path(f"/proc/{path.name.partition('-')[2]}").exists() for path in tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_exit_codes_tell_which_worker_was_killed():
    assert in_workers(2, lambda number: os.kill(os.getpid(), 9) if number else 0, lambda: None) == (0, -9)


def test_an_error_of_a_worker_is_told_without_a_traceback(tmp_path):
    """Files stand where the folders of trials would be made."""
    pytest.importorskip("megatron.core")
    plan, out = write_estimate(tmp_path, "dense", 1, gbs=4), tmp_path / "out"
    out.mkdir()
    for trial in pool_of(read_plan(plan).request, str(plan), Drive("cpu", 3, 0, 0)):
        (out / trial.name).write_text("")
    words = [sys.executable, "-m", "advisor", "tune", str(plan), "--device", "cpu", "--workers", "2", "--steps", "3",
             "--warmup", "0", "--trials", "2", "--profile-steps", "0", "--out", str(out)]  # fmt: skip
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran.stderr
    assert "/1: Not a directory" in ran.stderr
    assert "worker 0 ended with 2" in ran.stderr


def test_workers_share_the_gpus():
    assert [share_of_gpus(["4", "5", "6", "7"], number, 2) for number in range(2)] == ["4,5", "6,7"]


def test_more_workers_than_the_host_holds(cli, tmp_path):
    plan = write_plan(tmp_path, "dense", 8)
    ran = cli("tune", str(plan), "--device", "cpu", "--workers", "3", "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert "--workers 2" in ran.err


def test_two_workers_measure_real_layouts(cli, tmp_path):
    pytest.importorskip("megatron.core")
    plan, out = write_estimate(tmp_path, "dense", 1, gbs=4), tmp_path / "out"
    words = ["tune", str(plan), "--device", "cpu", "--workers", "2", "--steps", "3", "--warmup", "0", "--trials", "2",
             "--profile-steps", "0", "--out", str(out), "--format", "json"]  # fmt: skip
    first = cli(*words)
    answer = json.loads(first.out)
    assert first.code == 0, first.err
    assert len(answer["trials"]) == 2
    assert {row["outcome"] for row in answer["trials"]} == {"measured"}
    keys = [json.loads(line)["key"] for line in (out / "trials.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 2
    assert (out / "study.log").exists()
    again = json.loads(cli(*words).out)
    assert (len(again["trials"]), again["fresh"]) == (2, [])
