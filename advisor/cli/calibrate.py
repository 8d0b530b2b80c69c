"""`advisor calibrate`: coefficients of an own cluster from own runs, trials or nccl-tests logs."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.parameters import OutFile, Text
from advisor.cli.trials import plan_path
from advisor.errors import EXIT_OK, InputError

# Here --out takes the coefficients, not the answer again.
FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--runs", section="Measured", type=Text("RUNS.csv"), envvar="ADVISOR_RUNS",
           help="Own runs; columns: advisor validate --help. Needs scipy."),
    option("--trials", section="Measured", type=Text("DIR"), envvar="ADVISOR_TRIALS",
           help="Records of advisor trial, measured against what was planned. Needs scipy."),
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
    *, runs: str | None, trials: str | None, nccl_tests: tuple[str, ...], system: str | None, form: render.Format,
    out: Path | None, quiet: bool, verbose: bool,
) -> int:  # fmt: skip
    """Coefficients of an own cluster, from own measured runs, records of advisor trial, or nccl-tests logs.

    A fit to trials moves few coefficients, inside their bounds, and says how well each trial is predicted without
    itself. Records of other hosts and failed trials are left out, with the reason.
    """
    from advisor.cli.pages.calibrate import calibrate_document
    from advisor.fit.own import calibrate_network, calibrate_runs, profile_text

    if sum(1 for given in (runs, trials, nccl_tests) if given) != 1:
        raise InputError(
            "calibrate needs measured runs, trials or logs, one of them",
            "give --runs FILE, --trials DIR or --nccl-tests LOG",
        )
    if trials is not None:
        return _of_trials(trials, out, render.Output(form, None, quiet, verbose))
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


def _of_trials(folder: str, out: Path | None, output: render.Output) -> int:
    from advisor.cli.pages.calibrate_trials import trials_document
    from advisor.trial.calibration import calibrate_trials, calibrated_system

    found = calibrate_trials(plan_path(folder))
    if out is not None:
        if len(found.fits) != 1:
            gpus = ", ".join(one.fit.gpu.name for one in found.fits)
            raise InputError(f"{folder} holds trials on {gpus}, which make a system file each", "a folder for each GPU")
        render.write_atomically(out, calibrated_system(found.fits[0], found.measured))
    render.show(trials_document(found, None if out is None else str(out)), output)
    return EXIT_OK
