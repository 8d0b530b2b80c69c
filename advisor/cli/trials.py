"""What trial and tune share: how a trial is driven, and a line on stderr that follows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli import render
from advisor.cli.options import option
from advisor.cli.parameters import OneOf, shorten
from advisor.cli.scheduled import JOB_NAMES, SHORT_JOB, short_job
from advisor.cli.survival import valued
from advisor.errors import EnvironmentMissingError, InputError

if TYPE_CHECKING:
    from advisor.trial.job import Drive
    from advisor.trial.processes import Limits
    from advisor.trial.progress import Progress
    from advisor.trial.runner import Backend, Rules
    from advisor.trial.store import Store
    from advisor.trial.trials import Trial

NEEDED = ("torch", "megatron.core", "psutil")
SECONDS = {"s": 1, "m": 60, "h": 3600, "": 1}
REDRAW_S = 0.5
# Ranks share the cores of a CPU host; beyond this many the trial says nothing about anything.
MOST_CPU_RANKS = 16

DRIVE_OPTIONS = (
    option("--backend", section="Run", type=OneOf(["local", "slurm"]), default="local", envvar="ADVISOR_BACKEND",
           show_default=True, help="Where: local = torchrun on this host, slurm = a job per trial."),
    option("--device", section="Run", type=OneOf(["auto", "cuda", "cpu"]), default="auto", envvar="ADVISOR_DEVICE",
           show_default=True, help="cpu = gloo and reference kernels: mechanics, and rates of a local-cpu system."),
    option("--steps", section="Run", type=click.IntRange(3, 100_000), default=20, envvar="ADVISOR_STEPS",
           show_default=True, metavar="N", help="Steps that are measured."),
    option("--warmup", section="Run", type=click.IntRange(0, 10_000), default=2, envvar="ADVISOR_WARMUP",
           show_default=True, metavar="N", help="Steps before them."),
    option("--profile-steps", section="Run", type=click.IntRange(0, 20), default=1, envvar="ADVISOR_PROFILE_STEPS",
           show_default=True, metavar="N", help="Steps after them under torch.profiler (0 = no traces)."),
    option("--threads", section="Run", type=click.IntRange(1, 1024), default=1, envvar="ADVISOR_THREADS",
           show_default=True, metavar="N", help="CPU threads of a rank."),
    valued("start-timeout", "10m", "Limits", "From the start to the first step.", default="10m", show_default=True),
    valued("step-timeout", "5m", "Limits", "Between two signs of life.", default="5m", show_default=True),
    valued("total-timeout", "1h", "Limits", "Of one trial.", default="1h", show_default=True),
    valued("queue-timeout", "1h", "Limits", "Of one trial, waiting for its nodes (slurm).", default="1h",
           show_default=True),
    *SHORT_JOB,
)  # fmt: skip


def seconds(name: str, text: str) -> float:
    """Seconds of 90s, 15m, 1.5h or a bare number; InputError otherwise."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise InputError(f"--{name} {shorten(text)} is no length of time", "90s, 15m or 1.5h")
    return float(found[1]) * SECONDS[found[2]]


def drive_of(options: dict[str, Any]) -> Drive:
    """How trials are driven, taken out of `options`; EnvironmentMissingError where the host lacks what that needs."""
    from advisor.trial.job import Drive

    device = options.pop("device")
    if device == "auto":
        device = "cuda" if options["backend"] == "slurm" or shutil.which("nvidia-smi") else "cpu"
    names = ("steps", "warmup", "profile_steps", "threads")
    return Drive(device=device, **{name: options.pop(name) for name in names})


def require_stack(trials: Sequence[Trial], drive: Drive, rules: Rules, workers: int = 1) -> None:
    """Refuse what cannot run: no Slurm; or on this host packages that are missing, more ranks than it has room for."""
    from advisor.trial.slurm import Slurm, require_slurm

    if isinstance(rules.backend, Slurm):
        require_slurm()
        return
    require_packages(NEEDED)
    most = max(trial.ranks for trial in trials)
    held = MOST_CPU_RANKS if drive.device == "cpu" else len(gpus_visible())
    if drive.device == "cpu" and most > held:
        raise EnvironmentMissingError(
            f"the plan is for {most} GPUs; this host has none, and runs up to {MOST_CPU_RANKS} ranks on its CPU",
            "plan for fewer GPUs, or see the commands with --dry-run",
        )
    if most > held:
        raise EnvironmentMissingError(
            f"the plan is for {most} GPUs, this host has {held}", "plan for as many, or see the commands with --dry-run"
        )
    if workers * most > held:
        raise EnvironmentMissingError(
            f"{workers} workers with trials of {most} ranks are {workers * most}, this host runs {held}",
            f"--workers {held // most}",
        )


def gpus_visible() -> list[str]:
    """GPUs that nvidia-smi lists, as CUDA_VISIBLE_DEVICES names them; none without it."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return []
    listed = subprocess.run([path, "--list-gpus"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    found = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [str(number) for number in range(found)]
    return named if visible is None else [one.strip() for one in visible.split(",") if one.strip()][:found]


def require_packages(names: Sequence[str]) -> None:
    """EnvironmentMissingError with all packages that are not installed."""
    missing = [name for name in names if not _present(name)]
    if missing:
        raise EnvironmentMissingError(f"{', '.join(missing)} not installed", "pip install 'megatron-advisor[trial]'")


def _present(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def rules_of(options: dict[str, Any]) -> Rules:
    """Limits, budget, --resume and what starts the ranks, taken out of `options`."""
    from advisor.trial.processes import Limits
    from advisor.trial.runner import Rules

    names = {"start_s": "start_timeout", "step_s": "step_timeout", "total_s": "total_timeout",
             "queue_s": "queue_timeout"}  # fmt: skip
    limits = Limits(**{to: seconds(name.replace("_", "-"), options.pop(name)) for to, name in names.items()})
    budget = options.pop("budget", None)
    return Rules(
        limits,
        None if budget is None else seconds("budget", budget),
        options.pop("resume", False),
        _backend(options, limits),
    )


def _backend(options: dict[str, Any], limits: Limits) -> Backend:
    from advisor.trial.local import Local
    from advisor.trial.slurm import Slurm, time_limit

    given = [name for name in JOB_NAMES if options[name]]
    wanted, time_s = short_job(options)
    if options.pop("backend") == "slurm":
        return Slurm(replace(wanted, time_s=time_s or time_limit(limits.total_s)))
    if given:
        raise InputError(f"--{given[0]} is asked of a Slurm job, and this runs on this host", "--backend slurm")
    return Local()


class Follower:
    """Says on stderr where a running trial is; on a terminal in place, elsewhere a line when a trial begins."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.said, self.drawn_s = quiet, "", 0.0

    def __call__(self, trial: Trial, progress: Progress) -> None:
        """Take note of progress."""
        now = time.monotonic()
        if self.quiet or (trial.name == self.said and now - self.drawn_s < REDRAW_S):
            return
        fresh, self.said, self.drawn_s = trial.name != self.said, trial.name, now
        render.status(_words(trial, progress), fresh)

    def close(self) -> None:
        """Leave no line behind."""
        if not self.quiet:
            render.status("", False)


class Crowd:
    """Says on stderr how far several workers have come; on a terminal in place, elsewhere when a trial has ended."""

    def __init__(self, quiet: bool, store: Store, trials: int) -> None:
        self.quiet, self.store, self.trials = quiet, store, trials
        self.before, self.said = len(store.records()), -1

    def __call__(self) -> None:
        """Look at the records."""
        done = len(self.store.records()) - self.before
        if not self.quiet and done != self.said:
            self.said = done
            render.status(f"{done} trials ended, of up to {self.trials}", True)

    def close(self) -> None:
        """Leave no line behind."""
        if not self.quiet:
            render.status("", False)


def _words(trial: Trial, progress: Progress) -> str:
    run = trial.job["run"]
    total = run["warmup"] + run["steps"] + (run["profile_steps"] + 1 if run["profile_steps"] else 0)
    parts = [f"{trial.name}: step {progress.steps} of {total}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    if progress.step_s:
        layout = trial.run_candidate.layout
        rate = layout.gbs * trial.run_request.workload.seq_len / progress.step_s / layout.gpus
        parts.append(f"{rate:,.0f} tokens/s/GPU")
    return ", ".join(parts)


def plan_path(text: str) -> Path:
    """The path of a plan; a NUL byte in it is refused here, as the operating system would."""
    if not text or "\0" in text:
        raise InputError(f"{shorten(text)} is no path")
    return Path(text)
