"""`advisor trial`: the best layouts of a plan run for a few steps, measured against what was predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli import render
from advisor.cli.ab import AB_OPTIONS, Asked, compare
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.survival import PLAN_ARGUMENT, flag, valued
from advisor.cli.trials import DRIVE_OPTIONS, Follower, drive_of, plan_path, require_stack, rules_of
from advisor.cli.via_bridge import BRIDGE_OPTIONS, refuse_beside_bridge, through_bridge
from advisor.cli.via_bridge import Asked as OfBridge
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--top", section="Trials", type=click.IntRange(1, 10_000), default=3, envvar="ADVISOR_TOP",
           show_default=True, metavar="N", help="How many candidates of the plan, best first."),
    option("--proxy-layers", section="Trials", type=click.IntRange(1, 10_000), envvar="ADVISOR_PROXY_LAYERS",
           metavar="N", help="Fewer layers and microbatches of the same shapes; the full layout is extrapolated."),
    valued("budget", "15m", "Trials", "Time for all trials together."),
    flag("resume", "Trials", "Skip trials with a record in --out, failed ones too; what Slurm cut off is run again."),
    *AB_OPTIONS,
    *BRIDGE_OPTIONS,
    *DRIVE_OPTIONS,
    FORM,
    valued("out", "DIR", "Output", "Folder of the records.", default="trials", show_default=True),
    option("--dry-run", section="Output", is_flag=True, help="Say what would be run, and run nothing."),
    *REST,
)  # fmt: skip


@click.command("trial", cls=SectionCommand)
@PLAN_ARGUMENT
@with_options(OPTIONS)
def command(
    *, plan: str, top: int, proxy_layers: int | None, ab: str | None, pairs: int, via: str, bridge_script: str | None,
    log: str | None, form: render.Format, out: str, dry_run: bool, quiet: bool, verbose: bool, **options: Any,
) -> int:  # fmt: skip
    """Run the best layouts of a plan for some steps on the real stack.

    Every trial leaves a record with step times, memory, effective settings and the hidden communication, beside what
    was predicted: confirmed within 10 points of the predicted share, not effective below a quarter of it. With --ab
    the best layout is run with one overlap on and off in turn, and what it saves is compared. --via bridge runs the
    recipe of Megatron-Bridge and reads its log. Exit code 1: a trial failed, its step time lies outside the predicted
    interval, an overlap is not confirmed, or a setting did not take effect.
    """
    from advisor.cli.pages.trial import dry_document, trial_document
    from advisor.trial.runner import run_trials
    from advisor.trial.store import Store
    from advisor.trial.trials import read_trials

    output = render.Output(form, None, quiet, verbose)
    only_worker = {
        "ab": ab, "proxy-layers": proxy_layers, "resume": options["resume"], "backend": options["backend"] == "slurm"
    }  # fmt: skip
    refuse_beside_bridge(via, only_worker if via == "bridge" else {"log": log, "bridge-script": bridge_script})
    drive, rules = drive_of(options), rules_of(options)
    if via == "bridge":
        asked = OfBridge(bridge_script, log, plan_path(out), dry_run)
        return through_bridge(asked, plan_path(plan), drive, rules.limits, output)
    trials, left_out = read_trials(plan_path(plan), top, drive, proxy_layers)
    if ab is not None:
        return compare(Asked(ab, pairs, plan_path(out), dry_run), trials[0], drive, rules, output)
    if dry_run:
        render.show(dry_document(trials, left_out, rules, Path(out)), output)
        return EXIT_OK
    require_stack(trials, drive, rules)
    follower = Follower(quiet)
    try:
        ran = list(run_trials(trials, Store(plan_path(out)), rules, follower))
    finally:
        follower.close()
    render.show(trial_document(ran, left_out, Path(out)), output)
    records = [one.record for one in ran if one.record is not None]
    return EXIT_OK if records and all(record["inside"] for record in records) else EXIT_NEGATIVE
