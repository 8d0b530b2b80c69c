"""`advisor systems`: the system presets, and one of them in full."""

from __future__ import annotations

import click

from advisor.cli import render
from advisor.cli.options import SYSTEM_ARGUMENT, SectionCommand, output_options
from advisor.errors import EXIT_OK


@click.group("systems")
def command() -> None:
    """List system presets, or show one."""


@command.command("list", cls=SectionCommand)
@output_options
def list_command(output: render.Output) -> int:
    """All system presets."""
    from advisor.cli.pages.systems import list_document

    render.show(list_document(), output)
    return EXIT_OK


@command.command("show", cls=SectionCommand)
@SYSTEM_ARGUMENT
@output_options
def show_command(output: render.Output, name: str) -> int:
    """One system: a preset, or a file of the same form."""
    from advisor.cli.pages.systems import show_document

    render.show(show_document(name), output)
    return EXIT_OK
