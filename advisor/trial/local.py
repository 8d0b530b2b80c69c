"""Trials on this host: the ranks of a trial are one process group of torchrun."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.trial.processes import WORKER, Ended, Limits, command, environment, run_group
from advisor.trial.progress import Progress
from advisor.trial.trials import Trial


@dataclass(frozen=True, slots=True)
class Local:
    """torchrun on this host; `program` is what every rank runs, as arguments of Python."""

    program: Sequence[str] = WORKER

    def command(self, trial: Trial, folder: Path) -> str:
        """The torchrun command, for a shell."""
        return shlex.join(["python", *command(trial.ranks, folder / "job.json", folder, self.program)[1:]])

    def script(self, trial: Trial, folder: Path) -> None:
        """There is none."""

    def run(self, trial: Trial, folder: Path, limits: Limits, tell: Callable[[Progress], object]) -> Ended:
        """Run the group and leave its command beside the job."""
        words = command(trial.ranks, folder / "job.json", folder, self.program)
        (folder / "command").write_text(shlex.join(words) + "\n", encoding="utf-8")
        run = trial.job["run"]
        variables = environment(run["device"], run["threads"], trial.job["environment"])
        return run_group(words, folder, variables, limits, tell)
