"""Several workers of one study on this host: processes that end with the one that started them.

They are forks, so that each has the list of candidates without searching again; whoever calls has no other thread and
has opened no storage. With trials through Slurm a worker only submits and follows, so that several jobs run at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess

from advisor.errors import EXIT_INTERRUPTED
from advisor.trial.guard import end_with

POLL_S = 0.2
# A worker that is asked to end ends its trial first, which takes Slurm a while.
GRACE_S = 150.0


def in_workers(count: int, work: Callable[[int], int], look: Callable[[], None]) -> tuple[int, ...]:
    """Exit codes of `count` processes, as `work(number)` gives them in each; `look` is called while they run.

    An exception here, as of Ctrl-C, ends them all in order; when this process is killed they are too.
    """
    parent = os.getpid()

    def begin(number: int) -> None:
        end_with(parent)
        try:
            code = work(number)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED  # what there is to say about it says the parent
        sys.exit(code)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=begin, args=(number,), name=f"worker {number}") for number in range(count)]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            look()
            time.sleep(POLL_S)
    finally:
        _end(workers)
    return tuple(worker.exitcode or 0 for worker in workers)


def _end(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        if worker.is_alive() and worker.pid is not None:
            os.kill(worker.pid, signal.SIGINT)
    end = time.monotonic() + GRACE_S
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()


def share_of_gpus(visible: Sequence[str], number: int, ranks: int) -> str:
    """CUDA_VISIBLE_DEVICES of a worker whose trials have up to `ranks` ranks."""
    return ",".join(visible[number * ranks : (number + 1) * ranks])
