"""Trials through Slurm: each is one job of its own, with as many tasks per node as the plan uses GPUs there.

Nothing of a trial outlives the runner. Whatever leaves `run` cancels the job and waits until Slurm has ended it. A
runner that is killed, or whose host dies, no longer writes to the heartbeat file, and the job's own script then cancels
the job (`Slurm.lost_s`; advisor/export/slurm/templates/trial.sbatch.j2). A job that Slurm starts again, after a failed
node or a preemption, starts its trial afresh.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advisor.configure.chosen import Chosen
from advisor.configure.environment import Variable
from advisor.configure.launch import Launch, Wanted, placed
from advisor.errors import EnvironmentMissingError
from advisor.export.slurm import submit, trial_text
from advisor.trial.processes import WORKER, Ended, Limits, follow, package_path, variables
from advisor.trial.progress import Progress
from advisor.trial.trials import Trial

PROGRAMS = ("sbatch", "scontrol", "scancel", "squeue")
# Slurm counts whole minutes, and needs some time to start the ranks.
MINUTE_S, SPARE_S = 60, 120
LONGEST_CALL_S = 60.0
LONGEST_END_S = 120.0
LIVING = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "STOPPED", "REQUEUED",
          "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "STAGE_OUT", "SIGNALING", "RESV_DEL_HOLD"}  # fmt: skip
STARTED = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING"}


@dataclass(frozen=True, slots=True)
class Slurm:
    """One job per trial, each as `wanted`, whose command is the ranks'.

    `lost_s` is how long a job lives without a sign of the runner, `poll_s` how often Slurm is asked for its state.
    """

    wanted: Wanted
    lost_s: int = 60
    poll_s: float = 3.0
    program: tuple[str, ...] = WORKER

    def command(self, trial: Trial, folder: Path) -> str:
        """The sbatch command, for a shell."""
        return shlex.join(["sbatch", "--parsable", str(folder.absolute() / "job.sbatch")])

    def script(self, trial: Trial, folder: Path) -> str:
        """The script of a trial; InputError for a layout that does not fill nodes, and for what looks like a secret."""
        return trial_text(self._job(trial, folder.absolute()), folder.absolute(), self.lost_s)

    def run(self, trial: Trial, folder: Path, limits: Limits, tell: Callable[[Progress], object]) -> Ended:
        """Submit the job of a trial, follow it, and leave it ended."""
        script = folder.absolute() / "job.sbatch"
        script.write_text(self.script(trial, folder), encoding="utf-8")
        (folder / "command").write_text(self.command(trial, folder) + "\n", encoding="utf-8")
        with _submitted(script, self.poll_s) as job:
            ended = follow(job, folder, limits, tell)
        return replace(ended, job=job.facts())

    def _job(self, trial: Trial, folder: Path) -> Launch:
        run = trial.job["run"]
        python = "python" if self.wanted.container else sys.executable
        wanted = replace(
            self.wanted,
            command=(python, *self.program, str(folder / "job.json"), str(folder)),
            name=self.wanted.name or f"trial-{trial.name}",
            gres=self.wanted.gres and run["device"] == "cuda",
        )
        job = placed(Chosen(trial.run_request, trial.run_candidate, trial.source, trial.candidate.rank), wanted)
        said = variables(run["device"], run["threads"]) | ({} if job.container else {"PYTHONPATH": package_path()})
        found = {one.name: one for one in job.environment}
        found |= {name: Variable(name, value, "every trial", "trial") for name, value in said.items()}
        found |= {one.name: one for one in job.environment if one.source == "given"}
        return replace(job, environment=tuple(found.values()))


@dataclass(slots=True)
class SlurmJob:
    """A job in the queue or on its nodes, with what Slurm said about it last; every look is a sign of life to it."""

    number: int
    folder: Path
    poll_s: float
    state: str = "PENDING"
    said: dict[str, str] = field(default_factory=dict)
    queued_s: float = 0.0
    _begin: float = field(default_factory=time.monotonic)
    _asked: float = -math.inf
    _beaten: float = -math.inf
    _beats: int = 0

    def poll(self) -> int | None:
        """The exit code once the job has ended: 0, that of its script, or 128 and the signal."""
        self._beat()
        if time.monotonic() - self._asked >= self.poll_s:
            self.ask()
        if self.waits():
            self.queued_s = time.monotonic() - self._begin
        return None if self.state in LIVING else self.exit_code()

    def waits(self) -> bool:
        """Whether its script has not begun, or not begun again."""
        return self.state in LIVING and (self.state not in STARTED or self.attempt() < self.restarts())

    def attempt(self) -> int:
        """The attempt that its script has begun; -1 before the first."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "attempt").read_text(encoding="utf-8"))
        return -1

    def restarts(self) -> int:
        """How often Slurm has started it again."""
        return int(self.said.get("Restarts", "0"))

    def exit_code(self) -> int:
        """Of the script, 128 and more for a signal; 1 where the job was ended without either."""
        code, _, signal = self.said.get("ExitCode", "0:0").partition(":")
        number = int(code) or (128 + int(signal) if int(signal or 0) else 0)
        return number or (0 if self.state == "COMPLETED" else 1)

    def ask(self) -> None:
        """Ask Slurm for the state: its controller, and its accounts once the controller has forgotten the job."""
        self._asked = time.monotonic()
        said, gone = _shown(self.number)
        found = said or (_accounted(self.number) if gone else {})
        if found:
            self.said |= found
            self.state = found["JobState"]
        elif gone:
            self.state = "UNKNOWN"

    def facts(self) -> dict[str, Any]:
        """What the record holds of it."""
        return {
            "id": self.number,
            "state": self.state,
            "reason": self.said.get("Reason", "None"),
            "restarts": self.restarts(),
            "nodes": self.said.get("NodeList", ""),
            "queued_s": self.queued_s,
        }

    def _beat(self) -> None:
        if time.monotonic() - self._beaten >= 1.0:
            self._beaten, self._beats = time.monotonic(), self._beats + 1
            (self.folder / "heartbeat").write_text(f"{self._beats}\n", encoding="utf-8")


@contextlib.contextmanager
def _submitted(script: Path, poll_s: float) -> Iterator[SlurmJob]:
    """A job that is cancelled, and has ended, when this is left before its end."""
    job = SlurmJob(submit(script).job_id, script.parent, poll_s)
    try:
        yield job
    finally:
        if job.state in LIVING:
            _call("scancel", str(job.number))
            end = time.monotonic() + LONGEST_END_S
            while job.state in LIVING and time.monotonic() < end:
                job.ask()
                time.sleep(min(job.poll_s, 1.0))


def time_limit(total_s: float) -> int:
    """Seconds of a job whose trial may take `total_s`."""
    return math.ceil((total_s + SPARE_S) / MINUTE_S) * MINUTE_S


def require_slurm() -> None:
    """EnvironmentMissingError where the clients of Slurm are missing or no controller answers them."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        raise EnvironmentMissingError(
            f"no Slurm on this host: {', '.join(absent)} not found",
            "run on a login node of the cluster, or --backend local",
        )
    code, said = _call("squeue", "--noheader", "--me")
    if code:
        raise EnvironmentMissingError(
            f"no Slurm answers on this host: {' '.join(said.split())[:200]}", "run on a login node, or --backend local"
        )


def _call(*words: str) -> tuple[int, str]:
    """Exit code and what a client of Slurm said; code 1 where it does not answer in time."""
    try:
        ran = subprocess.run(  # noqa: S603 - a client of Slurm and a job id
            words, capture_output=True, text=True, timeout=LONGEST_CALL_S, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as problem:
        return 1, str(problem)
    return ran.returncode, ran.stdout if ran.returncode == 0 else ran.stderr


def _shown(number: int) -> tuple[dict[str, str], bool]:
    """What the controller holds of a job, and whether it has forgotten it."""
    code, said = _call("scontrol", "show", "job", "--oneliner", str(number))
    if code:
        return {}, "invalid job id" in said.lower()
    return dict(re.findall(r"(?:^|\s)(JobState|ExitCode|Restarts|Reason|NodeList)=(\S*)", said)), False


def _accounted(number: int) -> dict[str, str]:
    """What the accounts hold of a job; nothing where there are none."""
    code, said = _call("sacct", "-X", "-n", "-P", "-j", str(number), "-o", "State,ExitCode,NodeList")
    words = said.strip().splitlines()[-1].split("|") if code == 0 and said.strip() else []
    if len(words) != 3:
        return {}
    return {"JobState": words[0].split()[0], "ExitCode": words[1], "NodeList": words[2]}
