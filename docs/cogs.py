"""What the generated blocks of README.md and docs/*.md call: run a command, give its output (`make docs`)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import cog

from advisor.cli.main import cli, run

LOOP = Path(__file__).parent.parent / "tests" / "bench" / "closed_loop" / "report.json"
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
    """Put the errors of predicted steps over the published runs into the page."""
    from accuracy_tables import page

    for line in page():
        cog.outl(line)


def accuracy_in_short() -> None:
    """Put one line per group into the page."""
    from accuracy_tables import in_short

    for line in in_short():
        cog.outl(line)


def closed_loop() -> None:
    """Put what the last run of tests/bench/closed_loop found into the page."""
    found = json.loads(LOOP.read_text(encoding="utf-8"))["summary"]
    rows = {
        "median error of the step before calibration": f"{found['before_pct']:.1f} %",
        "after it": f"{found['after_pct']:.1f} %",
        "after it, each trial left out of the fit": f"{found['left_out_pct']:.1f} %",
        "Kendall tau of the steps, before and after": f"{found['tau_before']:.2f}, {found['tau_after']:.2f}",
        "noise: half the range between runs of one layout": f"{found['noise_between_runs_pct']:.1f} %",
    }
    cog.outl(f"\n| {found['layouts']} layouts on {found['cores']} cores, {found['rounds']} runs or more of each | |")
    cog.outl("| --- | --: |")
    for name, value in rows.items():
        cog.outl(f"| {name} | {value} |")
    cog.outl()
