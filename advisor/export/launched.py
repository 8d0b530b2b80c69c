"""The program of a job with all that its plan says: layout, overlap, precision, environment, resiliency."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from advisor.configure.environment import Variable
from advisor.configure.launch import Launch
from advisor.configure.resiliency import Resiliency
from advisor.errors import InputError
from advisor.export.bridge import bridge_text
from advisor.export.megatron import BUFFER_FILE, flag_groups, megatron_text
from advisor.export.model_fields import Facts, model_facts
from advisor.export.overrides import overrides
from advisor.export.resiliency import bridge_overrides, bridge_python, megatron_flags
from advisor.export.subject import Subject, recipe, subject

SCRIPT = "bridge_config.py"
RUN_RECIPE = "run_recipe.py"
PROGRAMS = {"bridge": SCRIPT, "megatron-lm": "pretrain_gpt.py", "other": "train.py"}
"""What is run where nothing is named: a script written for the plan, or a program in the working directory."""
FOLDER = ".advisor"


def entry_of(program: tuple[str, ...]) -> str:
    """How a program takes its configuration, by its name; without one, as Bridge does."""
    name = PurePath(program[0]).name if program else SCRIPT
    if name == SCRIPT or RUN_RECIPE in {PurePath(word).name for word in program}:
        return "bridge"
    return "megatron-lm" if name.startswith("pretrain_") else "other"


def with_plan(job: Launch, settings: Resiliency, entry: str, *, generated: bool) -> Launch:
    """The job with the configuration of its plan in the words of the program: bridge, megatron-lm or other (none).

    With `generated`, Bridge's program is a script that holds the configuration; files that the command names are
    written by the job itself (`Launch.files`). Raises InputError for a layout that the framework would refuse and for
    a model that it cannot express.
    """
    if entry == "other":
        note = f"{job.command[0]} is handed nothing of the plan: --entry bridge or megatron-lm passes it"
        return dataclasses.replace(job, notes=(*job.notes, note))
    made = subject(settings.chosen, "bridge", settings.wishes.target)
    facts = model_facts(made.model, str(settings.chosen.request.settings["model"].value))
    job = dataclasses.replace(job, environment=_environment(job, made))
    minutes = max(1, (job.time_s - job.lead_s) // 60) if job.ends_itself else None
    if entry == "megatron-lm":
        return _megatron(job, settings, made, facts, minutes)
    return _script(job, settings, made, facts, minutes) if generated else _overridden(job, settings, made, minutes)


def _environment(job: Launch, made: Subject) -> tuple[Variable, ...]:
    """Variables of what takes effect; those of the resiliency settings and those given stay over them."""
    kept = {one.name: one for one in job.environment if one.source in ("resiliency", "given")}
    return tuple(({one.name: one for one in made.environment} | kept).values())


def _megatron(job: Launch, settings: Resiliency, made: Subject, facts: Facts, minutes: int | None) -> Launch:
    words = [word for _, flags in flag_groups(made, facts) for flag in flags for word in flag]
    files = {name: text for name, text in megatron_text(made, facts).items() if name == BUFFER_FILE}
    folder = folder_of(files, job)
    words = [f"{folder}/{word}" if word == BUFFER_FILE else word for word in words]
    words += [*megatron_flags(settings), *(["--exit-duration-in-mins", str(minutes)] if minutes else [])]
    return _holding(dataclasses.replace(job, command=(*job.command, *words)), files)


def _overridden(job: Launch, settings: Resiliency, made: Subject, minutes: int | None) -> Launch:
    words = [word for _, group in overrides(made) for word in group]
    words += [*bridge_overrides(settings), *([f"train.exit_duration_in_mins={minutes}"] if minutes else [])]
    command = job.command
    if RUN_RECIPE in {PurePath(word).name for word in command} and "--recipe" not in command:
        found = recipe(made.model.name, made.version)
        if found is None:
            raise InputError(
                f"Bridge {made.version} has no recipe for {made.model.name} that {RUN_RECIPE} could run",
                "no program after --: the job then brings a script with the whole configuration",
            )
        command = (*command, "--recipe", found[1])
    return dataclasses.replace(job, command=(*command, *words))


def _script(job: Launch, settings: Resiliency, made: Subject, facts: Facts, minutes: int | None) -> Launch:
    more = bridge_python(settings)
    if minutes:
        more += f"cfg.train.exit_duration_in_mins = {minutes}  # torchrun would kill a job that is told to end\n"
    files = bridge_text(made, facts, more)
    command = (f"{folder_of(files, job)}/{SCRIPT}", *job.command[1:])
    note = f"{SCRIPT} comes from the plan and trains on mock data: a PROGRAM after -- trains on yours"
    return _holding(dataclasses.replace(job, command=command, python=True, notes=(*job.notes, note)), files)


def folder_of(files: Mapping[str, str], job: Launch) -> str:
    """Where the ranks find `files`: below the working directory, named by their content so that no job changes them."""
    mark = hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sorted(files.items())).encode()).hexdigest()
    return "/".join(part for part in (job.workdir.rstrip("/"), FOLDER, mark[:12]) if part)


def _holding(job: Launch, files: Mapping[str, str]) -> Launch:
    if not files:
        return job
    return dataclasses.replace(job, files=MappingProxyType(dict(files)), file_folder=folder_of(files, job))
