"""`advisor trace`: hidden and exposed communication of profiler traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import OUTPUT_OPTIONS, SectionCommand, option, with_options
from advisor.cli.parameters import OneOf, OutFile, shorten
from advisor.errors import EXIT_NEGATIVE, EXIT_OK, InputError

SELECTIONS = ("steps", "all", "launched", "launched-before-last-step")
# Here --out takes a trace to look at, not the answer again.
FORM, _OUT, *REST = OUTPUT_OPTIONS
OPTIONS = (
    option("--plan", section="Compare", metavar="FILE", envvar="ADVISOR_PLAN",
           help="JSON of a plan or an estimate: predicted beside measured, with a verdict."),
    option("--candidate", section="Compare", type=click.IntRange(1, 10_000), default=1, metavar="N",
           envvar="ADVISOR_CANDIDATE", help="Which candidate of --plan ran (default: 1, the best)."),
    option("--compare", section="Compare", metavar="DIR_OR_FILE", envvar="ADVISOR_COMPARE",
           help="Other traces: what changed, term by term."),
    option("--selection", section="Measure", type=OneOf(SELECTIONS), default="steps", show_default=True,
           envvar="ADVISOR_SELECTION",
           help="Windows per profiler step, or one window over all events, or over those HolisticTraceAnalysis takes."),
    FORM,
    option("--out", section="Output", type=OutFile((".json", ".gz")), envvar="ADVISOR_OUT",
           help="Write a Chrome trace with tracks of what is hidden and exposed (.json or .json.gz)."),
    *REST,
)  # fmt: skip


@click.command("trace", cls=SectionCommand)
@click.argument("paths", nargs=-1, required=True, metavar="DIR_OR_FILE...")
@with_options(OPTIONS)
def command(
    *, paths: tuple[str, ...], plan: str | None, candidate: int, compare: str | None, selection: Any,
    form: render.Format, out: Path | None, quiet: bool, verbose: bool,
) -> int:  # fmt: skip
    """Hidden and exposed communication in profiler traces.

    Reads Kineto / Chrome JSON (plain or gzip) and nsys sqlite exports, one file or more per rank. With --plan a kind is
    confirmed within 10 points of its predicted hidden share, and not effective below a quarter of it. Exit code 1: one
    is not confirmed.
    """
    from advisor.cli.pages.trace import trace_document
    from advisor.trace.analysis import analyse
    from advisor.trace.annotate import write_annotated
    from advisor.trace.verdict import read_promise, verdicts

    promise = None if plan is None else read_promise(_path(plan), candidate)
    files = [_path(name) for name in paths]
    analysis = analyse(files, selection)
    other = None if compare is None else analyse([_path(compare)], selection)
    judged = None if promise is None else (promise, verdicts(promise, analysis.mean))
    if out is not None:
        write_annotated(analysis, out)
    render.show(trace_document(analysis, other, judged, out, verbose), render.Output(form, None, quiet, verbose))
    failed = judged is not None and any(one.verdict not in {None, "confirmed"} for one in judged[1])
    return EXIT_NEGATIVE if failed else EXIT_OK


def _path(name: str) -> Path:
    if not name or "\0" in name:
        raise InputError(f"{shorten(name)} is no path")
    return Path(name)
