"""`advisor resiliency`: settings with which a planned job survives, with reasons, and what they bring."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, output_options, with_options
from advisor.cli.parameters import OneOf
from advisor.cli.survival import (
    CANDIDATE,
    HAZARDS,
    LAUNCHERS,
    PLAN_ARGUMENT,
    WISHES,
    chosen_of,
    hazards_of,
    valued,
    wishes_of,
)
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

FORMS = ("bridge", "bridge-overrides", "megatron-lm", "plugins", "launcher", "env")
OPTIONS = (
    CANDIDATE,
    *HAZARDS,
    valued("launcher", f"[{'|'.join(LAUNCHERS)}]", "Mechanisms", "What starts the ranks (default ft_launcher, or srun"
           " with --in-process-restart).", type=OneOf(LAUNCHERS)),
    *WISHES,
    valued("to", f"[{'|'.join(FORMS)}]", "Output", "The settings alone, as text for: Bridge in Python or as overrides,"
           " Megatron-LM, NeMo-Run plugins, ft_launcher, the environment.", type=OneOf(FORMS)),
)  # fmt: skip


@click.command("resiliency", cls=SectionCommand)
@PLAN_ARGUMENT
@with_options(OPTIONS)
@output_options
def command(output: render.Output, plan: str, launcher: str | None, to: str | None, **options: Any) -> int:
    """Resiliency settings of a planned job, derived from its step, its checkpoint and the failures it will meet.

    PLAN.json is what `advisor plan ... --out PLAN.json` wrote. Choices that exclude each other are refused with the
    reason. Exit code 1 when a setting that was asked for cannot work.
    """
    from advisor.cli.pages.resiliency import document, text
    from advisor.configure.resiliency import resiliency

    chosen = chosen_of(plan, options)
    met = hazards_of(chosen, options)
    in_process = options["in_process_restart"]
    found = resiliency(chosen, wishes_of(options, launcher or ("srun" if in_process else "ft_launcher")), met)
    if to is not None:
        render.plain(text(found, to).rstrip("\n"))
    else:
        render.show(document(found), output)
    return EXIT_NEGATIVE if any(one.severity == "stop" for one in found.findings) else EXIT_OK
