"""`advisor export`: a layout of a plan as text for the user's framework."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, choice, option, text, with_options
from advisor.cli.parameters import OneOf, Text, shorten
from advisor.errors import EXIT_OK, InputError

TARGETS = ("bridge", "bridge-overrides", "megatron-lm", "env", "yaml")
OPTIONS = (
    option("--to", "target", section="Export", type=OneOf(TARGETS), required=True, envvar="ADVISOR_TO",
           help="bridge = Python, bridge-overrides = KEY=VALUE for run_recipe.py, megatron-lm = flags."),
    text("candidate", "N", "Export", "Rank of the layout in the plan (default 1)."),
    text("target-version", "X", "Export", "Bridge 0.3 or 0.6; for megatron-lm megatron-core 0.16 or 0.19."),
    option("--out", section="Export", type=Text("DIR"), envvar="ADVISOR_OUT", help="Write the files here."),
    choice("color", ("auto", "always", "never"), "Export", "Of errors."),
    option("-q", "--quiet", section="Export", is_flag=True, envvar="ADVISOR_QUIET", help="No hints."),
)  # fmt: skip


@click.command("export", cls=SectionCommand)
@click.argument("plan", metavar="PLAN.json", type=Text("PLAN.json"))
@with_options(OPTIONS)
def command(
    *, plan: str, target: str, candidate: str | None, target_version: str | None, out: str | None,
    color: render.ColorMode | None, quiet: bool,
) -> int:  # fmt: skip
    """Configuration of a planned layout: what `advisor plan ... --out PLAN.json` wrote, as text for a framework.

    Without --out the main text goes to stdout. Overlap is resolved first (see `advisor overlap`): what is written is
    what takes effect. No secrets are read or written.
    """
    if color is not None:
        render.choose_color(color)
    from advisor.configure.chosen import read_plan
    from advisor.export.targets import export
    from advisor.search.values import whole

    rank = 1 if candidate is None else whole("candidate", candidate, 1, 10_000)
    files = export(read_plan(plan, rank), target, target_version)
    if out is not None:
        folder = _folder(out)
        for name, content in files.items():
            render.write_atomically(folder / name, content)
            render.plain(str(folder / name))
        return EXIT_OK
    main, *more = files
    render.plain(files[main].rstrip("\n"))
    if more and not quiet:
        render.notice(f"{', '.join(more)} goes with it: --out DIR writes all files")
    return EXIT_OK


def _folder(text_of: str) -> Path:
    """The folder to write to, made if its parent exists."""
    folder = Path(text_of)
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as problem:
        what = getattr(problem, "strerror", None) or str(problem)
        raise InputError(f"--out {shorten(text_of)}: {what}", "give a folder that exists or can be made") from problem
    return folder
