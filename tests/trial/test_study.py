"""The study: order, constraint, stopping, storages, and that a killed worker loses no finished trial."""

from __future__ import annotations

import itertools
import os
import resource
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
from advisor.rules import findings
from advisor.trial.job import Drive
from advisor.trial.progress import Progress
from advisor.trial.space import KNOB_GAIN, KNOBS, Space, values_of
from advisor.trial.study import best_of, clear_stale, finished, hopeless, kept_at, open_study, pool_of, promising, tune
from advisor.trial.trials import make_trial
from tests.trial.layouts import write_estimate, write_plan

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
DRIVE = Drive("cpu")


def make_space(folder: Path, model: str = "dense") -> Space:
    plan = write_plan(folder, model, 4)
    return Space(pool_of(read_plan(plan).request, str(plan), DRIVE, 60), DRIVE)


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return make_space(tmp_path_factory.mktemp("pool"))


@pytest.fixture(scope="module")
def pool(space):
    return space.pool


def record(trial, rate: float | None, outcome: str = "measured"):
    measured = None if rate is None else {"tokens_per_s_per_gpu": rate, "peak_reserved_bytes": None, "spread": 0.01}
    return {"key": trial.key, "folder": "x", "name": trial.name, "outcome": outcome, "measured": measured}


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


def test_the_best_predicted_are_tried_first_and_none_twice(space, pool):
    study = open_study("a", None, pool, 0)
    tried = list(tune(study, space, 8, lambda trial: record(trial, 1000.0 + pool.index(trial))))
    indices = [one.index for one in tried]
    assert indices[:3] == [0, 1, 2]
    assert len(set(indices)) == len(indices) == 8


def test_it_finds_a_layout_that_prediction_ranks_low(space, pool):
    """Where the measured order is the reverse of the predicted one, nothing is ruled out and the sampler goes there."""
    study = open_study("b", None, pool, 1)
    place = {trial.key: index for index, trial in enumerate(pool)}
    tried = list(tune(study, space, 12, lambda trial: record(trial, 1e3 * 1.5 ** place.get(trial.key, 0))))
    assert len(tried) == 12
    assert max(one.index for one in tried) >= len(pool) // 2
    assert best_of(study).params["candidate"] == max(one.index for one in tried)


def test_it_stops_when_no_interval_reaches_the_best(pool):
    spread = sorted(pool, key=lambda trial: -trial.predicted.tokens_per_s_per_gpu)[::4]
    space = Space(spread, DRIVE)
    study = open_study("c", None, spread, 0)
    tried = list(tune(study, space, 400, proportional))
    assert promising(study, space) == {}
    assert len(tried) < 400
    assert len({one.index for one in tried}) < len(spread)
    rates = [trial.predicted.tokens_per_s_per_gpu * 0.5 for trial in spread]
    assert best_of(study).value >= max(rates) * (1 - 1e-9)


def pinned(knobs):
    """The settings that the knobs of a trial stand for, by the words of the study."""
    return {name: knobs[name] for name in KNOBS}


def test_whatever_is_asked_is_legal_fits_and_keeps_what_is_pinned(tmp_path):
    plan = write_plan(tmp_path, "moe", 8, gbs=16, fix="cuda_graph=none,fsdp=none,mbs=2,overlap_grad_reduce=on")
    request = read_plan(plan).request
    space = Space(pool_of(request, str(plan), DRIVE, 20), DRIVE)
    ran = []
    study = open_study("k", None, space.pool, 3)
    tried = list(tune(study, space, 60, lambda trial: ran.append(trial) or proportional(trial)))
    asked = [pinned(trial.params) for trial in finished(study)]
    assert len({trial.key for trial in ran}) == len(tried) > len({one.index for one in tried})
    assert {one["mbs"] for one in asked} == {2}
    assert {one["overlap_grad_reduce"] for one in asked} == {"on"}
    assert len({one["recompute"] for one in asked}) > 1
    assert len({one["bucket_size"] for one in asked}) > 1
    for trial, told in zip(ran, asked, strict=True):
        layout, knobs = trial.candidate.layout, trial.candidate.knobs
        stops = [one for one in findings(request.model, request.cluster, request.workload, layout, knobs)
                 if one.severity == "stop"]  # fmt: skip
        assert stops == []
        assert trial.candidate.memory.peak_device_bytes <= request.budget_bytes
        assert told == values_of(layout, knobs, trial.tuned)
        assert trial.job["ddp"].get("bucket_size", 0) == told["bucket_size"]
        assert trial.job["config"].get("recompute_modules", []) == list(knobs.recompute)


def test_no_row_breaks_a_rule_or_the_budget(tmp_path):
    """Pipelined experts: interleaving, overlap and recompute exclude each other in many combinations."""
    plan = write_plan(tmp_path, "moe", 8, gbs=16, fix="cuda_graph=none,fsdp=none,pp=2,ep=2")
    request = read_plan(plan).request
    space = Space(pool_of(request, str(plan), DRIVE, 3), DRIVE)
    rows = [row for index in range(len(space.pool)) for row in space.rows(index)]
    pairs = list(dict.fromkeys((row.layout, row.knobs) for row in rows))
    broken = [one for layout, knobs in pairs
              for one in findings(request.model, request.cluster, request.workload, layout, knobs)
              if one.severity == "stop"]  # fmt: skip
    assert broken == []
    assert len(pairs) > len(space.pool)
    assert {row.values["ep_overlap"] for row in rows if row.values["vpp"] == 1} == {"off"}
    assert all(row.step_s <= KNOB_GAIN * space.first(row.index).step_s for row in rows)


def test_sms_of_the_dispatcher_reach_the_configuration(tmp_path):
    drive = Drive("cuda")
    one = read_plan(write_estimate(tmp_path, "moe", 4, ep=4, dispatcher="deepep"))
    space = Space((make_trial("x", one.request, one.candidate, drive, None),), drive)
    row = next(row for row in space.rows(0) if row.values["dispatcher_sms"] == 24)
    assert space.trial(row).job["config"]["moe_deepep_num_sms"] == 24
    assert "moe_deepep_num_sms" not in space.pool[0].job["config"]
    assert space.trial(row).key != space.pool[0].key


def test_knobs_find_what_no_prediction_knows(space, pool):
    """A machine on which small buckets gain a tenth: the study comes to the one that does."""

    def run(trial):
        gain = 1.1 if trial.job["ddp"].get("bucket_size") == 1_000_000 else 1.0
        return proportional(trial, 0.5 * gain)

    study = open_study("g", None, pool, 0)
    list(tune(study, space, 40, run))
    assert best_of(study).params["bucket_size"] == 1_000_000


def test_out_of_memory_is_a_failed_trial_and_never_the_best(space, pool):
    def run(trial):
        return record(trial, None, "oom") if trial is pool[0] else proportional(trial)

    study = open_study("d", None, pool, 0)
    tried = list(tune(study, space, 4, run))
    assert tried[0].value is None
    assert [trial.user_attrs["outcome"] for trial in finished(study)].count("oom") == 1
    assert best_of(study).params["candidate"] != 0


def test_measured_memory_over_the_budget_is_infeasible(space, pool):
    def run(trial):
        found = proportional(trial, 9.0 if trial is pool[0] else 0.5)
        reserved = trial.candidate.memory.budget_bytes * (1.2 if trial is pool[0] else 0.5)
        return {**found, "measured": {**found["measured"], "peak_reserved_bytes": reserved}}

    study = open_study("e", None, pool, 0)
    list(tune(study, space, 4, run))
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
    space = make_space(tmp_path)
    pool = space.pool
    storage = storages(tmp_path)[kind]
    code = (
        "import sys, time; from pathlib import Path; from tests.trial.test_study import *\n"
        "space = make_space(Path(sys.argv[1]))\n"
        "study = open_study('s', sys.argv[2], space.pool, 0)\n"
        "done = Path(sys.argv[1]) / 'done'\n"
        "def run(trial):\n"
        "    if len(finished(study)) == 3:\n"
        "        done.write_text('3')\n"
        "        time.sleep(600)\n"
        "    return record(trial, 1000.0)\n"
        "list(tune(study, space, 10, run))\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), storage], cwd=ROOT)
    end = time.monotonic() + 120
    while not (tmp_path / "done").exists() and time.monotonic() < end:
        assert worker.poll() is None
        time.sleep(0.05)
    running = [t.state.name for t in open_study("s", storage, pool, 0).get_trials()]
    assert running.count("RUNNING") == 1, "a living worker's trial is left alone"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    study = open_study("s", storage, pool, 0)
    states = [trial.state.name for trial in study.get_trials()]
    assert states.count("COMPLETE") == 3
    assert "RUNNING" not in states
    tried = list(tune(study, space, 6, lambda trial: record(trial, 1000.0)))
    assert len(finished(study)) == 6
    assert len(tried) == 3
    assert clear_stale(study) == 0


def test_two_studies_over_different_lists_do_not_mix(tmp_path, pool):
    storage = storages(tmp_path)["sqlite"]
    open_study("s", storage, pool, 0)
    for other in (pool[1:], (pool[1], pool[0], *pool[2:])):
        with pytest.raises(InputError, match="another list of candidates"):
            open_study("s", storage, other, 0)


@pytest.mark.parametrize("storage", ["mysql://x", "journal:/nowhere/at/all/log", "sqlite:////nowhere/at/all.db", "x"])
def test_a_storage_that_cannot_be_opened_is_an_input_error(storage):
    with pytest.raises(InputError, match="--storage"):
        open_study("s", storage, (), 0)


def test_a_journal_lives_through_a_full_disk_and_a_line_cut_off(tmp_path, space, pool):
    """A limit on the size of a file stands for the disk; below it the study writes until it can no more."""
    where, path = storages(tmp_path)["journal"], tmp_path / "study.log"
    study = open_study("full", where, pool, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 12_000, hard))
    try:
        with pytest.raises(InputError, match=r"--storage journal:.*File too large"), kept_at(where):
            list(tune(study, space, 100, proportional))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes().endswith(b"}\n")
    before = [trial.number for trial in finished(open_study("full", where, pool, 0))]
    assert before
    with path.open("ab") as file:
        file.write(b'{"op_code":8,"worker')
    study = open_study("full", where, pool, 0)
    tried = list(tune(study, space, len(before) + 2, proportional))
    assert len(tried) == 2
    assert [trial.number for trial in finished(study)][: len(before)] == before


@pytest.mark.parametrize("content", ['{"schema_version": 1}', "text\n" * 200])
def test_a_file_that_is_no_study_is_left_as_it_is(tmp_path, pool, content):
    for where in storages(tmp_path).values():
        path = tmp_path / where.rpartition("/")[2]
        path.write_text(content)
        with pytest.raises(InputError, match="--storage"):
            list(tune(open_study("x", where, pool, 0), Space(pool, DRIVE), 1, proportional))
        assert path.read_text() == content


def test_a_storage_that_cannot_be_opened_is_named(tmp_path, pool):
    (tmp_path / "study.db").mkdir()
    (tmp_path / "study.log").mkdir()
    for where in (*storages(tmp_path).values(), "redis://host", "journal:", "sqlite:///"):
        with pytest.raises(InputError, match="--storage") as problem:
            open_study("x", where, pool, 0)
        assert "journal:PATH" in problem.value.hint
