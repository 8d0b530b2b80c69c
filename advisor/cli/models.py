"""`advisor models`: the model presets, and one of them in full."""

from __future__ import annotations

import click

from advisor.cli import render
from advisor.cli.options import MODEL_ARGUMENT, SectionCommand, output_options
from advisor.errors import EXIT_OK


@click.group("models")
def command() -> None:
    """List model presets, or show one."""


@command.command("list", cls=SectionCommand)
@output_options
def list_command(output: render.Output) -> int:
    """All model presets."""
    from advisor.cli.pages.models import list_document

    render.show(list_document(), output)
    return EXIT_OK


@command.command("show", cls=SectionCommand)
@MODEL_ARGUMENT
@output_options
def show_command(output: render.Output, name: str) -> int:
    """One model: a preset, or a file of the same form."""
    from advisor.cli.pages.models import show_document

    render.show(show_document(name), output)
    return EXIT_OK
