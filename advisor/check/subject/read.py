"""From a configuration file and options to the job that runs: what the file leaves open has to be said, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from advisor.check.readback import Observed
from advisor.check.reading import Reading
from advisor.check.run import read_setup, report
from advisor.check.subject import bridge
from advisor.check.subject.effective import overlap_fields, settler, wanted_environment
from advisor.check.subject.form import Subject, place
from advisor.check.subject.megatron import megatron_job, stated_at
from advisor.check.subject.observed import forced, require_same_job, seen_fields, settle_as_seen
from advisor.check.subject.split import stages
from advisor.check.subject.variables import with_environment
from advisor.check.subject.words import words
from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.rules.lint import Setup
from advisor.rules.lint.setup import full_name
from advisor.search.dials import knob_words
from advisor.search.options import EstimateOptions
from advisor.search.request import Request
from advisor.search.single import ARGUMENT_FILE, SIZES, Choice, fill_from, settled
from advisor.search.sources import Setting, merge
from advisor.spec.load.megatron import MegatronJob

FLAG = "flag"
NEEDED = {
    "model": "--model NAME|PATH",
    "gpus": "--gpus N",
    "system": "--system NAME|PATH",
    "gbs": "--gbs N",
    "seq_len": "--seq-len N",
}
"""What a job cannot be priced without, and the option that says it."""
ALLOWED = frozenset({"model", "gpus", *EstimateOptions.__annotations__} - {"given_by", "anchor"})
KEYS = {**bridge.SIZES, "vpp": "vpp", "etp": "etp", "sp": "sp", "recompute": "recompute_granularity",
        "dispatcher": "moe_token_dispatcher_type", "cuda_graph": "cuda_graph_impl",
        "pipeline_layout": "pipeline_model_parallel_layout"}  # fmt: skip
"""Settings of ours, and the one in the file that decides each."""


def read_subject(
    path: str | Path,
    options: Mapping[str, Any],
    *,
    observed: Observed | None = None,
    target: str | None = None,
    version: str | None = None,
) -> Subject:
    """The job of a configuration file; `options` are those of an estimate, by name, and win over the file.

    `version` is the release of Bridge or megatron-core that it is meant for, the newest by default.
    `observed` is what a log of the job said: what it shows to hold, holds, and it states the number of GPUs where the
    file does not. InputError for a file that cannot be used, for a job that neither the file nor an option describes
    whole, and for a log of another job.
    """
    given = {name: value for name, value in options.items() if value is not None}
    count = given.get("gpus")
    system = given.get("system")
    gpus = int(count) if isinstance(count, int) or (isinstance(count, str) and count.isdigit()) else None
    (reading,), setup = read_setup(
        [path], target=target, version=version, gpus=gpus, system=str(system) if system else None
    )
    if observed is not None and observed.gpus is not None:
        setup.gpus = setup.gpus or int(observed.gpus.value)
    found = merge(given, ALLOWED, FLAG)
    if reading.kind == "plan":
        request, choice = _of_plan(str(path), found)
    else:
        request, choice = _of_settings(reading, setup, found)
    request = with_environment(setup, request)
    settle = settler(setup, request)
    fields = overlap_fields(setup, request, choice, settle)
    if observed is not None:
        require_same_job(observed, choice, str(path))
        seen = forced(observed, settle(choice.layout, choice.knobs))
        settle, fields = settle_as_seen(settle, choice, seen), seen_fields(fields, choice.knobs, seen, observed)
    held = settle(choice.layout, choice.knobs)
    return Subject(
        reading=reading,
        setup=setup,
        report=report([reading], setup),
        request=request,
        asked=choice,
        settle=settle,
        fields=fields,
        sources=MappingProxyType(_sources(setup, request, choice, found)),
        environment=wanted_environment(setup, request, choice.layout, held),
    )


def _of_plan(path: str, found: Mapping[str, Setting]) -> tuple[Request, Choice]:
    """The best candidate of a plan; what a plan states, no option changes."""
    said = [name for name, setting in found.items() if setting.origin == FLAG]
    if said:
        raise InputError(f"{path} is a plan and states {', '.join(said)} itself", "plan again, or improve a script")
    chosen = read_plan(path)
    return chosen.request, Choice(chosen.layout, chosen.knobs)


def _of_settings(reading: Reading, setup: Setup, found: dict[str, Setting]) -> tuple[Request, Choice]:
    job: MegatronJob | None = None
    spelled: MegatronJob | None = None
    if setup.framework == "megatron-lm":
        job = megatron_job(reading, found)
        fill_from(job, found, FLAG)
    elif setup.framework == "bridge":
        named = found.get("model")
        said, spelled = bridge.settings(setup, None if named is None else str(named.value))
        _take(found, said)
    else:
        _take(found, words(setup))
    _launch(found, setup, reading)
    _open(found, setup, reading)
    _complete(found, reading, job)
    request, choice = settled(found, job, FLAG, None if spelled is None else spelled.model)
    if setup.framework == "bridge":
        split = stages(setup, request, found, choice.layout.split, FLAG)
        choice = replace(choice, layout=replace(choice.layout, split=split))
    return request, choice if spelled is None else replace(choice, remarks=spelled.findings)


def _take(found: dict[str, Setting], said: Mapping[str, Setting]) -> None:
    """Settings of a file: only options win over them."""
    for name, setting in said.items():
        if name not in found or found[name].origin != FLAG:
            found[name] = setting


def _launch(found: dict[str, Setting], setup: Setup, reading: Reading) -> None:
    """GPUs and system as launch lines state them; the GPU of a vendor recipe stands in its name."""
    if setup.gpus is not None:
        _take(found, {"gpus": Setting(setup.gpus, place(reading.file, 0))})
    if reading.system is not None:
        _take(found, {"system": Setting(reading.system, place(reading.file, 0))})


def _open(found: Mapping[str, Setting], setup: Setup, reading: Reading) -> None:
    """InputError for settings that are no constants in the file, so that nobody knows what runs."""
    left = []
    for name, setting in KEYS.items():
        fact = setup.facts.get(f"unknown.{full_name(setting)}")
        if fact is not None and (name not in found or found[name].origin != FLAG):
            left.append((name, place(fact.file or reading.file, fact.line)))
    if left:
        said = ", ".join(f"{name} ({where})" for name, where in left)
        options = " ".join(f"--{name.replace('_', '-')} ..." for name, _ in left)
        raise InputError(f"{reading.file!r} computes {said}; what it is worth only shows in a run", f"add {options}")


def _complete(found: Mapping[str, Setting], reading: Reading, job: MegatronJob | None) -> None:
    """InputError that names everything that is missing, and the option for each."""
    missing = [name for name in NEEDED if name not in found and not (name == "model" and job is not None)]
    if missing:
        said = ", ".join(missing[:-1]) + (" and " if len(missing) > 1 else "") + missing[-1]
        raise InputError(
            f"{reading.file!r} does not say {said}: nothing can be priced without",
            "add " + " ".join(NEEDED[name] for name in missing),
        )


def _sources(setup: Setup, request: Request, choice: Choice, found: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Every size and knob with its origin: an option, the file, a recipe, or a default."""
    values: dict[str, Any] = {name: getattr(choice.layout, name) for name in (*SIZES, "sp", "gbs")}
    values |= knob_words(choice.knobs)
    if request.workload.bucket_size is not None:
        values["bucket_size"] = request.workload.bucket_size
    out: dict[str, Setting] = {}
    for name, value in values.items():
        held = found.get(name)
        origin = "default" if held is None else held.origin
        if origin in ("default", ARGUMENT_FILE):
            origin = stated_at(setup, name)
        out[name] = Setting(value, origin, "" if held is None else held.note)
    return out
