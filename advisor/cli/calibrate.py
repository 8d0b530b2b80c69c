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
           help="Output of all_reduce_perf, all_gather_perf, ..., inside and across NVLink domains; may be repeated."),
    option("--system", section="Measured", type=Text("NAME|PATH"), envvar="ADVISOR_SYSTEM",
           help="Where it was measured (default: that of the runs; dgx-h100 for logs)."),
    FORM,
    option("--out", section="Output", type=OutFile((".yaml",)), envvar="ADVISOR_OUT",
           help="Write the system with what was measured of it (.yaml), for --system of every verb."),
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
    if sum(1 for given in (runs, trials, nccl_tests) if given) != 1:
        raise InputError(
            "calibrate needs measured runs, trials or logs, one of them",
            "give --runs FILE, --trials DIR or --nccl-tests LOG",
        )
    output = render.Output(form, None, quiet, verbose)
    if trials is not None:
        return _of_trials(trials, out, output)
    if runs is not None:
        return _of_runs(runs, system, out, output)
    return _of_logs([Path(name) for name in nccl_tests], system or "dgx-h100", out, output)


def _of_runs(runs: str, system: str | None, out: Path | None, output: render.Output) -> int:
    from advisor.cli.pages.calibrate import runs_document
    from advisor.fit.own import calibrate_runs, calibrated_system

    found = calibrate_runs(Path(runs))
    if out is not None:
        render.write_atomically(out, calibrated_system(found, system, runs))
    render.show(runs_document(found, None if out is None else str(out)), output)
    return EXIT_OK


def _of_logs(logs: list[Path], system: str, out: Path | None, output: render.Output) -> int:
    from advisor.cli.pages.calibrate import network_document
    from advisor.fit.network import calibrate_network

    found = calibrate_network(logs, system)
    if out is not None:
        render.write_atomically(out, found.text())
    render.show(network_document(found, None if out is None else str(out)), output)
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
