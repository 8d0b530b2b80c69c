"""`advisor tune`: an Optuna study over the layouts that fit, each measured on the real stack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.reported import reported
from advisor.cli.survival import PLAN_ARGUMENT, flag, valued
from advisor.cli.trials import (
    DRIVE_OPTIONS,
    Crowd,
    Follower,
    drive_of,
    gpus_visible,
    plan_path,
    require_stack,
    rules_of,
)
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

if TYPE_CHECKING:
    from advisor.trial.progress import Progress
    from advisor.trial.runner import Rules
    from advisor.trial.store import Store
    from advisor.trial.trials import Trial

JOURNAL = "study.log"

FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--trials", section="Study", type=click.IntRange(1, 100_000), default=20, envvar="ADVISOR_TRIALS",
           show_default=True, metavar="N", help="Layouts tried in all, earlier ones of the study included."),
    valued("storage", "URL", "Study", "sqlite:///FILE or journal:PATH; several processes may work on one."),
    valued("study", "NAME", "Study", "Name in the storage.", default="advisor", show_default=True),
    option("--seed", section="Study", type=click.IntRange(0, 2**31), default=0, envvar="ADVISOR_SEED",
           show_default=True, metavar="N", help="Of the sampler."),
    option("--workers", section="Study", type=click.IntRange(1, 1000), default=1, envvar="ADVISOR_WORKERS",
           show_default=True, metavar="N", help="Trials at a time, on one storage (default then: a journal in --out)."),
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
    verbose: bool, workers: int, **options: Any,
) -> int:  # fmt: skip
    """Search the layouts that fit by measuring them.

    The best predicted ones are tried first, then what Optuna's TPE proposes: other layouts, and other microbatch sizes,
    chunks, recompute sets, overlap switches, bucket sizes and dispatcher SMs of those that were measured. Memory over
    the budget is infeasible. A trial ends early when its steps rule out that it becomes the best, the study when no
    interval left reaches the best. Exit code 1: nothing could be measured.
    """
    from advisor.cli.pages.tune import tune_document
    from advisor.configure.chosen import read_plan
    from advisor.trial.space import Space
    from advisor.trial.store import Store
    from advisor.trial.study import best_of, contenders, finished, kept_at, open_study, pool_of, tune
    from advisor.trial.workers import in_workers, share_of_gpus

    drive, rules = drive_of(options), rules_of(options)
    path = plan_path(plan)
    space = Space(pool_of(read_plan(path).request, str(path), drive), drive)
    require_stack(space.pool, drive, rules, workers)
    store = Store(plan_path(out))
    where = f"journal:{store.folder / JOURNAL}" if storage is None and workers > 1 else storage

    asked = open_study(study, where, space.pool, seed)
    before = {trial.number for trial in finished(asked)}
    begin = time.monotonic()

    def work_on(one: Any, follower: Follower) -> int:
        with closing(follower), kept_at(where):
            for _ in tune(one, space, trials, _runner(one, store, rules, follower, begin=begin)):
                pass
        return EXIT_OK

    if workers == 1:
        work_on(asked, Follower(quiet))
    else:
        devices = gpus_visible()
        most = max(trial.ranks for trial in space.pool)

        def work(number: int) -> int:
            if drive.device == "cuda" and devices:
                os.environ["CUDA_VISIBLE_DEVICES"] = share_of_gpus(devices, number, most)
            return reported(lambda: work_on(open_study(study, where, space.pool, seed + number), Follower(True)))

        with closing(Crowd(quiet, store, trials)) as crowd:
            for number, code in enumerate(in_workers(workers, work, crowd)):
                if code:
                    render.notice(f"worker {number} ended with {code}; what it had finished is kept")
        asked = open_study(study, where, space.pool, seed)
    fresh = [trial.number for trial in finished(asked) if trial.number not in before]
    document = tune_document(asked, space, fresh, contenders(asked, space), Path(out))
    render.show(document, render.Output(form, None, quiet, verbose))
    return EXIT_NEGATIVE if best_of(asked) is None else EXIT_OK


def _runner(
    asked: Any, store: Store, rules: Rules, follower: Follower, *, begin: float
) -> Callable[[Trial], dict[str, Any] | None]:
    """Gives the record of a trial that ends early when it cannot become the best; None when the budget is spent."""
    from advisor.trial.runner import run_trials
    from advisor.trial.study import best_of, hopeless

    def run(trial: Trial) -> dict[str, Any] | None:
        best = best_of(asked)
        best_rate = None if best is None else best.value
        left = None if rules.budget_s is None else rules.budget_s - (time.monotonic() - begin)

        def tell(trial: Trial, progress: Progress) -> bool:
            follower(trial, progress)
            return hopeless(trial, progress, best_rate)

        return next(run_trials([trial], store, replace(rules, budget_s=left), tell)).record

    return run
