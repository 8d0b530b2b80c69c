"""The command `advisor`: finds the verb, and turns whatever goes wrong into one clear error and an exit code."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from advisor.cli import render
from advisor.cli.reported import reported
from advisor.errors import EXIT_INTERRUPTED

VERBS = (
    "plan", "estimate", "why", "improve", "overlap", "export", "launch", "resiliency", "goodput", "diagnose", "trial",
    "tune", "measure", "trace", "validate", "calibrate", "check", "rules", "models", "systems",
)  # fmt: skip

OBJECTS_BEFORE_COLLECTION = 200_000

EPILOG = """\b
Exit codes:
  0    done, and the answer is positive
  1    the answer is negative: nothing fits, out of memory, illegal, a cause of failure found
  2    usage or bad input
  3    something the command needs is missing on this host
  70   a fault of advisor itself
  130  interrupted

\b
Every option can be given as ADVISOR_<OPTION>, for example ADVISOR_SYSTEM=gb200-nvl72.
Results go to stdout; hints and errors go to stderr.
"""


class Verbs(click.Group):
    """Imports a verb when it is asked for, so that no verb pays for another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, or None."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"advisor.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click; a wrong verb gets the closest of all verbs, imported or not."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            raise click.exceptions.NoSuchCommand(args[0], possibilities=VERBS, ctx=ctx)
        return super().resolve_command(ctx, args)


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from advisor.cli.version import version_text

        render.plain(version_text())
        ctx.exit()


@click.group(
    cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Versions of the package, Python and the profiles.",
)  # fmt: skip
def cli() -> None:
    """Plan Megatron-style LLM training: layouts, memory and step time.

    Start with: advisor plan --model minimax-m2 --gpus 64
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; everything that can go wrong becomes one error on stderr."""
    render.prepare_streams()
    try:
        return reported(lambda: cli.main(args=args, prog_name="advisor", standalone_mode=False))
    except (click.Abort, KeyboardInterrupt):
        render.error("interrupted", None)
        return EXIT_INTERRUPTED


def main() -> NoReturn:
    """Entry point of the command."""
    # Importing makes many objects and no garbage: looking for it takes a twentieth of a plan.
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    sys.exit(run())
