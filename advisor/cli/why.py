"""`advisor why`: why a layout is rejected or slower than the best, and which dial to turn."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import (
    GPUS,
    MODEL,
    ROUTER_STATS,
    SectionCommand,
    given,
    job_options,
    knob_options,
    layout_options,
    output_options,
    placement_options,
    with_options,
)
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

OPTIONS = (
    MODEL,
    GPUS,
    *job_options(several_counts=False),
    *placement_options(),
    *layout_options(),
    *knob_options(),
)


@click.command("why", cls=SectionCommand, epilog=ROUTER_STATS)
@with_options(OPTIONS)
@output_options
def command(output: render.Output, model: Any, gpus: Any, **options: Any) -> int:
    """Why a layout is rejected or slower, and what helps."""
    from advisor.api import why
    from advisor.cli.pages.why import why_document

    answer = why(model, gpus, **given(options))
    render.show(why_document(answer, output.verbose), output)
    return EXIT_OK if answer.estimate.verdict == "fits" else EXIT_NEGATIVE
