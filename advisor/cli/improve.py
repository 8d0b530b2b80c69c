"""`advisor improve`: what a configuration runs today, what of it takes effect, and which single change helps most."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import (
    GPUS,
    MODEL,
    SectionCommand,
    job_options,
    knob_options,
    layout_options,
    option,
    output_options,
    placement_options,
    with_options,
)
from advisor.cli.parameters import OneOf, Text
from advisor.errors import EXIT_NEGATIVE, EXIT_OK, InputError

OPTIONS = (
    option("--log", "logs", section="Job", type=Text("FILE"), multiple=True,
           help="Log of the job (several: --log again): what it shows to hold counts, its step and memory anchor."),
    option("--target", section="Job", type=OneOf(("bridge", "megatron-lm")), envvar="ADVISOR_TARGET",
           help="Whose rules apply; default: what the file says."),
    option("--target-version", "version", section="Job", type=Text("X"),
           help="Release of Megatron-Bridge, or of megatron-core, that runs it; default: the newest."),
    MODEL,
    GPUS,
    *job_options(several_counts=False),
    *placement_options(),
    *layout_options(),
    *knob_options(),
    option("--take", section="Output", type=click.IntRange(1), help="Number of a change to write out."),
    option("--edited", section="Output", type=Text("FILE"), help="Where to write CONFIG with the change of --take."),
)  # fmt: skip


@click.command("improve", cls=SectionCommand)
@click.argument("config", metavar="CONFIG")
@with_options(OPTIONS)
@output_options
def command(
    output: render.Output, config: str, *, logs: tuple[str, ...], target: str | None, version: str | None,
    take: int | None, edited: str | None, **options: Any,
) -> int:  # fmt: skip
    """The best single changes of a configuration that runs today.

    CONFIG is anything that advisor check reads: a Megatron-LM script, flags or YAML, a Megatron-Bridge file, overrides
    or run_config.yaml, a Slurm script, bare layout flags, or a plan. Options state what it leaves open, and win over
    it. Exit code 1 when something stops the job or is silently off, when it does not fit, or when a change of one dial
    that keeps the mathematics is faster over its whole interval.
    """
    from advisor.cli.improved import improved, write_taken
    from advisor.cli.pages.improve import improve_document

    if (take is None) is not (edited is None):
        raise InputError("--take and --edited go together", "--take 1 --edited new.sh")
    answer = improved(config, options, logs, target, version)
    if take is not None and edited is not None:
        write_taken(answer, take, edited)
    render.show(improve_document(answer, output.verbose), output)
    return EXIT_NEGATIVE if answer.negative else EXIT_OK
