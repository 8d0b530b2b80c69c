"""`advisor estimate`: memory and step time of one layout."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import (
    GPUS,
    MODEL,
    ROUTER_STATS,
    SectionCommand,
    anchor_options,
    given,
    job_options,
    knob_options,
    layout_options,
    output_options,
    placement_options,
    serving_options,
    text,
    with_options,
)
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

OPTIONS = (
    MODEL,
    GPUS,
    text(
        "megatron-args", "FILE", "Job", "YAML/JSON mapping or shell script with Megatron-LM flags; options win over it."
    ),
    *serving_options(),
    *job_options(several_counts=False),
    *placement_options(),
    *anchor_options(),
    *layout_options(),
    *knob_options(),
)


@click.command("estimate", cls=SectionCommand, epilog=ROUTER_STATS)
@with_options(OPTIONS)
@output_options
def command(output: render.Output, model: Any, gpus: Any, megatron_args: str | None, **options: Any) -> int:
    """Memory and step time of one layout, and whether it fits."""
    from advisor.api import estimate
    from advisor.cli.pages.estimate import estimate_document

    answer = estimate(model, gpus, megatron_args=megatron_args, **given(options))
    render.show(estimate_document(answer, output.verbose), output)
    return EXIT_OK if answer.verdict == "fits" else EXIT_NEGATIVE
