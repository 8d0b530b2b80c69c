"""The study: order, constraint, stopping, storages, and that a killed worker loses no finished trial."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna")
pytest.importorskip("psutil")

from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.trial.job import Drive
from advisor.trial.progress import Progress
from advisor.trial.study import best_of, clear_stale, contenders, finished, hopeless, open_study, pool_of, tune
from tests.trial.layouts import write_plan

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
DRIVE = Drive("cpu")


def make_pool(folder: Path, model: str = "dense"):
    plan = write_plan(folder, model, 4)
    return pool_of(read_plan(plan).request, str(plan), DRIVE, 60)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return make_pool(tmp_path_factory.mktemp("pool"))


def record(trial, rate: float | None, outcome: str = "measured"):
    measured = None if rate is None else {"tokens_per_s_per_gpu": rate, "peak_reserved_bytes": None, "spread": 0.01}
    return {"key": trial.key, "folder": "x", "outcome": outcome, "measured": measured}


def proportional(trial, factor: float = 0.5):
    """A machine on which everything is half as fast as predicted."""
    return record(trial, trial.predicted.tokens_per_s_per_gpu * factor)


def storages(folder: Path) -> dict[str, str]:
    return {"sqlite": f"sqlite:///{folder / 'study.db'}", "journal": f"journal:{folder / 'study.log'}"}


def test_the_pool_is_in_the_order_of_prediction_and_no_job_twice(pool):
    rates = [trial.predicted.tokens_per_s_per_gpu for trial in pool]
    assert len(pool) > 8
    assert all(later <= before * 1.011 for before, later in itertools.pairwise(rates))
    assert len({trial.key for trial in pool}) == len(pool)
    assert all(trial.candidate.layout.cp == 1 for trial in pool)


def test_the_best_predicted_are_tried_first_and_none_twice(pool):
    study = open_study("a", None, len(pool), 0)
    tried = list(tune(study, pool, 8, lambda trial: record(trial, 1000.0 + pool.index(trial))))
    indices = [one.index for one in tried]
    assert indices[:3] == [0, 1, 2]
    assert len(set(indices)) == len(indices) == 8


def test_it_finds_a_layout_that_prediction_ranks_low(pool):
    """Where the measured order is the reverse of the predicted one, nothing is ruled out and the sampler goes there."""
    study = open_study("b", None, len(pool), 1)
    tried = list(tune(study, pool, 12, lambda trial: record(trial, 1e3 * 1.5 ** pool.index(trial))))
    assert len(tried) == 12
    assert max(one.index for one in tried) >= len(pool) // 2
    assert best_of(study).params["candidate"] == max(one.index for one in tried)


def test_it_stops_when_no_interval_reaches_the_best(pool):
    study = open_study("c", None, len(pool), 0)
    list(tune(study, pool, len(pool), proportional))
    assert contenders(study, pool) == []
    best = best_of(study).value
    rates = [trial.predicted.tokens_per_s_per_gpu * 0.5 for trial in pool]
    assert best == pytest.approx(max(rates))
    assert len(finished(study)) < len(pool)


def test_out_of_memory_is_a_failed_trial_and_never_the_best(pool):
    def run(trial):
        return record(trial, None, "oom") if trial is pool[0] else proportional(trial)

    study = open_study("d", None, len(pool), 0)
    tried = list(tune(study, pool, 4, run))
    assert tried[0].value is None
    assert [trial.user_attrs["outcome"] for trial in finished(study)].count("oom") == 1
    assert best_of(study).params["candidate"] != 0


def test_measured_memory_over_the_budget_is_infeasible(pool):
    def run(trial):
        found = proportional(trial, 9.0 if trial is pool[0] else 0.5)
        reserved = trial.candidate.memory.budget_bytes * (1.2 if trial is pool[0] else 0.5)
        return {**found, "measured": {**found["measured"], "peak_reserved_bytes": reserved}}

    study = open_study("e", None, len(pool), 0)
    list(tune(study, pool, 4, run))
    assert best_of(study).params["candidate"] != 0
    assert study.best_trial.params["candidate"] != 0


@pytest.mark.parametrize(
    ("steps", "factor", "expected"),
    [
        ([2.0, 2.1, 2.0, 1.9, 2.0], 1.0, True),
        ([2.0, 2.1, 2.0, 1.9], 1.0, False),
        ([0.9, 1.1, 1.0, 0.9, 1.1], 1.0, False),
        ([0.5, 3.5, 0.6, 2.9, 0.5, 3.0], 1.0, False),
        ([2.0] * 5, 2.5, False),
    ],
    ids=["slower", "too few", "level", "too noisy", "faster"],
)
def test_only_what_is_surely_slower_is_stopped(tmp_path, pool, steps, factor, expected):
    """The best takes `factor` seconds per step."""
    progress = Progress(tmp_path, reached={0: {}, 1: {}}, steady={0: steps, 1: [0.1] * len(steps)})
    layout = pool[0].run_candidate.layout
    best = layout.gbs * pool[0].run_request.workload.seq_len / layout.gpus / factor
    assert hopeless(pool[0], progress, best) is expected
    assert not hopeless(pool[0], progress, None)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_killed_worker_loses_no_finished_trial(tmp_path, kind):
    pool = make_pool(tmp_path)
    storage = storages(tmp_path)[kind]
    code = (
        "import sys, time; from pathlib import Path; from tests.trial.test_study import *\n"
        "pool = make_pool(Path(sys.argv[1]))\n"
        "study = open_study('s', sys.argv[2], len(pool), 0)\n"
        "done = Path(sys.argv[1]) / 'done'\n"
        "def run(trial):\n"
        "    if len(finished(study)) == 3:\n"
        "        done.write_text('3')\n"
        "        time.sleep(600)\n"
        "    return record(trial, 1000.0)\n"
        "list(tune(study, pool, 10, run))\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), storage], cwd=ROOT)
    end = time.monotonic() + 120
    while not (tmp_path / "done").exists() and time.monotonic() < end:
        assert worker.poll() is None
        time.sleep(0.05)
    running = [t.state.name for t in open_study("s", storage, len(pool), 0).get_trials()]
    assert running.count("RUNNING") == 1, "a living worker's trial is left alone"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    study = open_study("s", storage, len(pool), 0)
    states = [trial.state.name for trial in study.get_trials()]
    assert states.count("COMPLETE") == 3
    assert "RUNNING" not in states
    tried = list(tune(study, pool, 6, lambda trial: record(trial, 1000.0)))
    assert len(finished(study)) == 6
    assert len(tried) == 3
    assert clear_stale(study) == 0


def test_two_studies_over_different_lists_do_not_mix(tmp_path, pool):
    storage = storages(tmp_path)["sqlite"]
    open_study("s", storage, len(pool), 0)
    with pytest.raises(InputError, match="candidates"):
        open_study("s", storage, len(pool) + 1, 0)


@pytest.mark.parametrize("storage", ["mysql://x", "journal:/nowhere/at/all/log", "sqlite:////nowhere/at/all.db", "x"])
def test_a_storage_that_cannot_be_opened_is_an_input_error(storage):
    with pytest.raises(InputError, match="--storage"):
        open_study("s", storage, 3, 0)
