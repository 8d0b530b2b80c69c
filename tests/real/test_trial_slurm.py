"""Trials through a real Slurm of two nodes: measured, failed on a rank, out of time, requeued, cancelled, orphaned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jsonschema
import pytest

from advisor.configure.launch import Wanted
from advisor.errors import InputError
from advisor.trial.job import Drive
from advisor.trial.processes import Limits
from advisor.trial.runner import Rules, run_trials
from advisor.trial.slurm import Slurm
from advisor.trial.store import Store
from advisor.trial.trials import read_trials
from tests.real.slurm import missing
from tests.trial.layouts import write_estimate, write_plan

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}"),
]
ROOT = Path(__file__).parents[2]
ACTING = (str(ROOT / "tests" / "trial" / "acting.py"),)
SCHEMA = json.loads((ROOT / "presets" / "schemas" / "trial.schema.json").read_text())
DRIVE = Drive("cpu", steps=4, warmup=1, profile_steps=0)
SYSTEM = (
    "gpu: h100-sxm-80gb\ngpus_per_node: 1\nnvlink_domain: 1\nnvlink_uni_gbs: 0\nnic_gbps_per_gpu: 400\n"
    "node_nic_gbps: 400\ninter_domain_uni_gbs: 50\nsources: [test]\n"
)


@pytest.fixture
def plan(tmp_path):
    """An estimate for two nodes of one GPU each."""
    system = tmp_path / "own.yaml"
    system.write_text(SYSTEM)
    return write_estimate(tmp_path, "dense", 2, tp=1, system=str(system))


def act(folder: Path, **acts: str) -> Store:
    store = Store(folder / "out")
    (store.folder / "act.json").write_text(json.dumps({name.removeprefix("r"): what for name, what in acts.items()}))
    return store


def backend(**wanted):
    return Slurm(Wanted(gres=False, exclusive=False, **{"time_s": 600, "restarts": 0, **wanted}), 4, 0.3, ACTING)


def run(plan, store, tell=lambda *_: None, limits=None, slurm=None, steps=4, **rules):
    drive = Drive("cpu", steps=steps, warmup=1, profile_steps=0)
    trials, _ = read_trials(plan, 1, drive, None)
    (one,) = run_trials(trials, store, Rules(limits or Limits(), backend=slurm or backend(), **rules), tell)
    if one.record is not None:
        jsonschema.validate(one.record, {"$ref": "#/$defs/record", "$defs": SCHEMA["$defs"]})
    return one.record


def left_in_queue(cluster) -> str:
    return cluster.run("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING").stdout.strip()


def ranks(store: Store) -> list[int]:
    """Ranks of all attempts that still live."""
    lines = [json.loads(path.read_text().splitlines()[0]) for path in store.folder.glob("*/*/progress-*.jsonl")]
    return [line["pid"] for line in lines if Path(f"/proc/{line['pid']}").exists()]


def until(holds, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(holds())


def test_one_task_per_node_is_measured_and_resumed(at_cluster, tmp_path, plan):
    store = act(tmp_path)
    record = run(plan, store)
    assert record["outcome"] == "measured", record["failure"]
    assert record["slurm"] | {"queued_s": 0, "id": 0} == {
        "id": 0, "state": "COMPLETED", "reason": "None", "restarts": 0, "nodes": "n[1-2]", "queued_s": 0,
    }  # fmt: skip
    assert record["measured"]["steps_s"] == [0.01] * 4
    folder = Path(record["folder"])
    assert {"job.json", "job.sbatch", "command", "stdout", "stderr", "logs"} <= {one.name for one in folder.iterdir()}
    assert run(plan, store, resume=True)["slurm"]["id"] == record["slurm"]["id"]


def test_a_rank_that_fails_is_named_with_its_lines(at_cluster, tmp_path, plan):
    record = run(plan, act(tmp_path, r1="crash", r0="hang"))
    assert (record["outcome"], record["failure"]["rank"]) == ("crash", 1)
    assert record["slurm"]["state"] == "FAILED"
    assert any("the act says so" in line for line in record["failure"]["excerpt"])
    assert not left_in_queue(at_cluster)


def test_the_time_limit_of_the_job_is_an_outcome(at_cluster, tmp_path, plan):
    store = act(tmp_path, r1="hang")
    record = run(plan, store, slurm=backend(time_s=60))
    assert (record["outcome"], record["slurm"]["state"], record["failure"]["rank"]) == ("time limit", "TIMEOUT", 1)
    assert "--time" in record["failure"]["fix"]
    assert not ranks(store)


@pytest.mark.parametrize(
    ("act_of_1", "limits", "outcome"),
    [
        ("hang", Limits(step_s=2.0), "hang"),
        ("late", Limits(start_s=3.0), "start-up timeout"),
        ("deaf", Limits(total_s=4.0), "total timeout"),
    ],
)
def test_a_limit_cancels_the_job(at_cluster, tmp_path, plan, act_of_1, limits, outcome):
    store = act(tmp_path, r1=act_of_1)
    record = run(plan, store, limits=limits)
    assert record["outcome"] == outcome
    assert record["slurm"]["state"] == "CANCELLED"
    assert not left_in_queue(at_cluster)
    assert not ranks(store)


def test_a_job_that_never_starts_is_taken_out_of_the_queue(at_cluster, tmp_path, plan):
    record = run(plan, act(tmp_path), limits=Limits(queue_s=3.0), slurm=backend(partition="large"))
    assert record["outcome"] == "queue timeout"
    assert not left_in_queue(at_cluster)


def test_a_budget_that_ends_in_the_queue_leaves_the_trial(at_cluster, tmp_path, plan):
    assert run(plan, act(tmp_path), budget_s=3.0, slurm=backend(partition="large")) is None
    assert not left_in_queue(at_cluster)


def test_a_requeued_trial_starts_afresh(at_cluster, tmp_path, plan):
    store = act(tmp_path, r1="hang")
    seen = []

    def tell(trial, progress):
        seen.append(progress.steps)
        if progress.steps == 2 and not requeue.is_alive() and requeue.ident is None:
            requeue.start()

    def again():
        (store.folder / "act.json").write_text("{}")
        (number,) = at_cluster.run("squeue", "--noheader", "--format", "%i").stdout.split()
        assert at_cluster.run("scontrol", "requeue", number).returncode == 0
        assert until(lambda: at_cluster.field(int(number), "Restarts") == "1")
        time.sleep(2.5)  # a start within the second of the requeue meets a revoked credential
        at_cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    requeue = threading.Thread(target=again)
    record = run(plan, store, tell, slurm=backend(restarts=1))
    requeue.join()
    assert record["outcome"] == "measured", record["failure"]
    assert record["slurm"]["restarts"] == 1
    assert len(record["measured"]["steps_s"]) == 4
    assert len(list(Path(record["folder"]).glob("before_1/progress-*.jsonl"))) == 2


def test_what_somebody_else_cancels_is_an_outcome(at_cluster, tmp_path, plan):
    store = act(tmp_path, r1="hang")
    record = run(plan, store, lambda _, progress: at_cluster.run("scancel", "--me") and None)
    assert (record["outcome"], record["slurm"]["state"]) == ("cancelled", "CANCELLED")
    assert record["failure"]["rank"] in {0, 1, None}


def test_a_failed_node_is_an_outcome(at_cluster, tmp_path, plan):
    def break_node(_, progress) -> None:
        if progress.steps == 2:
            at_cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")

    try:
        record = run(plan, act(tmp_path, r0="hang", r1="hang"), break_node)
    finally:
        at_cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert (record["outcome"], record["slurm"]["state"]) == ("node failure", "NODE_FAIL")
    assert "--restarts" in record["failure"]["fix"]
    ready = ["sinfo", "-h", "-p", "batch", "-o", "%T %D"]
    assert until(lambda: at_cluster.run(*ready).stdout.strip() == "idle 2")


def test_a_preempted_job_is_an_outcome(at_cluster, tmp_path, plan):
    urgent = tmp_path / "urgent.sbatch"
    urgent.write_text("#!/bin/bash\nsleep 1\n")
    asked = ["sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", str(urgent)]
    begun = []

    def preempt(_, progress) -> None:
        if progress.steps == 2 and not begun:
            begun.append(at_cluster.run(*asked).stdout)

    record = run(plan, act(tmp_path, r0="hang", r1="hang"), preempt)
    assert (record["outcome"], record["slurm"]["state"]) == ("preempted", "PREEMPTED")
    assert until(lambda: not left_in_queue(at_cluster))


def test_a_trial_can_be_stopped_early(at_cluster, tmp_path, plan):
    record = run(plan, act(tmp_path), lambda _, progress: len(progress.steady_s) >= 5, steps=2000)
    assert (record["outcome"], record["ending"]) == ("measured", "stopped")
    assert not left_in_queue(at_cluster)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill-9", "ctrl-c"])
def test_no_job_survives_the_runner(at_cluster, tmp_path, plan, how):
    store = act(tmp_path, r0="deaf", r1="deaf")
    code = (
        "import sys; from pathlib import Path; from tests.real.test_trial_slurm import *;"
        "run(Path(sys.argv[1]), Store(Path(sys.argv[2])))"
    )
    words = [sys.executable, "-c", code, str(plan), str(store.folder)]
    runner = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    assert until(lambda: len(ranks(store)) == 2)
    time.sleep(0.5)
    os.kill(runner.pid, how)
    runner.wait(timeout=60)
    assert until(lambda: not left_in_queue(at_cluster)), left_in_queue(at_cluster)
    assert not ranks(store)


NAMES = ["plain", "with space", 'quote\'s "double"', "dollar $HOME `id`", "# hash; and = more", "ümläut"]


@pytest.mark.parametrize("name", NAMES)
def test_odd_folders_are_quoted(at_cluster, tmp_path, plan, name):
    (tmp_path / name).mkdir()
    assert run(plan, act(tmp_path / name))["outcome"] == "measured"


@pytest.mark.parametrize("name", ["100%", "back\\slash", "two\nlines"])
def test_folders_that_slurm_reads_as_patterns_are_refused(at_cluster, tmp_path, plan, name):
    with pytest.raises(InputError, match="--out"):
        run(plan, act(tmp_path / name))
    assert not left_in_queue(at_cluster)


@pytest.mark.parametrize(
    "more",
    [
        ("--partition", "large"),
        ("--partition", "large", "--device", "cpu", "--no-exclusive"),
        ("--partition", "large", "--qos", "high prio", "--account", "a b", "--time", "2-12:00:00", "--restarts", "0"),
        (
            "--partition",
            "large",
            "--container",
            "nvcr.io/nvidia/nemo:25.09",
            "--mounts",
            "/:/host",
            "--shared",
            "/host/s",
        ),
        ("--partition", "large", "--env", "ODD=x y'$z", "--secret", "HF_TOKEN", "--workdir", "/a b"),
        ("--partition", "large", "--proxy-layers", "2"),
    ],
    ids=["plain", "cpu", "asked", "container", "program", "proxy"],
)
def test_sbatch_takes_every_script_and_a_dry_run_prints_it(cli, at_cluster, tmp_path, more):
    plan = write_estimate(tmp_path, "moe", 16, ep=4, dispatcher="alltoall", gbs=32)
    out = tmp_path / "out"
    ran = cli("trial", str(plan), "--backend", "slurm", "--dry-run", "--out", str(out), "--format", "json", *more)
    assert ran.code == 0, ran.err
    (row,) = json.loads(ran.out)["trials"]
    assert not out.exists()
    script = tmp_path / "job.sbatch"
    script.write_text(row["script"])
    said = at_cluster.test_only(script)
    assert said.returncode == 0, said.stderr
    assert "paper[1-2]" in said.stderr
    table = cli("trial", str(plan), "--backend", "slurm", "--dry-run", "--out", str(out), *more)
    assert table.out.count("#SBATCH --nodes=2") == 1


@pytest.mark.real
def test_from_plan_to_record_on_two_nodes(cli, at_cluster, tmp_path, plan):
    pytest.importorskip("megatron.core")
    out = tmp_path / "out"
    args = ["trial", str(plan), "--backend", "slurm", "--device", "cpu", "--steps", "4", "--warmup", "1",
            "--out", str(out),
            "--no-exclusive", "--env", "GLOO_SOCKET_IFNAME=lo", "--partition", "batch"]  # fmt: skip
    ran = cli(*args, "--format", "json")
    (record,) = json.loads(ran.out)["trials"]
    assert record["outcome"] == "measured", record["failure"]
    assert ran.code == (0 if record["inside"] else 1)
    assert record["slurm"]["nodes"] == "n[1-2]"
    assert len(record["measured"]["steps_s"]) == 4
    assert record["environment"]["variables"]["NCCL_NVLS_ENABLE"] == "0"
    assert sorted(path.name for path in Path(record["folder"]).glob("traces/*")) == ["rank-0.json.gz", "rank-1.json.gz"]
    again = cli(*args, "--resume")
    assert f"{record['name']} *" in again.out


TUNER = """
from advisor.configure.chosen import read_plan
from advisor.trial.local import Local
from advisor.trial.space import Space
from advisor.trial.study import open_study, pool_of, tune
from tests.real.test_trial_slurm import *
plan, out = Path(sys.argv[1]), Path(sys.argv[2])
space = Space(pool_of(read_plan(plan).request, str(plan), DRIVE, 20), DRIVE)
study = open_study("s", f"journal:{out / 'study.log'}", space.pool, int(os.environ["SLURM_JOB_ID"]))
rules, store = Rules(Limits(), backend=Local(ACTING)), Store(out)
for one in tune(study, space, 8, lambda trial: next(run_trials([trial], store, rules, lambda *_: None)).record):
    print(one.number, flush=True)
"""


@pytest.mark.real
def test_two_jobs_work_on_one_journal(at_cluster, tmp_path):
    """Two sbatch jobs on two nodes, each a worker of the study whose trials run on its node."""
    plan, store = write_plan(tmp_path, "dense", 2), act(tmp_path)
    (tmp_path / "tuner.py").write_text(TUNER)
    script = tmp_path / "tuner.sbatch"
    words = f"cd {ROOT} && PYTHONPATH={ROOT} exec {sys.executable} {tmp_path}/tuner.py {plan} {store.folder}"
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --output={tmp_path}/job_%j\n{words}\n")
    jobs = [int(at_cluster.run("sbatch", "--parsable", str(script)).stdout) for _ in range(2)]
    assert [at_cluster.wait(job, timeout=240) for job in jobs] == ["COMPLETED"] * 2, [
        path.read_text() for path in tmp_path.glob("job_*")
    ]
    told = [(tmp_path / f"job_{job}").read_text().split() for job in jobs]
    assert all(told)
    assert len({number for numbers in told for number in numbers}) == 8
    keys = [record["key"] for record in store.records()]
    assert len(keys) == len(set(keys)) == 8


@pytest.mark.real
def test_two_workers_submit_jobs_of_one_study(cli, at_cluster, tmp_path, plan):
    pytest.importorskip("megatron.core")
    out = tmp_path / "out"
    ran = cli(
        "tune", str(plan), "--backend", "slurm", "--device", "cpu", "--steps", "3", "--warmup", "0", "--trials", "2",
        "--workers", "2", "--profile-steps", "0", "--out", str(out), "--no-exclusive",
        "--env", "GLOO_SOCKET_IFNAME=lo", "--format", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err + ran.out
    records = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert [record["outcome"] for record in records] == ["measured"] * 2
    assert len({record["slurm"]["id"] for record in records}) == 2
    assert len({record["key"] for record in records}) == 2
    assert len(json.loads(ran.out)["trials"]) == 2


def test_without_slurm_there_is_one_clear_message(cli, tmp_path, plan, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = cli("trial", str(plan), "--backend", "slurm", "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert "no Slurm on this host: sbatch, scontrol, scancel, squeue not found" in ran.err
    assert not (tmp_path / "out").exists()


def test_clients_without_a_cluster_are_the_same(cli, tmp_path, plan, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    ran = cli("trial", str(plan), "--backend", "slurm", "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert "no Slurm answers" in ran.err


def test_job_options_belong_to_the_backend(cli, tmp_path, plan):
    ran = cli("trial", str(plan), "--partition", "batch", "--device", "cpu", "--dry-run")
    assert ran.code == 2
    assert "--backend slurm" in ran.err
