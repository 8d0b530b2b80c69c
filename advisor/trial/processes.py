"""One process group: started by torchrun, watched, and ended with all its descendants.

Nothing of a trial outlives the runner: torchrun gets a death signal from Linux when the runner ends, whatever ends it,
and every rank gets one when torchrun ends (`guard`). What is stopped on purpose is stopped with all its descendants.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from advisor.trial.progress import Progress

Ending = Literal["ended", "stopped", "queue timeout", "start-up timeout", "step timeout", "total timeout"]

GRACE_S = 3.0
POLL_S = 0.1
WORKER = ("-m", "advisor.trial.worker")


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: from the start to the first step, between two signs of life after it, for the whole group; in a queue.

    `end_s` counts the queue and everything else: what a budget has left.
    """

    start_s: float = 600.0
    step_s: float = 300.0
    total_s: float = 3600.0
    queue_s: float = 3600.0
    end_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Ended:
    """How a group ended: by itself with `exit_code`, or else stopped or over a limit (`exit_code` is then None).

    `job` is what a scheduler says about it: id, state, reason, restarts, nodes, seconds in the queue.
    """

    ending: Ending
    exit_code: int | None
    seconds: float
    job: Mapping[str, Any] | None = None


class Group(Protocol):
    """A process group that runs, or waits for its nodes."""

    def poll(self) -> int | None:
        """The exit code once it has ended."""

    def waits(self) -> bool:
        """Whether it has not been started yet."""

    def attempt(self) -> int:
        """How often it was started again."""


def command(ranks: int, job_file: Path, folder: Path, program: Sequence[str] = WORKER) -> list[str]:
    """The torchrun command of a group of `ranks` ranks on this host; logs go to `folder`/logs."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
        "--max-restarts=0", "--redirects=3", f"--log-dir={folder / 'logs'}", *program, str(job_file), str(folder),
    ]  # fmt: skip


def variables(device: str, threads: int) -> dict[str, str]:
    """What every rank of a trial finds in its environment, whoever starts it."""
    found = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        # Megatron compiles small fused functions; on a CPU that costs more than the whole trial.
        found |= {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
    return found


def environment(device: str, threads: int, planned: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The variables of a rank on this host: this process's own, those of the plan, what every trial sets."""
    found = {**os.environ, **planned, **variables(device, threads), "PYTHONPATH": package_path()}
    if device == "cpu":
        found["GLOO_SOCKET_IFNAME"] = found.get("GLOO_SOCKET_IFNAME", "lo")
    return found


def package_path() -> str:
    """PYTHONPATH with which this package is found."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)


def run_group(
    words: Sequence[str], folder: Path, variables: dict[str, str], limits: Limits, tell: Callable[[Progress], object]
) -> Ended:
    """Run a group until it ends, a limit is reached, or `tell`, which gets its progress while it runs, answers True.

    Whatever leaves this function, an exception included, leaves no process of the group behind.
    """
    with _started(words, folder, variables) as group:
        return follow(Local(group), folder, limits, tell)


@dataclass(frozen=True, slots=True)
class Local:
    """A group on this host: it runs at once, and once."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        """The exit code of torchrun once it has ended."""
        return self.process.poll()

    def waits(self) -> bool:
        """Never."""
        return False

    def attempt(self) -> int:
        """The first."""
        return 0


def follow(group: Group, folder: Path, limits: Limits, tell: Callable[[Progress], object]) -> Ended:
    """Watch a group that whoever calls has started, and ends; `limits` count from its start, a new start anew."""
    begin = start = time.monotonic()
    progress, attempt = Progress(folder), group.attempt()
    while (code := group.poll()) is None:
        if group.waits() or group.attempt() != attempt:
            progress, attempt, start = Progress(folder), group.attempt(), time.monotonic()
        elif progress.read() and tell(progress) is True:
            return Ended("stopped", None, time.monotonic() - begin)
        ending = _overrun(progress, limits, begin, start, group.waits())
        if ending is not None:
            return Ended(ending, None, time.monotonic() - begin)
        time.sleep(POLL_S)
    progress.read()
    tell(progress)
    return Ended("ended", code, time.monotonic() - begin)


def _overrun(progress: Progress, limits: Limits, begin: float, start: float, waits: bool) -> Ending | None:
    now = time.monotonic()
    if now - begin > limits.end_s:
        return "total timeout"
    if waits:
        return "queue timeout" if now - begin > limits.queue_s else None
    if now - start > limits.total_s:
        return "total timeout"
    if progress.steps == 0:
        return "start-up timeout" if now - start > limits.start_s else None
    return "step timeout" if now - progress.newest_s > limits.step_s else None


@contextlib.contextmanager
def _started(words: Sequence[str], folder: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        interpreter, _, *module = words
        group = subprocess.Popen(  # noqa: S603 - the words are this package's own
            [interpreter, "-m", "advisor.trial.guard", str(os.getpid()), *module],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=variables,
            start_new_session=True,
        )
        try:
            yield group
        finally:
            if group.poll() is None:
                end(group.pid)
            group.wait()


def end(pid: int) -> None:
    """End a process with all its descendants: asked first, killed after a grace period."""
    import psutil

    try:
        first = psutil.Process(pid)
        alive: list[Any] = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for stop, wait in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(stop)
        _, alive = psutil.wait_procs(alive, timeout=wait)
        if not alive:
            return
