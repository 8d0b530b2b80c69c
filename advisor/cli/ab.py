"""`advisor trial --ab`: one overlap of the best layout on and off, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli import render
from advisor.cli.options import option
from advisor.cli.survival import valued
from advisor.cli.trials import Follower, require_stack
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

if TYPE_CHECKING:
    from advisor.trial.job import Drive
    from advisor.trial.runner import Rules
    from advisor.trial.trials import Trial

AB_OPTIONS = (
    valued("ab", "FLAG", "Trials",
           "Run the best layout with this overlap on and off in turn: tp_overlap, overlap_p2p, overlap_grad_reduce, "
           "overlap_param_gather, ep_overlap, delay_wgrad, shared_expert_overlap or cp_comm (beside the ring)."),
    option("--pairs", section="Trials", type=click.IntRange(2, 100), default=4, envvar="ADVISOR_PAIRS",
           show_default=True, metavar="N", help="Pairs of runs of --ab."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What --ab was asked for: the overlap, how many pairs of runs, the folder of their records, only to be shown."""

    flag: str
    pairs: int
    out: Path
    dry_run: bool


def compare(asked: Asked, trial: Trial, drive: Drive, rules: Rules, output: render.Output) -> int:
    """Run both sides and show what the overlap saves; exit code 0 when that is as predicted."""
    from advisor.cli.pages.ab import ab_document, ab_dry_document
    from advisor.trial.ab import make_sides, run_sides
    from advisor.trial.store import Store

    sides = make_sides(trial, asked.flag.replace("-", "_"), drive)
    if asked.dry_run:
        render.show(ab_dry_document(sides, asked.pairs), output)
        return EXIT_OK
    require_stack([sides.on], drive, rules)
    follower = Follower(output.quiet)
    try:
        record = run_sides(sides, asked.pairs, Store(asked.out), rules, follower)
    finally:
        follower.close()
    render.show(ab_document(record, str(asked.out)), output)
    return EXIT_OK if record["verdict"] == "confirmed" else EXIT_NEGATIVE
