"""`advisor rules`: every rule, or one of them explained."""

from __future__ import annotations

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, output_options
from advisor.cli.parameters import Text
from advisor.errors import EXIT_OK


def _ids() -> tuple[str, ...]:
    from advisor.rules.lint import rules_by_id

    return tuple(rules_by_id())


@click.command("rules", cls=SectionCommand)
@click.argument("id", required=False, type=Text("ID", _ids), metavar="[ID]")
@output_options
def command(output: render.Output, id: str | None) -> int:
    """List all rules, or explain one: who enforces it, how severe it is, what it says, the fix, the source."""
    from advisor.cli.pages.rules import list_document, show_document

    render.show(list_document() if id is None else show_document(id), output)
    return EXIT_OK
