"""The staged run: files -> one setup -> every rule -> findings and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from advisor.check.defaults import settle, unknown_fields
from advisor.check.files import read_file
from advisor.check.reading import Reading
from advisor.check.recipes import is_recipe, model_values, recipe_values
from advisor.check.releases import limits, releases
from advisor.errors import AdvisorError, InputError
from advisor.rules.lint import CONFIG_RULES, STAGES, Setup, Value, ask
from advisor.rules.lint.setup import Framework
from advisor.spec.load.system import load_system
from advisor.spec.plan import Severity

Verdict = Literal["stop", "silent", "slow", "info", "none"]
ORDER: tuple[Severity, ...] = ("stop", "silent", "slow", "info")
READ_SOURCE = {
    "unknown-flag": "presets/launch/megatron_arguments.json (megatron-core 0.19.2), presets/check/layout_flags.yaml",
    "unknown-field": "presets/check/bridge_fields.json (megatron-bridge 0.3.1 and 0.6.2)",
    "argument-value": "presets/launch/megatron_arguments.json (megatron-core 0.19.2)",
}
_ABOUT_THE_FILES = ("env.", "fact.", "package.")


@dataclass(frozen=True, slots=True)
class Found:
    """One finding: the rule, what it says with the offending values, the fix, its source, and where it stands."""

    rule: str
    severity: Severity
    message: str
    fix: str
    source: str
    file: str
    line: int
    stage: str


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, worst first; `verdict` is the highest severity found; `kinds` says how each file was read."""

    verdict: Verdict
    framework: Framework
    findings: tuple[Found, ...]
    kinds: tuple[tuple[str, str], ...]


def check(
    files: Sequence[str | Path],
    *,
    target: str | None = None,
    version: str | None = None,
    gpus: int | None = None,
    system: str | None = None,
) -> Report:
    """Read the files as one job and ask every rule of its framework.

    `target` is bridge or megatron-lm; None (or another area) lets the files decide. `version` is that of Bridge, or of
    megatron-core where no Bridge is; None asks the rules of all. `gpus` wins over what a launch line says; `system`
    names the GPUs that rules about architectures need. InputError for a file that cannot be used.
    """
    return report(*read_setup(files, target=target, version=version, gpus=gpus, system=system))


def read_setup(
    files: Sequence[str | Path],
    *,
    target: str | None = None,
    version: str | None = None,
    gpus: int | None = None,
    system: str | None = None,
) -> tuple[list[Reading], Setup]:
    """What the files say, each by itself and as one job; parameters and errors as those of `check`."""
    if gpus is not None and not 0 < gpus < 10**7:
        raise InputError(f"--gpus {gpus} must be a positive number of GPUs")
    readings = [read_file(file) for file in files]
    setup = joined(readings, target, gpus, system)
    if version is not None:
        setup.releases = releases(setup.framework, version)
    return readings, setup


def report(readings: Sequence[Reading], setup: Setup) -> Report:
    """Every rule of its framework asked about a job that was read."""
    found = [
        Found(note.rule, note.severity, note.message, note.fix, READ_SOURCE.get(note.rule, ""), file, note.line, "read")
        for note, file in (
            *((note, reading.file) for reading in readings for note in reading.notes), *unknown_fields(setup),
        )
    ]  # fmt: skip
    found += _ask_all(setup, readings[0].file)
    found = _no_echo(found)
    found.sort(key=lambda one: (ORDER.index(one.severity), STAGES.index(one.stage)))
    verdict: Verdict = found[0].severity if found else "none"
    return Report(verdict, setup.framework, tuple(found), tuple((one.file, one.kind) for one in readings))


def joined(readings: Sequence[Reading], target: str | None, gpus: int | None, system: str | None) -> Setup:
    """Readings as one job, with the defaults of its framework; parameters as those of `check`."""
    setup = Setup(framework=_framework(readings, target))
    for reading in readings:
        setup.values |= reading.values
        setup.env |= reading.env
        setup.facts |= reading.facts
        setup.packages |= reading.packages
        setup.gpus = reading.gpus or setup.gpus
        setup.env_known = setup.env_known or reading.launches
        system = system or (reading.system if _is_system(reading.system) else None)
    setup.env_known = setup.env_known and "undefined_variable" not in setup.facts
    if gpus is not None:
        setup.gpus = gpus
        setup.facts["gpus_asked"] = Value(True)
    if system is not None:
        _system(setup, system)
    recipe = next((reading.recipe for reading in readings if reading.recipe), None)
    if recipe is not None:
        mode = setup.facts.get("mode")
        setup.base |= model_values(recipe)
        if setup.framework == "bridge":
            setup.facts["recipe"] = Value(recipe)
            setup.base |= recipe_values(recipe, mode.value if mode is not None else None)
    if any(reading.launches for reading in readings) and "undefined_variable" not in setup.facts:
        setup.facts["complete_script"] = Value(setup.framework == "megatron-lm")
    settle(setup)
    return setup


def _is_system(name: str | None) -> bool:
    if name is None:
        return False
    try:
        load_system(name)
    except AdvisorError:
        return False
    return True


def _framework(readings: Iterable[Reading], target: str | None) -> Framework:
    named: dict[str | None, Framework] = {"bridge": "bridge", "megatron-lm": "megatron-lm"}
    if target in named:
        return named[target]
    said = [reading.framework for reading in readings if reading.framework is not None]
    return next((one for one in said if one != "mcore"), said[0] if said else "bridge")


def _system(setup: Setup, name: str) -> None:
    system = load_system(name)
    major, _, minor = system.gpu.compute_capability.partition(".")
    if major.isdigit():
        setup.capability = (int(major), int(minor) if minor.isdigit() else 0)
    setup.gpu_name = system.gpu.name
    setup.nvlink_domain = system.nvlink_domain
    setup.gpus_per_node = system.gpus_per_node


def _ask_all(setup: Setup, first: str) -> list[Found]:
    found = []
    for one in CONFIG_RULES:
        hit = ask(one, setup)
        if hit is None:
            continue
        severity = one.severity
        if "recipe" in setup.facts and not _stated(setup) and not (one.stage == "grid" and _exact(setup)):
            severity = "info"
        message = hit.message + limits(one.versions, setup)
        found.append(Found(one.id, severity, message, hit.fix, one.source, hit.file or first, hit.line, one.stage))
    return found


def _exact(setup: Setup) -> bool:
    """Whether the recipe is named by its function, not by its model alone, and the GPUs it is to run on are stated."""
    return bool(setup.gpus) and is_recipe(str(setup.facts["recipe"].value))


def _stated(setup: Setup) -> bool:
    """Whether a file states any setting that the last rule looked at; else it speaks about the recipe alone."""
    return any(key in setup.values or key.startswith(_ABOUT_THE_FILES) for key in setup.asked)


def _no_echo(found: list[Found]) -> list[Found]:
    """Without a note where a stricter rule says the same about the same thing."""
    ids = {one.rule for one in found}
    echoes = {
        "moe-tp-without-sp-warns": "moe-tp-needs-sp",
        "forced-balance-note": "forced-balance-is-benchmark",
        "bucket-size-counts-parameters": "bucket-size-looks-like-bytes",
        "perf-env-plugin-old": "perf-env-plugin-gone",
        "interleave-flags-need-pp": "interleave-needs-pp",
        "sp-off-without-tp": "sp-needs-tp",
    }
    return [one for one in found if echoes.get(one.rule) not in ids]
