"""A real Slurm of two nodes on this host: munged, slurmctld and two slurmd, started by the fixture and stopped again.

Nodes lie about their hardware (eight GPUs, many cores), so that scripts for real clusters can be tested. Further nodes
exist on paper only: `sbatch --test-only` plans with them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
LIVE, PAPER, GPUS = 2, 62, 8
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdSpoolDir={root}/spool_%n
SlurmdPidFile={root}/slurmd_%n.pid
SlurmdLogFile={root}/slurmd_%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
MinJobAge=300
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
OverTimeLimit=0
InactiveLimit=0
GresTypes=gpu
{nodes}
NodeName=paper[1-{paper}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_paper}-{last_paper}] {shape} State=CLOUD
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=INFINITE
PartitionName=batch Nodes=n[1-{live}] Default=YES MaxTime=UNLIMITED State=UP
PartitionName=urgent Nodes=n[1-{live}] PriorityTier=10 MaxTime=UNLIMITED State=UP
PartitionName=large Nodes=paper[1-{paper}] MaxTime=UNLIMITED State=UP
"""
SHAPE = f"CPUs=64 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=64000 Gres=gpu:{GPUS}"


def missing() -> str:
    """Why the fixture cannot run here, or an empty string."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (make slurm-deps)"
    return "" if os.geteuid() == 0 else "the daemons need root"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass(frozen=True)
class Slurm:
    """A running cluster; `environment` makes its clients find it."""

    root: Path
    environment: dict[str, str]

    def run(self, *args: str, timeout: float = 60, **more: str) -> subprocess.CompletedProcess[str]:
        """A client program with its output."""
        environment = {**self.environment, **more}
        return subprocess.run(args, capture_output=True, text=True, timeout=timeout, check=False, env=environment)

    def test_only(self, script: Path) -> subprocess.CompletedProcess[str]:
        """Whether the scheduler would take the script."""
        return self.run("sbatch", "--test-only", str(script))

    def field(self, job: int, name: str) -> str:
        """A field of scontrol's record of a job."""
        said = self.run("scontrol", "show", "job", "-o", str(job)).stdout
        return next((word.split("=", 1)[1] for word in said.split() if word.startswith(f"{name}=")), "")

    def wait(
        self,
        job: int,
        states: tuple[str, ...] = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"),
        timeout: float = 120,
    ) -> str:
        """The state of a job once it is one of `states`."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            state = self.field(job, "JobState")
            if state in states:
                return state
            time.sleep(0.3)
        raise AssertionError(f"job {job} is {self.field(job, 'JobState')} after {timeout} s: {self.logs()}")

    def logs(self) -> str:
        """Ends of the daemons' logs."""
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.root.glob("*.log")))


@contextmanager
def running(root: Path) -> Iterator[Slurm]:
    """The cluster with its state in `root`; every daemon started here is stopped here."""
    host = socket.gethostname().split(".")[0]
    controller, *ports = free_ports(1 + LIVE)
    nodes = "\n".join(
        f"NodeName=n{i + 1} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {SHAPE}" for i, port in enumerate(ports)
    )
    text = CONF.format(
        root=root, host=host, port=controller, nodes=nodes, live=LIVE, paper=PAPER, first_paper=61001,
        last_paper=61000 + PAPER, shape=SHAPE,
    )  # fmt: skip
    conf = root / "slurm.conf"
    conf.write_text(text)
    for index in range(GPUS):
        (root / f"gpu{index}").touch()
    (root / "gres.conf").write_text(f"NodeName=n[1-{LIVE}],paper[1-{PAPER}] Name=gpu File={root}/gpu[0-{GPUS - 1}]\n")
    (root / "state").mkdir()
    for index in range(LIVE):
        (root / f"spool_n{index + 1}").mkdir()
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(conf), "ADVISOR_MASTER_ADDR": "127.0.0.1"}
    daemons: list[subprocess.Popen[bytes]] = []
    slurm = Slurm(root, environment)
    try:
        daemons.append(_munge(root, environment))
        _until((root / "munge.socket").exists, "munged", slurm)
        daemons.append(_start(["slurmctld", "-D", "-f", str(conf)], root, environment))
        for index in range(LIVE):
            daemons.append(_start(["slurmd", "-D", "-f", str(conf), "-N", f"n{index + 1}"], root, environment))
        ready = ["sinfo", "-h", "-p", "batch", "-o", "%T %D"]
        _until(lambda: slurm.run(*ready).stdout.strip() == f"idle {LIVE}", "two idle nodes", slurm)
        yield slurm
    finally:
        slurm.run("scancel", "--state=RUNNING,PENDING", "--me")
        for daemon in reversed(daemons):
            _stop(daemon)


def _munge(root: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A munged of our own, with its own key and socket."""
    key = root / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    options = [f"--key-file={key}", f"--socket={root}/munge.socket", f"--pid-file={root}/munged.pid",
               f"--log-file={root}/munged.log", f"--seed-file={root}/munged.seed"]  # fmt: skip
    return _start(["munged", "--foreground", "--force", *options], root, environment)


def _start(args: list[str], root: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (root / f"{args[0]}_{args[-1]}.out".replace("/", "_")).open("wb") as out:
        return subprocess.Popen(args, stdout=out, stderr=out, env=environment, start_new_session=True)


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    """End a daemon and what it still runs: its session is its own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(daemon.pid, sign)
            daemon.wait(timeout=10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return


def _until(holds: object, what: str, slurm: Slurm, timeout: float = 40) -> None:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if holds():  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise AssertionError(f"no {what} after {timeout} s: {slurm.logs()}")
