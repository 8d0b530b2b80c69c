"""Generated scripts against a real Slurm: what sbatch takes, what happens to jobs that end, fail or run out of time."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.configure.plans import plan_file
from tests.real.slurm import missing

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}"),
]
STYLES = ("srun", "torchrun", "ft_launcher")
NAMES = ["plain", "with space", 'quote\'s "double"', "dollar $HOME `id`", "back\\slash", "# hash; and = more", "ümläut"]


def script_of(cli, tmp_path, plan, *args, program=("train.py",)):
    ran = cli("launch", str(plan), "--log-dir", str(tmp_path), "--shared", "/shared", *args, "--", *program)
    assert ran.code == 0, ran.err
    path = tmp_path / "job.sbatch"
    path.write_text(ran.out)
    return path


def without_segment(path: Path) -> Path:
    """This release of Slurm is older than --segment (23.11)."""
    text = path.read_text()
    assert text.count("#SBATCH --segment=16\n") == 1
    path.write_text(text.replace("#SBATCH --segment=16\n", ""))
    return path


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("container", [(), ("--container", "nvcr.io/nvidia/nemo:25.09", "--mounts", "/shared:/shared")])
@pytest.mark.parametrize(
    "more",
    [(), ("--restarts", "0", "--no-exclusive"), ("--time", "2-12:00:00", "--spare-nodes", "1"), ("--qos", "high prio")],
)
def test_sbatch_takes_every_script(cli, slurm, tmp_path, style, container, more):
    script = script_of(
        cli, tmp_path, plan_file(tmp_path, "m2"), "--style", style, "--partition", "large", *container, *more
    )
    said = slurm.test_only(script)
    assert said.returncode == 0, said.stderr
    nodes = 9 if "--spare-nodes" in more and style == "ft_launcher" else 8
    assert f"paper[1-{nodes}]" in said.stderr


@pytest.mark.parametrize("program", [(), ("pretrain_gpt.py", "--data-path", "a b"), ("mine.py", "train.train_iters=5")])
def test_sbatch_takes_the_whole_plan(cli, slurm, tmp_path, program):
    entry = ("--entry", "bridge") if program[:1] == ("mine.py",) else ()
    script = script_of(
        cli, tmp_path, plan_file(tmp_path, "m2"), "--partition", "large", "--style", "torchrun", *entry, program=program
    )
    said = slurm.test_only(script)
    assert said.returncode == 0, said.stderr
    assert "expert_model_parallel_size" in script.read_text().replace("-", "_")


def test_racks_are_asked_for_in_segments(cli, slurm, tmp_path):
    script = script_of(cli, tmp_path, plan_file(tmp_path, "gb200"), "--partition", "large")
    said = slurm.test_only(without_segment(script))
    assert said.returncode == 0, said.stderr
    assert "paper[1-32]" in said.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_scheduler_sees_the_name_that_was_given(cli, at_cluster, tmp_path, name):
    script = script_of(cli, tmp_path, plan_file(tmp_path, "m2"), "--name", name, "--partition", "large")
    said = at_cluster.run("sbatch", "--parsable", "--hold", str(script))
    assert said.returncode == 0, said.stderr
    shown = at_cluster.run("squeue", "--noheader", "--jobs", said.stdout.strip(), "--format", "%j").stdout
    at_cluster.run("scancel", said.stdout.strip())
    assert shown.rstrip("\n") == name


def test_a_script_that_cannot_run_is_refused(cli, at_cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_file(tmp_path, "m2")
    ran = cli("launch", str(plan), "--log-dir", str(tmp_path), "--partition", "pool0", "--submit")
    assert ran.code == 1
    assert "invalid partition" in ran.err
    assert "sinfo" in ran.err


PROGRAM = """
    import json, os, pathlib, signal, sys, time
    folder = pathlib.Path(sys.argv[1])
    rank, attempt = int(os.environ["RANK"]), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID")
    found = {name: os.environ.get(name) for name in names}
    found["words"] = sys.argv[1:]
    (folder / f"rank_{attempt}_{rank}.json").write_text(json.dumps(found))
    def steps(count):
        for step in range(count):
            if rank == 0:
                print(f" iteration {step + 1:8d}/ 100 | lm loss: {10 - step:.3e} |", flush=True)
            time.sleep(0.1)
"""


def program(tmp_path: Path, more: str) -> Path:
    path = tmp_path / "train me's.py"
    path.write_text(textwrap.dedent(PROGRAM) + textwrap.dedent(more))
    return path


def submitted(cli, tmp_path, plan, code, *args, words=()):
    """Job id and log of a submitted program."""
    python = Path(sys.executable)
    ran = cli(
        "launch", str(plan), "--log-dir", str(tmp_path), "--workdir", str(tmp_path), "--name", "a job's $name",
        "--out", str(tmp_path / "job.sbatch"), "--submit", "--format", "json", *args,
        "--", *([str(python)] if "--" not in args else []), str(code), str(tmp_path), *words,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    return found["job_id"], Path(found["log"])


def test_every_rank_is_handed_the_plan(cli, at_cluster, tmp_path):
    code = program(tmp_path, "steps(1)")
    job, log = submitted(
        cli, tmp_path, plan_file(tmp_path, "dense"), code, "--entry", "megatron-lm", words=["--data-path", "it's $HOME"]
    )
    assert at_cluster.wait(job) == "COMPLETED", log.read_text()
    records = [json.loads(path.read_text())["words"] for path in tmp_path.glob("rank_0_*.json")]
    assert len(records) == 16
    assert all(words == records[0] for words in records)
    words = records[0]
    assert words[1:3] == ["--data-path", "it's $HOME"]
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
    assert words[words.index("--global-batch-size") + 1] == "64"
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce", "--async-save"} <= set(words)


def test_sixteen_ranks_on_two_nodes(cli, at_cluster, tmp_path):
    code = program(tmp_path, "steps(3)")
    odd = ["it's", 'say "hi"', "$HOME", "two\nlines", "", "*", "a b"]
    job, log = submitted(cli, tmp_path, plan_file(tmp_path, "dense"), code, "--env", "ODD=x y'$z", words=odd)
    assert at_cluster.wait(job) == "COMPLETED", log.read_text()
    records = [json.loads(path.read_text()) for path in tmp_path.glob("rank_0_*.json")]
    assert sorted(int(one["RANK"]) for one in records) == list(range(16))
    assert all(one["RANK"] == one["SLURM_PROCID"] for one in records)
    assert {int(one["LOCAL_RANK"]) for one in records} == set(range(8))
    assert {one["WORLD_SIZE"] for one in records} == {"16"}
    assert {one["LOCAL_WORLD_SIZE"] for one in records} == {"8"}
    assert {one["MASTER_PORT"] for one in records} == {str(20000 + job % 20000)}
    assert all(one["words"] == [str(tmp_path), *odd] for one in records)
    text = log.read_text()
    assert "Losses:" in text
    assert text.count("lm loss: 8.000e+00") == 2  # once by the program, once in the footer
    assert at_cluster.field(job, "Restarts") == "0"


def keep(log: Path, tmp_path: Path, name: str) -> None:
    """A real log as material for the tests of diagnose."""
    folder = Path(__file__).parents[1] / "diagnose" / "data" / "real_ft"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(log.read_text().replace(str(tmp_path), "/work/run").replace(sys.prefix, "/opt/venv"))


def test_a_rank_that_fails_before_the_first_step_is_not_tried_again(cli, at_cluster, tmp_path, updating):
    code = program(tmp_path, "sys.exit(7 if rank == 1 else time.sleep(30))")
    job, log = submitted(cli, tmp_path, plan_file(tmp_path, "dense"), code)
    assert at_cluster.wait(job) == "FAILED"
    text = log.read_text()
    assert "task 1: Exited with exit code 7" in text
    assert "no step was done" in text
    if updating:
        keep(log, tmp_path, "slurm_rank_exit_7.log")
    assert at_cluster.field(job, "Restarts") == "0"


def test_a_rank_that_fails_later_is_tried_again_up_to_the_limit(cli, at_cluster, tmp_path):
    code = program(tmp_path, "steps(2)\nif rank == 1 and attempt == 0: sys.exit(7)\ntime.sleep(1)")
    job, log = submitted(cli, tmp_path, plan_file(tmp_path, "small"), code, "--restarts", "1")
    until_requeued(at_cluster, job)
    assert at_cluster.wait(job) == "COMPLETED", log.read_text()
    assert at_cluster.field(job, "Restarts") == "1"
    text = log.read_text()
    assert "requeue 1 of 1" in text
    assert "Attempt 1 ended with 0" in text
    assert {path.name for path in tmp_path.glob("rank_*.json")} == {
        f"rank_{a}_{r}.json" for a in (0, 1) for r in (0, 1)
    }


def test_a_failure_after_the_last_requeue_is_final(cli, at_cluster, tmp_path):
    code = program(tmp_path, "steps(1)\nsys.exit(3)")
    job, log = submitted(cli, tmp_path, plan_file(tmp_path, "small"), code, "--restarts", "0")
    assert at_cluster.wait(job) == "FAILED"
    assert "requeue" not in log.read_text()


def test_wrong_results_are_never_tried_again(cli, at_cluster, tmp_path):
    code = program(tmp_path, "steps(1)\nsys.exit(17)")
    job, log = submitted(cli, tmp_path, plan_file(tmp_path, "small"), code, "--restarts", "3")
    assert at_cluster.wait(job) == "FAILED"
    assert at_cluster.field(job, "ExitCode") == "17:0"
    assert "re-run machine found wrong results" in log.read_text()
    assert at_cluster.field(job, "Restarts") == "0"


def test_the_time_limit_ends_in_a_save_and_a_requeue(cli, at_cluster, tmp_path, updating):
    code = program(
        tmp_path,
        """
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        while not asked and attempt == 0:
            steps(1)
        (folder / f"saved_{attempt}_{rank}").touch()
        """,
    )
    job, log = submitted(cli, tmp_path, plan_file(tmp_path, "small"), code, "--time", "10m")
    assert at_cluster.wait(job, ("RUNNING",)) == "RUNNING"
    changed = at_cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    assert changed.returncode == 0, changed.stderr
    until_requeued(at_cluster, job)
    assert at_cluster.wait(job) == "COMPLETED", log.read_text()
    assert {path.name for path in tmp_path.glob("saved_*")} == {f"saved_{a}_{r}" for a in (0, 1) for r in (0, 1)}
    assert "Attempt 0 ended with 0" in log.read_text()
    if updating:
        keep(log, tmp_path, "slurm_time_limit_requeue.log")


def until_requeued(slurm, job):
    """Wait until the job is in the queue again, and take away the two minutes that Slurm then waits."""
    until = time.monotonic() + 100
    while slurm.field(job, "Restarts") == "0" and time.monotonic() < until:
        time.sleep(0.2)
    assert slurm.field(job, "Restarts") == "1", slurm.logs()
    time.sleep(2.5)  # a start within the second of the requeue meets a revoked credential
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")


@pytest.fixture(scope="module")
def two_by_one(tmp_path_factory):
    """A plan for two nodes of one GPU each."""
    folder = tmp_path_factory.mktemp("system")
    system = folder / "own.yaml"
    system.write_text(
        "gpu: h100-sxm-80gb\ngpus_per_node: 1\nnvlink_domain: 1\nnvlink_uni_gbs: 0\nnic_gbps_per_gpu: 400\n"
        "node_nic_gbps: 400\ninter_domain_uni_gbs: 50\nsources: [test]\n"
    )
    return plan_file(folder, "small", system=str(system), tp=1)


GLOO = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    found = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(found)
    steps(1)
    (folder / f"sum_{rank}").write_text(str(found.item()))
    dist.destroy_process_group()
"""


@pytest.mark.real
@pytest.mark.parametrize("style", STYLES)
def test_two_nodes_meet(cli, at_cluster, tmp_path, two_by_one, style, monkeypatch):
    pytest.importorskip("torch")
    programs = (
        Path(__file__).parents[2] / ".venv-nvrx" / "bin" if style == "ft_launcher" else Path(sys.executable).parent
    )
    if not (programs / ("ft_launcher" if style == "ft_launcher" else "python")).exists():
        pytest.skip("nvidia-resiliency-ext is not installed (make nvrx-deps)")
    monkeypatch.setenv("PATH", f"{programs}:{at_cluster.environment['PATH']}")
    code = program(tmp_path, GLOO)
    ran = cli(
        "launch", str(two_by_one), "--style", style, "--log-dir", str(tmp_path), "--workdir", str(tmp_path), "--out",
        str(tmp_path / "job.sbatch"), "--submit", "--", str(code), str(tmp_path),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    job = int(ran.out)
    log = next(iter(tmp_path.glob("*.log")), tmp_path / f"qwen3-0.6b-2_{job}.log")
    assert at_cluster.wait(job, timeout=180) == "COMPLETED", log.read_text()
    assert {path.name: path.read_text() for path in tmp_path.glob("sum_*")} == {"sum_0": "3.0", "sum_1": "3.0"}
