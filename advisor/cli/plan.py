"""`advisor plan`: search every layout and rank what fits; over several GPU counts, the scaling curve."""

from __future__ import annotations

from typing import Any, Literal

import click

from advisor.cli import render
from advisor.cli.options import (
    MODEL,
    ROUTER_STATS,
    SEVERAL_GPUS,
    SectionCommand,
    anchor_options,
    choice,
    given,
    job_options,
    output_options,
    placement_options,
    text,
    with_options,
)
from advisor.cli.parameters import Counts
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

OPTIONS = (
    MODEL,
    SEVERAL_GPUS,
    *job_options(several_counts=True),
    *placement_options(),
    *anchor_options(),
    choice("objective", ("throughput", "memory"), "Search", "What the best layout has most of, or least."),
    text("top", "N", "Search", "Layouts shown."),
    text("fix", "LIST", "Search", "Pins layout fields and knobs: tp=2,ep=32,recompute=moe_act+layernorm."),
    text("allow", "LIST", "Search", "Knobs that change the mathematics: grad-bf16,... (a plan names them)."),
    text("target-tokens-per-s", "X", "Search", "With --gpus auto: throughput of the whole cluster to reach."),
)


@click.command("plan", cls=SectionCommand, epilog=ROUTER_STATS)
@with_options(OPTIONS)
@output_options
def command(output: render.Output, model: Any, gpus: Counts, **options: Any) -> int:
    """Search every layout and rank what fits."""
    if isinstance(gpus, tuple) and len(gpus) > 1:
        return _scale(output, model, gpus, options)
    from advisor.api import plan
    from advisor.cli.pages.plan import plan_document

    answer = plan(model, "auto" if isinstance(gpus, str) else gpus[0], **given(options))
    render.show(plan_document(answer, output.verbose), output)
    return EXIT_OK if answer.candidates else EXIT_NEGATIVE


def _scale(output: render.Output, model: Any, gpus: tuple[int, ...], options: dict[str, Any]) -> int:
    from advisor.api import scale
    from advisor.cli.pages.scaling import scaling_document

    rule: Literal["fixed", "scaled"] = "fixed" if options["gbs"] == "fixed" else "scaled"
    if options["gbs"] in {"fixed", "scaled"}:
        options["gbs"] = None
    answer = scale(model, gpus, rule, **given(options))
    render.show(scaling_document(answer), output)
    return EXIT_OK if any(point.candidate for point in answer.points) else EXIT_NEGATIVE
