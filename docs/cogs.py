"""What the generated blocks of README.md and docs/*.md call: run a command, give its output (`make docs`)."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Iterator

import click
import cog

from advisor.cli.main import cli, run

BLANK = ("ADVISOR_", "NO_COLOR", "FORCE_COLOR")


def shell(command: str, keep: tuple[str, ...] = ()) -> None:
    """Put `command` and its stdout into the page; with `keep`, only the blocks that begin with one of these words."""
    for name in [name for name in os.environ if name.startswith(BLANK)]:
        del os.environ[name]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run(shlex.split(command)[1:])
    if code not in {0, 1}:
        raise RuntimeError(f"{command} exits with {code}")
    text = out.getvalue().strip("\n")
    if keep:
        blocks = text.split("\n\n")
        text = "\n\n".join(block for block in blocks if block.startswith(keep))
    cog.outl(f"\n```console\n$ {command}\n{text}\n```\n")


def every_help() -> None:
    """Put the help pages of the command, its verbs and their verbs into the page."""
    for words in [(), *_verbs(cli, ())]:
        command = " ".join(("advisor", *words))
        cog.outl(f"## {command}")
        shell(f"{command} --help")


def _verbs(group: click.Group, before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*before, name)
        if isinstance(command, click.Group):
            yield from _verbs(command, (*before, name))


def accuracy() -> None:
    """Put the errors of predicted step times over the published runs into the page, and the order inside sweeps."""
    from advisor.fit.runs import published_runs
    from advisor.fit.validate import predict, summary, sweeps

    runs, skipped = published_runs()
    rows = [predict(run) for run in runs]
    cog.outl(f"\n{sum(row.run.scored for row in rows)} of {len(runs) + len(skipped)} published runs are scored.\n")
    cog.outl("| runs | n | median error % | 90th percentile % | bias % | inside the 80 % interval % |")
    cog.outl("| --- | --: | --: | --: | --: | --: |")
    for group, found in summary(rows).items():
        cog.outl(
            f"| {group} | {found.n} | {found.median_abs_error_pct:.1f} | {found.p90_abs_error_pct:.1f}"
            f" | {found.bias_pct:+.1f} | {found.interval_coverage_pct:.0f} |"
        )
    cog.outl("\n| sweep | n | Kendall tau | best of our first three above the sweep's best % |")
    cog.outl("| --- | --: | --: | --: |")
    for one in sweeps(rows):
        cog.outl(f"| {one.key} | {one.n} | {one.kendall_tau:.2f} | {one.top3_regret_pct:.1f} |")
    cog.outl()
