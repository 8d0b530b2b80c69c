"""`advisor trial --via bridge`: the best layout of a plan through run_recipe.py, read back from its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli import render
from advisor.cli.document import Document, Line
from advisor.cli.parameters import OneOf
from advisor.cli.survival import valued
from advisor.cli.trials import gpus_visible
from advisor.errors import EXIT_NEGATIVE, EXIT_OK, InputError

if TYPE_CHECKING:
    from advisor.configure.chosen import Chosen
    from advisor.trial.job import Drive
    from advisor.trial.outcome import Failure
    from advisor.trial.processes import Limits
    from advisor.trial.via_bridge import Recipe

BRIDGE_OPTIONS = (
    valued("via", "[worker|bridge]", "Run",
           "worker = advisor's own, on megatron-core; bridge = run_recipe.py of Megatron-Bridge, the best layout.",
           type=OneOf(["worker", "bridge"]), default="worker", show_default=True),
    valued("bridge-script", "PATH", "Run",
           "run_recipe.py (default: scripts/training/run_recipe.py below the current folder)."),
    valued("log", "LOG", "Run", "With --via bridge: read the log of a run elsewhere, and run nothing."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What --via bridge was asked for: the script, a log of another run, the folder of records, only to be shown."""

    script: str | None
    log: str | None
    out: Path
    dry_run: bool


def through_bridge(asked: Asked, plan: Path, drive: Drive, limits: Limits, output: render.Output) -> int:
    """Run, or read, or only show; exit code 0 when what the log tells is as planned."""
    from advisor.configure.chosen import read_plan
    from advisor.trial.store import Store
    from advisor.trial.via_bridge import SCRIPT, installed_version, make_recipe, require_bridge, run_recipe

    chosen = read_plan(plan)
    if asked.log is not None:
        return _shown([asked.log], chosen, output)
    script = SCRIPT if asked.script is None else Path(asked.script)
    if asked.dry_run:
        render.show(_dry_document(make_recipe(chosen, installed_version(), drive.steps, drive.warmup), script), output)
        return EXIT_OK
    version = require_bridge(script, len(gpus_visible()), chosen.cluster.gpus)
    ran = run_recipe(make_recipe(chosen, version, drive.steps, drive.warmup), script, Store(asked.out), limits)
    if ran.failure is not None:
        render.show(_failed_document(ran.failure, ran.folder), output)
        return EXIT_NEGATIVE
    return _shown(ran.logs, chosen, output)


def refuse_beside_bridge(via: str, given: dict[str, object]) -> None:
    """InputError for options that only the other way of running has."""
    wrong = [name for name, value in given.items() if value]
    if wrong and via == "bridge":
        raise InputError(f"--{wrong[0]} is for the worker, and --via bridge runs a recipe", f"leave out --{wrong[0]}")
    if wrong:
        raise InputError(f"--{wrong[0]} is for a recipe of Bridge, and the worker runs", "--via bridge")


def _shown(logs: list[str] | tuple[str, ...], chosen: Chosen, output: render.Output) -> int:
    from advisor.check.readback import compare, read_log
    from advisor.cli.pages.readback import readback_document

    observed = read_log(list(logs))
    found = compare(observed, chosen)
    render.show(readback_document(observed, found), output)
    return EXIT_OK if found.outcome == "as planned" and observed.steps is not None else EXIT_NEGATIVE


def _dry_document(one: Recipe, script: Path) -> Document:
    command = one.shown(script)
    record = {
        "schema_version": 1,
        "dry_run": True,
        "via": "bridge",
        "bridge": one.made.version,
        "recipe": one.name,
        "overrides": list(one.overrides),
        "environment": {variable.name: variable.value for variable in one.made.environment},
        "command": command,
    }
    hint = "a job of several nodes: advisor launch PLAN -- run_recipe.py; then --via bridge --log LOG"
    return Document((Line(command),), record, [record], (hint,))


def _failed_document(failure: Failure, folder: Path) -> Document:
    lines = [Line(f"the run failed: {failure.message}", "bad"), *(Line(f"  {line}", "dim") for line in failure.excerpt)]
    if failure.fix:
        lines.append(Line(f"  fix: {failure.fix}"))
    lines.append(Line(f"  logs: {folder}", "dim"))
    record = {"schema_version": 1, "via": "bridge", "failure": failure.to_dict(), "folder": str(folder)}
    return Document(tuple(lines), record, [record])
