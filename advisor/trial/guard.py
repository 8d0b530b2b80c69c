"""Ends a process together with the one that started it; as a program, runs Python code that way.

`python -m advisor.trial.guard RUNNER_PID MODULE ARGS...` asks Linux for SIGKILL at the death of process RUNNER_PID, its
parent, and then is `python -m MODULE ARGS...`; a name that ends in .py is that file. RUNNER_PID may be `starter`, the
guarded process above: a rank asks for that one, because it may begin when torchrun is dead already, and then has
another parent.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
NAME = "starter"
STARTER = "ADVISOR_STARTER_PID"


def end_with(parent: int) -> None:
    """Die when `parent`, the process that started this one, dies; at once where it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_with_starter() -> None:
    """Die with the guarded process that started this one; where nothing above is guarded, with the parent of now."""
    end_with(int(os.environ.get(STARTER, os.getppid())))


def _main(parent: str, words: Sequence[str]) -> None:
    if parent == NAME:
        end_with_starter()
    else:
        end_with(int(parent))
    os.environ[STARTER] = str(os.getpid())
    sys.argv = list(words)
    if not words[0].endswith(".py"):
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
