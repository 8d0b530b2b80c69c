"""`advisor calibrate`: coefficients of an own cluster from own runs or nccl-tests logs."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.parameters import OutFile, Text
from advisor.errors import EXIT_OK, InputError

# Here --out takes the coefficients, not the answer again.
FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--runs", section="Measured", type=Text("RUNS.csv"), envvar="ADVISOR_RUNS",
           help="Own runs; columns: advisor validate --help. Needs scipy."),
    option("--nccl-tests", section="Measured", multiple=True, type=Text("LOG"), envvar="ADVISOR_NCCL_TESTS",
           help="Output of all_reduce_perf, all_gather_perf, ... over two nodes or more; may be repeated."),
    option("--system", section="Measured", type=Text("NAME|PATH"), envvar="ADVISOR_SYSTEM",
           help="Where the logs come from (default: dgx-h100)."),
    FORM,
    option("--out", section="Output", type=OutFile((".yaml",)), envvar="ADVISOR_OUT",
           help="Write the coefficients as a profile file (.yaml)."),
    *REST,
)  # fmt: skip


@click.command("calibrate", cls=SectionCommand)
@with_options(OPTIONS)
def command(
    *, runs: str | None, nccl_tests: tuple[str, ...], system: str | None, form: render.Format, out: Path | None,
    quiet: bool, verbose: bool,
) -> int:  # fmt: skip
    """Coefficients of an own cluster, from own measured runs or own nccl-tests logs."""
    from advisor.cli.pages.calibrate import calibrate_document
    from advisor.fit.own import calibrate_network, calibrate_runs, profile_text

    if (runs is None) == (not nccl_tests):
        raise InputError("calibrate needs measured runs or logs, one of them", "give --runs FILE or --nccl-tests LOG")
    if runs is not None:
        found = calibrate_runs(Path(runs))
    else:
        found = calibrate_network([Path(name) for name in nccl_tests], system or "dgx-h100")
    if out is not None:
        if len(found.changed) != 1:
            raise InputError(f"runs on {len(found.changed)} GPUs make {len(found.changed)} files", "one GPU at a time")
        ((gpu, changed),) = found.changed.items()
        render.write_atomically(out, profile_text(gpu, changed, runs or "nccl-tests"))
    render.show(calibrate_document(found), render.Output(form, None, quiet, verbose))
    return EXIT_OK
