"""A rank that only acts: writes progress like the worker and then does what the file `act.json` beside its job says.

Run by torchrun in place of the worker, so that hangs, crashes and orphans are tested without building a model.
`act.json` maps a rank to one of: hang, crash, kill, late (never starts), deaf (hangs and ignores SIGTERM).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from advisor.trial.guard import end_with_starter


def main(job_file: str, folder: str) -> None:
    end_with_starter()
    rank = int(os.environ["RANK"])
    where = Path(folder)
    acts = json.loads((where.parents[1] / "act.json").read_text())
    act = acts.get(str(rank), "")
    run = json.loads(Path(job_file).read_text())["run"]
    if act == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file = (where / f"progress-{rank}.jsonl").open("a", buffering=1)

    def say(**facts: object) -> None:
        file.write(json.dumps(facts) + "\n")

    say(at="started", s=0.0, pid=os.getpid())
    if act == "late":
        time.sleep(600)
    for number in range(run["warmup"] + run["steps"]):
        if number == 2 and act:
            do(act, where, rank)
        phase = "warm-up" if number < run["warmup"] else "steady"
        say(at="step", s=0.0, number=number, phase=phase, step_s=0.01, loss=5.0 - number)
        time.sleep(0.01)
    leave(where, rank, "done")


def leave(where: Path, rank: int, outcome: str, message: str = "") -> None:
    found = {"rank": rank, "outcome": outcome, "message": message, "memory": {"resident_bytes": 1000 + rank}}
    (where / f"rank-{rank}.json").write_text(json.dumps(found))


def do(act: str, where: Path, rank: int) -> None:
    if act in {"hang", "deaf"}:
        time.sleep(600)
    if act == "crash":
        leave(where, rank, "crash", "ValueError: the act says so")
        raise ValueError("the act says so")
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
