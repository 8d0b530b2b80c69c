"""`advisor launch`: a planned job as a Slurm script, and into the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, choice, option, with_options
from advisor.cli.parameters import OneOf, shorten
from advisor.cli.scheduled import (
    ACCOUNT,
    CONTAINER,
    ENV,
    EXCLUSIVE,
    GRES,
    MOUNTS,
    PARTITION,
    QOS,
    SECRET,
    SHARED,
    WORKDIR,
    assignment,
)
from advisor.cli.survival import (
    CANDIDATE,
    HAZARDS,
    PLAN_ARGUMENT,
    WISHES,
    chosen_of,
    either,
    flag,
    hazards_of,
    valued,
    wishes_of,
)
from advisor.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from advisor.configure.launch import Launch, Wanted

STYLES = ("srun", "torchrun", "ft_launcher")
ENTRIES = ("auto", "bridge", "megatron-lm", "other")
OPTIONS = (
    valued("to", "slurm", "Job", "Scheduler.", type=OneOf(["slurm"]), default="slurm"),
    valued("style", f"[{'|'.join(STYLES)}]", "Job", "What starts the ranks.", type=OneOf(STYLES), default="srun",
           show_default=True),
    valued("entry", f"[{'|'.join(ENTRIES)}]", "Job", "How PROGRAM is handed the plan: bridge (overrides),"
           " megatron-lm (flags), other (not at all); auto tells run_recipe.py and pretrain_*.py.", type=OneOf(ENTRIES),
           default="auto"),
    valued("time", "4h", "Job", "Time limit: 4h, 90m, 1d12h, or as Slurm writes it.", default="4h", show_default=True),
    valued("name", "NAME", "Job", "Job name (default: model and GPUs)."),
    ACCOUNT,
    PARTITION,
    QOS,
    valued("restarts", "N", "Job", "Requeues before giving up (default 3)."),
    GRES,
    EXCLUSIVE,
    CANDIDATE,
    CONTAINER,
    MOUNTS,
    WORKDIR,
    SHARED,
    valued("hf-home", "DIR", "Folders", "HF_HOME."),
    valued("uv-cache-dir", "DIR", "Folders", "UV_CACHE_DIR."),
    valued("nemo-home", "DIR", "Folders", "NEMO_HOME."),
    valued("log-dir", "DIR", "Folders", "Logs, as the host sees it."),
    either("uv", "Program", "Start Python by uv, after one uv sync (default: with a container)."),
    either("numa", "Program", "Bind ranks to NUMA nodes (default: srun style with a container)."),
    flag("fresh", "Program", "Put an old nemo_experiments folder aside at the first start."),
    ENV,
    SECRET,
    *HAZARDS,
    *WISHES,
    option("--submit", section="Output", is_flag=True, help="Hand the script to sbatch and print the job id."),
    option("--dry-run", section="Output", is_flag=True, help="Write and submit nothing, whatever else is said."),
    option("--interactive", section="Output", is_flag=True, help="Recipe for an interactive allocation instead."),
    valued("out", "FILE", "Output", "Write the script here (default with --submit: NAME.sbatch)."),
    valued("format", "[script|json]", "Output", "What stdout gets.", type=OneOf(["script", "json"]), default="script"),
    choice("color", ("auto", "always", "never"), "Output", "Of errors."),
    option("-q", "--quiet", section="Output", is_flag=True, envvar="ADVISOR_QUIET", help="No hints."),
)  # fmt: skip


@click.command("launch", cls=SectionCommand)
@PLAN_ARGUMENT
@click.argument("program", nargs=-1, metavar="[-- PROGRAM ARGS...]", type=click.UNPROCESSED)
@with_options(OPTIONS)
def command(*, plan: str, program: tuple[str, ...], color: render.ColorMode | None, **options: Any) -> int:
    """Slurm script of a planned job; PROGRAM comes after --.

    PROGRAM is handed the whole configuration of the plan; without one, the job brings a Bridge script that holds it.
    The script goes to stdout, or to --out. Values from outside are quoted; secrets are named with --secret and never
    written.
    """
    if color is not None:
        render.choose_color(color)
    from advisor.configure.launch import launch
    from advisor.configure.resiliency import resiliency
    from advisor.export.launched import PROGRAMS, entry_of, with_plan
    from advisor.export.slurm import interactive_text, script_text

    chosen = chosen_of(plan, options)
    met = hazards_of(chosen, options)
    entry = entry_of(program) if options["entry"] == "auto" else options["entry"]
    wanted = _wanted(program or (PROGRAMS[entry],), options)
    settings = resiliency(chosen, wishes_of(options, wanted.style), met)
    job = with_plan(launch(chosen, wanted, settings), settings, entry, generated=entry == "bridge" and not program)
    content = interactive_text(job) if options["interactive"] else script_text(job)
    return _deliver(job, content, options)


def _wanted(program: tuple[str, ...], options: dict[str, Any]) -> Wanted:
    from advisor.configure.launch import Wanted, parse_time
    from advisor.search.values import whole

    folders = {"HF_HOME": "hf_home", "UV_CACHE_DIR": "uv_cache_dir", "NEMO_HOME": "nemo_home"}
    restarts = options["restarts"]
    texts = ("name", "account", "partition", "qos", "container", "workdir", "shared", "log_dir")
    return Wanted(
        style=options["style"],
        command=program,
        time_s=parse_time(options["time"]),
        mounts=tuple(options["mounts"]),
        folders={variable: options[name] for variable, name in folders.items() if options[name]},
        variables=dict(assignment(text) for text in options["env"]),
        secrets=tuple(options["secret"]),
        uv=options["uv"],
        numa=options["numa"],
        gres=options["gres"] is not False,
        exclusive=options["exclusive"] is not False,
        restarts=3 if restarts is None else whole("restarts", restarts, 0, 1000),
        fresh=options["fresh"],
        **{name: options[name] or "" for name in texts},
    )


def _deliver(job: Launch, content: str, options: dict[str, Any]) -> int:
    """Print, write or submit, as asked."""
    from advisor.export.slurm import submit
    from advisor.export.slurm.render import file_stem, log_path

    submits = options["submit"] and not options["dry_run"]
    if options["submit"] and options["interactive"]:
        raise InputError("--interactive is a recipe for a person and cannot be submitted", "one of the two")
    name = options["out"] or (f"{file_stem(job.name)}.sbatch" if submits else None)
    if name is not None and not options["dry_run"]:
        _write(Path(name), content)
    if submits:
        done = submit(Path(str(name)))
        facts = {"job_id": done.job_id, "cluster": done.cluster or None, "script": str(name)}
        log = log_path(job).replace("%j", str(done.job_id))
        if options["format"] == "json":
            render.plain(json.dumps({**facts, "log": log}, indent=2))
        else:
            render.plain(f"{done.job_id}")
            _hint(options, f"submitted {name}; log: {log}")
        return EXIT_OK
    if options["format"] == "json":
        render.plain(json.dumps(_record(job, content, name), indent=2))
    else:
        render.plain(content.rstrip("\n") if name is None or options["dry_run"] else str(name))
    for note in job.notes:
        _hint(options, note)
    if job.log_dir:
        _hint(options, f"logs go to {job.log_dir}, which must exist before the job starts")
    return EXIT_OK


def _write(path: Path, content: str) -> None:
    if not path.parent.is_dir():
        raise InputError(f"--out {shorten(path)}: the folder does not exist", "make it first")
    render.write_atomically(path, content)


def _hint(options: dict[str, Any], words: str) -> None:
    if not options["quiet"]:
        render.notice(words)


def _record(job: Launch, content: str, name: str | None) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "script": content,
        "written": name,
        "style": job.style,
        "nodes": job.nodes,
        "spare_nodes": job.spare_nodes,
        "gpus_per_node": job.gpus_per_node,
        "tasks_per_node": job.tasks_per_node,
        "segment": job.segment or None,
        "time_s": job.time_s,
        "signal_lead_s": job.lead_s,
        "max_restarts": job.max_restarts,
        "requeues": job.restarts,
        "notes": list(job.notes),
    }
