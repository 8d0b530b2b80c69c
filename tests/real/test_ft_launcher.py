"""Generated flags under the real ft_launcher: a rank is killed or hangs, the job comes back and loses little.

The timeouts of a plan suit steps of seconds and checkpoints of minutes; here the same derivation is asked about a small
job, and its floors of minutes are scaled to seconds so that a hang is seen within the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.configure.chosen import read_plan
from advisor.configure.conflicts import Wishes
from advisor.configure.resiliency import resiliency
from advisor.export.resiliency import ft_launcher_flags
from tests.configure.plans import plan_file
from tests.real.slurm import free_ports

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / ".venv-nvrx" / "bin" / "ft_launcher"
PROGRAM = Path(__file__).with_name("ft_program.py")
DATA = ROOT / "tests" / "diagnose" / "data" / "real_ft"
STEPS, EVERY = 12, 3
SCALE = 20

pytestmark = [
    pytest.mark.nvrx,
    pytest.mark.skipif(not LAUNCHER.exists(), reason="nvidia-resiliency-ext is not installed (make nvrx-deps)"),
]


def scaled(sections: str) -> str:
    """Section timeouts of a plan, divided by SCALE: 60 s for a step become 3 s."""
    return re.sub(r":(\d+)", lambda found: f":{max(3, int(found[1]) // SCALE)}", sections)


@pytest.fixture
def flags(tmp_path):
    settings = resiliency(read_plan(plan_file(tmp_path, "small")), Wishes(checkpoint_dir=str(tmp_path)))
    limits = settings.limits
    assert limits.sections == "setup:600,step:60,checkpointing:300"
    return ft_launcher_flags(scaled(limits.sections), limits.outside_s // SCALE, settings.max_restarts)


def launch(tmp_path: Path, flags: tuple[str, ...], fault: str) -> tuple[int, str]:
    (port,) = free_ports(1)
    command = [
        str(LAUNCHER), "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--nnodes=1", "--nproc-per-node=2",
        *flags, str(PROGRAM), str(tmp_path), str(STEPS), str(EVERY), fault,
    ]  # fmt: skip
    environment = {**os.environ, "GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False, env=environment
    )
    return ran.returncode, ran.stdout


def lost_steps(log: str) -> int:
    """Steps that were done and then done again."""
    done = [int(step) for step in re.findall(r"iteration +(\d+)/", log)]
    return len(done) - len(set(done))


def test_without_restarts_a_killed_rank_ends_the_job(tmp_path, flags, updating):
    code, log = launch(tmp_path, ("--max-restarts=0", *flags[1:]), "killed")
    assert code == 1
    assert not (tmp_path / "done.json").exists()
    assert json.loads((tmp_path / "checkpoint.json").read_text())["step"] == 6
    assert "exitcode: -9" in log or "exitcode  : -9" in log
    if updating:
        (DATA / "ft_launcher_no_restarts.log").write_text(anonymous(log, tmp_path))


@pytest.mark.parametrize("fault", ["killed", "hung"])
def test_a_fault_costs_at_most_an_interval(tmp_path, flags, fault, updating):
    code, log = launch(tmp_path, flags, fault)
    assert code == 0, log
    assert f"rank 1 is {fault} at step 7" in log
    assert json.loads((tmp_path / "done.json").read_text()) == {"step": STEPS, "value": 2.0 * STEPS, "attempt": 1}
    assert "attempt 1 rank 0 starts after step 6" in log
    assert lost_steps(log) <= EVERY
    if fault == "hung":
        assert re.search(r"Section 'step' has been open for [\d.]+ seconds\. Timeout is 3\.00 seconds", log), log
    if updating:
        DATA.mkdir(parents=True, exist_ok=True)
        (DATA / f"ft_launcher_rank_{fault}.log").write_text(anonymous(log, tmp_path))


def agents(tmp_path: Path, flags: tuple[str, ...], nodes: int, spares: int) -> list[tuple[int, str]]:
    """Exit code and log of an agent of one rank per node and spare node, as the generated script starts them.

    The agent of the first node holds the rendezvous and stays. All run on one host, so the others are told that they
    are no host of it.
    """
    (port,) = free_ports(1)
    started = []
    for node in range(nodes + spares):
        command = [
            str(LAUNCHER), "--rdzv_backend=c10d", "--nproc-per-node=1", *flags, f"--nnodes={nodes}", "--rdzv_id=41",
            f"--rdzv_endpoint=127.0.0.1:{port}", f"--rdzv_conf=is_host={node == 0}".lower(),
            str(PROGRAM), str(tmp_path), str(STEPS), str(EVERY), "lost",
        ]  # fmt: skip
        environment = {**os.environ, "GROUP_RANK": str(node), "OMP_NUM_THREADS": "1"}
        log = (tmp_path / f"node{node}.log").open("w")
        started.append(
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        )
        if node == 0:
            until(lambda: "attempts to join" in text_of(tmp_path, 0))
        if node == nodes - 1:
            until(lambda: "starts after step 0" in text_of(tmp_path, 0))
    try:
        codes = [one.wait(timeout=240) for one in started]
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
    return [(code, text_of(tmp_path, node)) for node, code in enumerate(codes)]


def text_of(tmp_path: Path, node: int) -> str:
    return (tmp_path / f"node{node}.log").read_text()


def until(held: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not held():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_spare_node_takes_over_from_a_lost_one(tmp_path, flags, updating):
    """Three agents for two nodes: one active node is lost with its agent, the spare joins, no step beyond a save."""
    first, lost, spare = agents(tmp_path, flags, nodes=2, spares=1)
    assert (first[0], lost[0], spare[0]) == (0, -9, 0), (first, spare)
    assert "rank 1 is lost at step 7" in lost[1]
    assert "starts after" not in spare[1].split("joined round")[0]
    assert "rank 1 starts after step 6" in spare[1]
    assert "attempt 1 rank 0 starts after step 6" in first[1]
    assert json.loads((tmp_path / "done.json").read_text()) == {"step": STEPS, "value": 2.0 * STEPS, "attempt": 1}
    assert lost_steps(first[1]) <= EVERY
    if updating:
        DATA.mkdir(parents=True, exist_ok=True)
        logs = enumerate((first[1], lost[1], spare[1]))
        merged = "".join(f"{node}: {line}\n" for node, log in logs for line in log.splitlines())
        (DATA / "ft_launcher_node_lost.log").write_text(anonymous(merged, tmp_path))


def anonymous(log: str, tmp_path: Path) -> str:
    """The log without the folders and the name of this machine."""
    folders = {
        str(tmp_path): "/work/run", str(ROOT): "/work/src", str(LAUNCHER.resolve().parents[1]): "/opt/venv",
        sys.prefix: "/opt/venv", sys.base_prefix: "/opt/python",
    }  # fmt: skip
    for folder, name in folders.items():
        log = log.replace(folder, name)
    # An agent per node: each is a host of its own in the log.
    log = re.sub(rf"(?m)^(\d): (.*?)@{re.escape(socket.gethostname())}\b", r"\1: \2@node\1", log)
    log = re.sub(rf"@{re.escape(socket.gethostname())}\b", "@node1", log)
    return re.sub(r"/tmp/torchelastic_\w+", "/work/logs", log)


IN_PROCESS = """
import datetime, json, sys
import torch
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig
given = json.loads(sys.argv[1])
inprocess.Wrapper(**{name: datetime.timedelta(seconds=value) for name, value in given["in_process"].items()})
parsed = FaultToleranceConfig._parse_section_timeouts_arg(given["sections"])
print(json.dumps(FaultToleranceConfig(rank_section_timeouts=parsed).rank_section_timeouts))
"""


def test_the_package_takes_the_timeouts(tmp_path):
    """The wrapper checks their order, which Bridge does not: a hard timeout above the barrier is refused."""
    chosen = read_plan(plan_file(tmp_path, "m2"))
    settings = resiliency(chosen, Wishes(launcher="srun", in_process=True, async_save=False))
    names = ("soft_timeout", "hard_timeout", "barrier_timeout", "completion_timeout", "heartbeat_interval",
             "heartbeat_timeout")  # fmt: skip
    values = {name: settings.value(f"inprocess_restart.{name}") for name in names}
    given = {"in_process": values, "sections": settings.limits.sections}
    assert values["hard_timeout"] > 120
    ran = package(given)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "setup": settings.limits.setup_s, "step": settings.limits.step_s,
        "checkpointing": settings.limits.checkpointing_s,
    }  # fmt: skip
    assert package({**given, "in_process": {**values, "barrier_timeout": 120.0}}).returncode != 0


def package(given: dict) -> subprocess.CompletedProcess[str]:
    """The package with these settings, in its own interpreter."""
    command = [str(LAUNCHER.with_name("python")), "-W", "ignore", "-c", IN_PROCESS, json.dumps(given)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
