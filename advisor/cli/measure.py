"""`advisor measure`: micro-benchmarks of this host as a system and a profile."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.parameters import OneOf, shorten
from advisor.cli.survival import valued
from advisor.cli.trials import plan_path, require_packages, seconds
from advisor.errors import EXIT_OK, InputError

FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--device", section="Measure", type=OneOf(["cpu"]), default="cpu", envvar="ADVISOR_DEVICE",
           show_default=True, help="What is measured: the CPU, its ranks on gloo."),
    option("--ranks", section="Measure", type=click.IntRange(1, 16), default=2, envvar="ADVISOR_RANKS",
           show_default=True, metavar="N", help="Ranks at work at once, as in the trials to come."),
    option("--threads", section="Measure", type=click.IntRange(1, 1024), default=1, envvar="ADVISOR_THREADS",
           show_default=True, metavar="N", help="CPU threads of a rank."),
    valued("time", "0.2s", "Measure", "How long one kernel is repeated.", default="0.2s", show_default=True),
    valued("name", "NAME", "Output", "Of the system.", default="local-cpu", show_default=True),
    FORM,
    valued("out", "DIR", "Output", "Data folder to write to (default: the user's, where plans find it by name)."),
    *REST,
)  # fmt: skip


@click.command("measure", cls=SectionCommand)
@with_options(OPTIONS)
def command(
    *, device: str, ranks: int, threads: int, time: str, name: str, form: render.Format, out: str | None, quiet: bool,
    verbose: bool,
) -> int:  # fmt: skip
    """Measure this host: GEMM, attention, memory rate and collectives by size.

    Writes a system and a profile that plans are made with.
    """
    from platformdirs import user_data_path

    from advisor.cli.pages.measure import measure_document
    from advisor.trial.measure import benchmark, make_profile, write_profile

    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", name):
        raise InputError(f"--name {shorten(name)} is no name", "letters, digits, dots and dashes, as in local-cpu")
    require_packages(("torch", "psutil"))
    each = seconds("time", time)
    import psutil

    folder = user_data_path("advisor") if out is None else plan_path(out)
    with tempfile.TemporaryDirectory(prefix="advisor-measure-") as logs:
        bench = benchmark(ranks, threads, each, Path(logs))
    measured = make_profile(bench, name, psutil.virtual_memory().total)
    paths = write_profile(measured, folder)
    render.show(measure_document(measured, paths, out is None), render.Output(form, None, quiet, verbose))
    return EXIT_OK
