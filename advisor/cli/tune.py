"""`advisor tune`: an Optuna study over the layouts that fit, each measured on the real stack."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.survival import PLAN_ARGUMENT, flag, valued
from advisor.cli.trials import DRIVE_OPTIONS, Follower, drive_of, plan_path, require_stack, rules_of
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

if TYPE_CHECKING:
    from advisor.trial.progress import Progress
    from advisor.trial.trials import Trial

FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--trials", section="Study", type=click.IntRange(1, 100_000), default=20, envvar="ADVISOR_TRIALS",
           show_default=True, metavar="N", help="Layouts tried in all, earlier ones of the study included."),
    valued("storage", "URL", "Study", "sqlite:///FILE or journal:PATH; several processes may work on one."),
    valued("study", "NAME", "Study", "Name in the storage.", default="advisor", show_default=True),
    option("--seed", section="Study", type=click.IntRange(0, 2**31), default=0, envvar="ADVISOR_SEED",
           show_default=True, metavar="N", help="Of the sampler."),
    valued("budget", "1h", "Study", "Time for all trials together."),
    flag("resume", "Study", "Take records in --out for trials that the study has lost."),
    *DRIVE_OPTIONS,
    FORM,
    valued("out", "DIR", "Output", "Folder of the records.", default="trials", show_default=True),
    *REST,
)  # fmt: skip


@click.command("tune", cls=SectionCommand)
@PLAN_ARGUMENT
@with_options(OPTIONS)
def command(
    *, plan: str, trials: int, storage: str | None, study: str, seed: int, form: render.Format, out: str, quiet: bool,
    verbose: bool, **options: Any,
) -> int:  # fmt: skip
    """Search the layouts that fit by measuring them.

    The best predicted ones are tried first, then what Optuna's TPE proposes; memory over the budget is infeasible. A
    trial ends early when its steps rule out that it becomes the best, the study when no interval left reaches the best.
    Exit code 1: nothing could be measured.
    """
    from advisor.cli.pages.tune import tune_document
    from advisor.configure.chosen import read_plan
    from advisor.trial.runner import run_trials
    from advisor.trial.store import Store
    from advisor.trial.study import best_of, contenders, hopeless, open_study, pool_of, tune

    drive, rules = drive_of(options), rules_of(options)
    path, follower = plan_path(plan), Follower(quiet)
    pool = pool_of(read_plan(path).request, str(path), drive)
    require_stack(pool, drive, rules)
    asked = open_study(study, storage, len(pool), seed)
    store = Store(plan_path(out))
    begin = time.monotonic()

    def run(trial: Trial) -> dict[str, Any] | None:
        spent = time.monotonic() - begin
        left = None if rules.budget_s is None else rules.budget_s - spent
        best = best_of(asked)
        best_rate = None if best is None else best.value

        def tell(trial: Trial, progress: Progress) -> bool:
            follower(trial, progress)
            return hopeless(trial, progress, best_rate)

        return next(run_trials([trial], store, replace(rules, budget_s=left), tell)).record

    try:
        tried = list(tune(asked, pool, trials, run))
    finally:
        follower.close()
    document = tune_document(asked, pool, tried, contenders(asked, pool), Path(out))
    render.show(document, render.Output(form, None, quiet, verbose))
    return EXIT_NEGATIVE if best_of(asked) is None else EXIT_OK
