"""`advisor validate`: predictions scored against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, choice, option, output_options, with_options
from advisor.cli.parameters import Text
from advisor.errors import EXIT_NEGATIVE, EXIT_OK, InputError

OPTIONS = (
    option("--group", section="Rows", multiple=True, type=Text("NAME"), envvar="ADVISOR_GROUP",
           help="Only rows of this group of the file; may be repeated."),
    choice("leave-out", ("model", "gpu", "group"), "Prediction",
           "Coefficients fitted without the row's model, GPU or group."),
    option("--anchor", section="Prediction", multiple=True, type=Text("FILE"), envvar="ADVISOR_ANCHOR",
           help="Measured runs that correct predictions of the same model, GPU and precision; never the row itself."),
)  # fmt: skip
COLUMNS = """Columns of RUNS.csv: model, system, gpus, precision, seq_len, gbs, tp and pp are needed, and one of step_s,
tokens_per_s_per_gpu, tflops_per_gpu or mfu_pct with mfu_peak_tflops, or oom = yes. May be empty or missing: id, group,
num_layers, mbs, sp, vpp, cp, ep, etp, fsdp, attention_impl, norm_impl, recompute (modules joined by +, full, none),
offload_layers, offload_modules (joined by +), dispatcher, ep_overlap, delay_wgrad, tp_overlap, cuda_graph, grad_dtype,
optimizer_dtype, pipeline_layout, mtp_layers, routing, capacity_factor, software, peak_allocated_gib, flag
("exclude: reason" and "check: reason" are not scored)."""


@click.command("validate", cls=SectionCommand, epilog=COLUMNS)
@click.argument("runs", required=False, type=Text("RUNS.csv"), metavar="[RUNS.csv]")
@with_options(OPTIONS)
@output_options
def command(
    output: render.Output, runs: str | None, group: tuple[str, ...], leave_out: Any, anchor: tuple[str, ...]
) -> int:
    """How far predictions are from measured runs, row by row and in sum.

    Without a file the published runs are scored. What a row does not state is filled from a table of defaults. Exit
    code 1: no row could be scored.
    """
    from advisor.cli.pages.validate import validate_document
    from advisor.fit.committed import LEAVE_OUTS
    from advisor.fit.validation import validate

    chosen = leave_out or "none"
    if chosen not in LEAVE_OUTS:
        raise InputError(f"leave-out {chosen!r} is none of model, gpu, group")
    found = validate(None if runs is None else Path(runs), group, chosen, [Path(name) for name in anchor])
    render.show(validate_document(found, output.verbose), output)
    return EXIT_OK if any(row.run.scored for row in found.rows) else EXIT_NEGATIVE
