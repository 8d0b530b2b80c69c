"""A trial through Megatron-Bridge: its own run_recipe.py with the plan's overrides, read back from its log."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from advisor.configure.chosen import Chosen
from advisor.configure.job import preset
from advisor.errors import EnvironmentMissingError, InputError
from advisor.export.overrides import overrides
from advisor.export.subject import Subject, recipe, subject
from advisor.trial import guard
from advisor.trial.outcome import Failure, outcome_of
from advisor.trial.processes import Limits, environment, run_group
from advisor.trial.store import Store
from advisor.trial.trials import words_of

SCRIPT = Path("scripts/training/run_recipe.py")
# Ranks of a script that is not this package's end with torchrun too.
GUARDED = ("-m", guard.__name__, guard.NAME)
PACKAGE = "megatron-bridge"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A layout as Bridge is told it: the recipe of the model, and everything else as overrides."""

    chosen: Chosen
    made: Subject
    name: str
    overrides: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """What run_recipe.py gets."""
        return ("--recipe", self.name, *self.overrides)

    def command(self, script: Path, guard: Sequence[str] = ()) -> list[str]:
        """The torchrun command of this host; `guard` are words that run the script in their own way."""
        ranks = self.chosen.cluster.gpus
        return [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            "--max-restarts=0", *guard, str(script), *self.arguments,
        ]  # fmt: skip

    def shown(self, script: Path) -> str:
        """The command for a shell."""
        return shlex.join(["torchrun", *self.command(script)[3:]])


def make_recipe(chosen: Chosen, version: str | None, steps: int, warmup: int) -> Recipe:
    """The recipe of a layout for a version of Bridge (None = the newest known), for `warmup` + `steps` iterations.

    Raises InputError for a model without a recipe, and for a layout that Bridge would refuse.
    """
    made = subject(chosen, "bridge-overrides", version)
    found = recipe(made.model.name, made.version)
    if found is None:
        raise InputError(
            f"Bridge {made.version} has no recipe for {made.model.name}, so run_recipe.py cannot run it",
            "leave out --via: the worker builds the model itself",
        )
    layout = [word for _, group in overrides(made) for word in group]
    return Recipe(chosen, made, found[1], (*layout, *short_run(made.version, steps, warmup)))


def short_run(version: str, steps: int, warmup: int) -> tuple[str, ...]:
    """Overrides of a run that only measures: a report per iteration, no evaluation, no checkpoint, a short schedule."""
    total = steps + warmup
    evaluation = preset("versions.yaml")["bridge"][version]["evaluation"]
    return (
        f"train.train_iters={total}",
        f"{evaluation}.eval_iters=0",
        f"{evaluation}.eval_interval={total + 1}",
        "scheduler.lr_warmup_iters=0",
        f"scheduler.lr_decay_iters={total}",
        "logger.log_interval=1",
        "logger.log_throughput=true",
        "checkpoint.save=null",
        "checkpoint.load=null",
    )


def installed_version() -> str | None:
    """Version of the installed Bridge, None where there is none."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_bridge(script: Path, gpus_here: int, gpus: int) -> str:
    """The installed version; EnvironmentMissingError with the first thing that a run would miss."""
    version = installed_version()
    fix = "see the command with --dry-run, and give the log of a run elsewhere with --log"
    if version is None or find_spec("megatron.bridge") is None:
        raise EnvironmentMissingError("Megatron-Bridge is not installed on this host", fix)
    if not script.is_file():
        raise EnvironmentMissingError(
            f"there is no {script}", "--bridge-script PATH to run_recipe.py of a checkout of Megatron-Bridge"
        )
    if gpus_here < gpus:
        raise EnvironmentMissingError(f"the plan is for {gpus} GPUs, this host has {gpus_here}", fix)
    return version


@dataclass(frozen=True, slots=True)
class BridgeRun:
    """What a run left: its folder with the logs, and why it ended early (None where it did not)."""

    folder: Path
    failure: Failure | None

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that say something."""
        paths = (self.folder / name for name in ("stdout", "stderr"))
        return tuple(str(path) for path in paths if path.exists() and path.stat().st_size)


def run_recipe(one: Recipe, script: Path, store: Store, limits: Limits) -> BridgeRun:
    """Run a recipe on this host to its end, in a new folder of `store` with its command and logs.

    Nothing of the run survives this call. Bridge writes no progress, so only the start and total limits hold it.
    """
    folder = store.attempt(f"bridge-{words_of(one.made.layout, one.made.knobs)}")
    (folder / "command").write_text(shlex.join(one.command(script)) + "\n", encoding="utf-8")
    planned = {variable.name: variable.value for variable in one.made.environment}
    variables = {**environment("cuda", os.cpu_count() or 1, planned)}
    whole = replace(limits, start_s=limits.total_s, step_s=limits.total_s)
    ended = run_group(one.command(script, GUARDED), folder, variables, whole, lambda _: None)
    if ended.ending == "ended" and ended.exit_code == 0:
        return BridgeRun(folder, None)
    outcome = outcome_of(ended, folder, one.chosen.cluster.gpus)
    return BridgeRun(folder, outcome.failure)
