"""`advisor diagnose`: why a job failed, from its logs."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, option, output_options
from advisor.cli.parameters import Text
from advisor.errors import EXIT_NEGATIVE, EXIT_OK


@click.command("diagnose", cls=SectionCommand)
@click.argument("logs", nargs=-1, required=True, metavar="LOG|DIR|-...", type=Text("LOG|DIR|-"))
@option("--plan", section="Job", type=Text("FILE"), help="JSON of the plan that ran; advice then uses its numbers.")
@output_options
def command(output: render.Output, logs: tuple[str, ...], plan: Any) -> int:
    """Why a job failed: first failure, evidence, next step.

    LOG is a file (.gz too), a folder with the logs of all ranks and nodes, or - for stdin. Dumps of the NCCL flight
    recorder (nccl_trace_rank_N) may lie beside them. Exit code 1 = a cause was found, 0 = the logs do not tell.
    """
    from advisor.cli.pages.diagnose import diagnosis_document
    from advisor.diagnose.run import diagnose

    found = diagnose(logs)
    if plan:
        from advisor.cli.planned import with_advice

        found = with_advice(found, plan)
    render.show(diagnosis_document(found, output.verbose), output)
    return EXIT_NEGATIVE if found.found else EXIT_OK
