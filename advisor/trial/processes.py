"""One process group: started by torchrun, watched, and ended with all its descendants.

Nothing of a trial outlives the runner: torchrun gets a death signal from Linux when the runner ends, whatever ends it,
and every rank gets one when torchrun ends (`guard`). What is stopped on purpose is stopped with all its descendants.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from advisor.trial.progress import Progress

Ending = Literal["ended", "stopped", "start-up timeout", "step timeout", "total timeout"]

GRACE_S = 3.0
POLL_S = 0.1
WORKER = ("-m", "advisor.trial.worker")


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: from the start to the first step, between two signs of life after it, and for the whole group."""

    start_s: float = 600.0
    step_s: float = 300.0
    total_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a group ended: by itself with `exit_code`, or else stopped or over a limit (`exit_code` is then None)."""

    ending: Ending
    exit_code: int | None
    seconds: float


def command(ranks: int, job_file: Path, folder: Path, program: Sequence[str] = WORKER) -> list[str]:
    """The torchrun command of a group of `ranks` ranks on this host; logs go to `folder`/logs."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
        "--max-restarts=0", "--redirects=3", f"--log-dir={folder / 'logs'}", *program, str(job_file), str(folder),
    ]  # fmt: skip


def environment(device: str, threads: int) -> dict[str, str]:
    """The variables of a rank: this process's own, with what every trial sets."""
    found = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    paths = [str(Path(__file__).resolve().parents[2]), found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if device == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
        # Megatron compiles small fused functions; on a CPU that costs more than the whole trial.
        found["TORCHDYNAMO_DISABLE"] = "1"
        found["GLOO_SOCKET_IFNAME"] = found.get("GLOO_SOCKET_IFNAME", "lo")
    return found


def run_group(
    words: Sequence[str], folder: Path, variables: dict[str, str], limits: Limits, tell: Callable[[Progress], object]
) -> Ended:
    """Run a group until it ends, a limit is reached, or `tell`, which gets its progress while it runs, answers True.

    Whatever leaves this function, an exception included, leaves no process of the group behind.
    """
    begin = time.monotonic()
    with _started(words, folder, variables) as group:
        progress = Progress(folder)
        while group.poll() is None:
            if progress.read() and tell(progress) is True:
                return Ended("stopped", None, time.monotonic() - begin)
            ending = _overrun(progress, limits, begin)
            if ending is not None:
                return Ended(ending, None, time.monotonic() - begin)
            time.sleep(POLL_S)
        progress.read()
        tell(progress)
        return Ended("ended", group.returncode, time.monotonic() - begin)


def _overrun(progress: Progress, limits: Limits, begin: float) -> Ending | None:
    now = time.monotonic()
    if now - begin > limits.total_s:
        return "total timeout"
    if progress.steps == 0:
        return "start-up timeout" if now - begin > limits.start_s else None
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
