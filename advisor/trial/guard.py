"""Ends a process together with the one that started it; as a program, runs a module that way.

`python -m advisor.trial.guard RUNNER_PID MODULE ARGS...` asks Linux for SIGKILL at the death of process RUNNER_PID, its
parent, and then is `python -m MODULE ARGS...`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Die when `parent`, the process that started this one, dies; at once where it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
