"""`advisor measure`: micro-benchmarks of this host as a system file that plans are made with."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.parameters import OneOf, OutFile, Text, shorten
from advisor.cli.survival import valued
from advisor.cli.trials import gpus_visible, require_packages, seconds
from advisor.errors import EXIT_OK, AdvisorError, EnvironmentMissingError, InputError

FORM, _OUT, *REST = OUTPUT_OPTIONS
HOST_RANKS = 2
OPTIONS = (
    option("--device", section="Measure", type=OneOf(["cpu", "cuda"]), default="cpu", envvar="ADVISOR_DEVICE",
           show_default=True, help="The CPU with its ranks on gloo, or the GPUs of this host on NCCL."),
    option("--system", section="Measure", type=Text("NAME|PATH"), envvar="ADVISOR_SYSTEM",
           help="What the GPUs stand in (with --device cuda): their own figures go over its shipped profile."),
    option("--ranks", section="Measure", type=click.IntRange(1, 16), envvar="ADVISOR_RANKS", metavar="N",
           help=f"Ranks at work at once, as in the trials to come (default: {HOST_RANKS}; with cuda all GPUs)."),
    option("--threads", section="Measure", type=click.IntRange(1, 1024), default=1, envvar="ADVISOR_THREADS",
           show_default=True, metavar="N", help="CPU threads of a rank."),
    valued("time", "0.2s", "Measure", "How long one kernel is repeated.", default="0.2s", show_default=True),
    valued("name", "NAME", "Output", "Of the system (default: local-cpu, local-cuda)."),
    FORM,
    option("--out", section="Output", type=OutFile((".yaml", ".yml")), envvar="ADVISOR_OUT",
           help="Write the system file here (default: the user's data folder, where --system finds it by name)."),
    *REST,
)  # fmt: skip


@click.command("measure", cls=SectionCommand)
@with_options(OPTIONS)
def command(
    *, device: str, system: str | None, ranks: int | None, threads: int, time: str, name: str | None,
    form: render.Format, out: Path | None, quiet: bool, verbose: bool,
) -> int:  # fmt: skip
    """Measure this host: GEMM, attention, memory rate and collectives by size.

    Writes one system file with a profile of its own: advisor plan --system FILE.
    """
    from advisor.cli.pages.measure import measure_document
    from advisor.trial.measure.run import benchmark

    named = f"local-{device}" if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", named):
        raise InputError(f"--name {shorten(named)} is no name", "letters, digits, dots and dashes, as in local-cpu")
    if (system is None) == (device == "cuda"):
        raise InputError(
            "--device cuda needs --system, what its GPUs stand in" if system is None else "--system is for GPUs",
            "--device cuda --system dgx-h100",
        )
    if system is not None:
        from advisor.spec.load.system import load_system

        load_system(system)  # a name that is wrong is told before minutes of measuring
    require_packages(("torch", "psutil"))
    each, wanted = seconds("time", time), _ranks(device, ranks)
    with _logs() as logs:
        bench = benchmark(device, wanted, threads, each, logs)
    path = _default_path(named) if out is None else out
    render.write_atomically(path, _system_text(bench, named, system))
    render.show(measure_document(bench, named, path, out is None), render.Output(form, None, quiet, verbose))
    return EXIT_OK


@contextlib.contextmanager
def _logs() -> Iterator[Path]:
    """A folder that stays where the error names it, and goes otherwise."""
    folder, keep = Path(tempfile.mkdtemp(prefix="advisor-measure-")), False
    try:
        yield folder
    except AdvisorError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _ranks(device: str, ranks: int | None) -> int:
    """Ranks to run; EnvironmentMissingError where this host has fewer GPUs."""
    if device == "cpu":
        return HOST_RANKS if ranks is None else ranks
    cards = len(gpus_visible())
    if cards < (ranks or 1):
        raise EnvironmentMissingError(
            f"{ranks or 1} ranks on cuda need as many GPUs, nvidia-smi lists {cards} here",
            "run it on a node with GPUs" if cards == 0 else f"--ranks {cards}",
        )
    return ranks or cards


def _default_path(name: str) -> Path:
    from platformdirs import user_data_path

    path = user_data_path("advisor") / "presets" / "systems" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _system_text(bench: Mapping[str, Any], name: str, system: str | None) -> str:
    from advisor.fit.own_system import own_system, system_text
    from advisor.trial.measure.rates import said

    note = f"Written by advisor measure on this host. {said(bench)}"
    if system is not None:
        from advisor.trial.measure.card import card_profile

        return own_system(system, *card_profile(bench, system), note, name=name)
    import psutil

    from advisor.trial.measure.host import host_system

    return system_text(host_system(bench, name, psutil.virtual_memory().total), note)
