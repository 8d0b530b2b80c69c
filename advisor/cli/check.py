"""`advisor check`: what is wrong, silently off or slow in somebody's configuration, or, by its log, in a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, option, with_options
from advisor.cli.parameters import OneCount, OneOf, Text
from advisor.errors import EXIT_NEGATIVE, EXIT_OK, InputError

TARGETS = ("bridge", "megatron-lm", "mcore", "launch", "resiliency")


def _system_names() -> tuple[str, ...]:
    from advisor.spec.load.system import system_names

    return tuple(system_names())


def _choose_color(_ctx: click.Context, _param: click.Parameter, value: render.ColorMode) -> render.ColorMode:
    render.choose_color(value)
    return value


OPTIONS = (
    option("--log", "logs", section="Job", multiple=True, type=Text("LOG|DIR|-"),
           help="Log of a job (.gz too), instead of FILE: what took effect. May be given several times."),
    option("--plan", section="Job", type=Text("PLAN"), help="With --log: the plan that the job was started from."),
    option("--target", section="Job", type=OneOf(TARGETS), envvar="ADVISOR_TARGET",
           help="Whose rules apply: bridge or megatron-lm; default, and for any other word: what the files say."),
    option("--target-version", "version", section="Job", type=Text("X"),
           help="Of Bridge (0.3, 0.6), or of megatron-core (0.16, 0.19) without Bridge; default: rules of all."),
    option("--gpus", section="Job", type=OneCount(), envvar="ADVISOR_GPUS",
           help="Number of GPUs; wins over what a launch line says."),
    option("--system", section="Job", type=Text("NAME|PATH", _system_names), envvar="ADVISOR_SYSTEM",
           help="System the job runs on: rules about GPUs and NVLink domains need it."),
    option("--format", "form", section="Output", type=OneOf(["table", "json", "sarif"]), default="table",
           envvar="ADVISOR_FORMAT", show_default=True, help="What stdout gets."),
    option("--color", section="Output", type=OneOf(["auto", "always", "never"]), default="auto", is_eager=True,
           callback=_choose_color, envvar="ADVISOR_COLOR", expose_value=False, show_default=True,
           help="Overrides NO_COLOR and FORCE_COLOR."),
    option("-q", "--quiet", section="Output", is_flag=True, envvar="ADVISOR_QUIET", help="No hints."),
)  # fmt: skip


@click.command("check", cls=SectionCommand)
@click.argument("files", nargs=-1, metavar="FILE...")
@with_options(OPTIONS)
def command(files: tuple[str, ...], **options: Any) -> int:
    """Check a configuration without running it.

    FILE is a Megatron-Bridge file, overrides or run_config.yaml, a Megatron-LM script, flags or YAML, a Slurm script,
    an environment file, bare layout flags, or a plan of advisor. Several files are read as one job. Exit code 1 when
    something stops the job or is silently not what was asked for.

    With --log, a job's own words are read instead: settings that took effect, step time, peak memory. With --plan they
    are compared; exit code 1 when something planned is off or differs, or a figure is outside its interval.
    """
    if options["logs"]:
        return _read_back(files, options)
    if options["plan"] is not None:
        raise InputError("--plan is compared with a log", "add --log LOG, or give the plan as FILE")
    if not files:
        raise InputError("nothing to check", "give FILE..., or --log LOG")
    return _lint(files, options)


def _lint(files: tuple[str, ...], options: Mapping[str, Any]) -> int:
    from advisor import __version__
    from advisor.check import check
    from advisor.check.sarif import sarif
    from advisor.cli.pages.check import document

    gpus = options["gpus"]
    report = check(
        files,
        target=options["target"],
        version=options["version"],
        gpus=None if gpus is None else int(gpus),
        system=options["system"],
    )
    if options["form"] == "sarif":
        render.plain(json.dumps(sarif(report, __version__), indent=2, ensure_ascii=False))
    else:
        render.show(document(report), render.Output(options["form"], None, options["quiet"], False))
    return EXIT_NEGATIVE if report.verdict in ("stop", "silent") else EXIT_OK


def _read_back(files: tuple[str, ...], options: Mapping[str, Any]) -> int:
    from advisor.check.readback import compare, read_log
    from advisor.cli.pages.readback import readback_document
    from advisor.configure.chosen import read_plan
    from advisor.export.subject import version_pair

    if files:
        raise InputError(f"{files[0]} beside --log", "check files and logs one after the other; a log more: --log LOG")
    if options["form"] == "sarif":
        raise InputError("--format sarif is for FILE", "--format json or table")
    chosen = None if options["plan"] is None else read_plan(str(options["plan"]))
    observed = read_log([str(log) for log in options["logs"]])
    if options["version"] is not None:
        target = observed.framework or "bridge"
        bridge, core = version_pair(target, options["version"])
        observed = replace(observed, version=core if target == "megatron-lm" else bridge, version_place=None)
    found = None if chosen is None else compare(observed, chosen)
    render.show(readback_document(observed, found), render.Output(options["form"], None, options["quiet"], False))
    return EXIT_NEGATIVE if found is not None and found.outcome not in ("as planned", "not seen") else EXIT_OK
