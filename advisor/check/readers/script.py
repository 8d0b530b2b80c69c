"""Texts of flags and overrides, launch scripts, Slurm scripts and environment files.

Everything here is words: of the training command of a script, or of the whole text where there is no command. Words
`--flag value` are flags of Megatron-LM, of Bridge's scripts or bare layout flags, `section.field=value` are overrides
of a Bridge configuration, `NAME=value` is the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from advisor.check.readers import flags, launch
from advisor.check.readers.mapping import put_section
from advisor.check.reading import SECTIONS, Reading, comments, scalar
from advisor.rules.lint import Value
from advisor.spec.load.megatron.shell import Script, read_script

_OVERRIDE = re.compile(rf"^(\+{{0,2}}|~)([A-Za-z_]\w*(?:\.\w+)+|{'|'.join(SECTIONS)})(?:=(.*))?$", re.DOTALL)
_SETTER = re.compile(r"^\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)=")
_UNSET = re.compile(r"^\s*unset\s+(?:-v\s+)?(.+)$")
_LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")


class Lines:
    """Where words stand in a text."""

    def __init__(self, text: str) -> None:
        self.rows = text.splitlines()

    def of(self, word: str) -> int:
        """The first line that is no comment and holds the word; 0 if none does."""
        pattern = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w-])")
        for at, row in enumerate(self.rows, 1):
            if pattern.search(row) and not row.lstrip().startswith("#"):
                return at
        return 0


def read_script_text(path: str, text: str) -> Reading:
    """Settings, environment and launch facts of a text of words. InputError for an open quote or an enormous text."""
    sbatch = bool(re.search(r"^#SBATCH\b", text, re.MULTILINE))
    reading = Reading(path, "sbatch" if sbatch else "shell")
    lines = Lines(text)
    sizes = [] if sbatch else flags.pairs(text)
    if sizes:
        flags.read(reading, sizes, lines, bridge=False)
        return reading
    script = read_script(re.sub(r"\[([^\]\s]*),\s+", r"[\1,", text))
    _environment(reading, script, lines)
    launch.directives(reading, text)
    training = launch.training_command(script)
    if training is not None:
        reading.launches = True
        launch.facts(reading, script, training, text)
        words = training.words
    else:
        words = [word for command in script.commands if _settings(command) for word in command]
        if not words and not sbatch:
            words = [word for values in script.variables.values() for word in _listed(values)]
        words += [f"{name}={' '.join(values)}" for name, values in script.variables.items() if name in SECTIONS]
        if script.variables and not words:
            reading.kind = "environment" if not sbatch else "sbatch"
    for name in sorted(script.undefined):
        if any(f"${name}" in word or f"${{{name}" in word for word in words):
            reading.know("undefined_variable", name)
    _words(reading, words, lines, training is not None and training.program)
    comments(reading, text)
    return reading


def _settings(command: Sequence[str]) -> bool:
    """Whether a command without a program is settings: flags, overrides, or `tp=4 pp=2`."""
    return command[0].startswith("-") or bool(_OVERRIDE.match(command[0])) or flags.is_size(command[0])


def _listed(values: Sequence[str]) -> list[str]:
    """Words of a variable that lists flags or overrides: in one string, or as an array.

    The elements of an array are words, or a flag and its value each.
    """
    if not any(value.startswith("--") or _is_override(value) for value in values):
        return []
    return [word for value in values for word in (value.split() if value.startswith("--") else [value])]


def _is_override(word: str) -> bool:
    found = _OVERRIDE.match(word)
    return found is not None and found[3] is not None and found[2].split(".")[0] in SECTIONS


def _environment(reading: Reading, script: Script, lines: Lines) -> None:
    """Variables with the value they end up with; `unset` makes them None. Lower-case names are the script's own."""
    for name, values in script.variables.items():
        if name.isupper() or name in _LAUNCHER_VARIABLES:
            reading.env[name] = Value(" ".join(values), reading.file, lines.of(name))
    for at, row in enumerate(lines.rows, 1):
        found = _UNSET.match(row)
        for name in found[1].split() if found else ():
            later = any(_SETTER.match(after) and f"{name}=" in after for after in lines.rows[at:])
            if not later:
                reading.env[name] = Value(None, reading.file, at)


def _words(reading: Reading, words: Sequence[str], lines: Lines, program: str | bool) -> None:
    """Sort words into overrides and flags, then read the flags as whoever they belong to."""
    rest: list[str] = []
    for word in words:
        found = _OVERRIDE.match(word)
        if found is not None and not word.startswith("-") and (found[3] is not None or found[1] == "~"):
            _override(reading, found, lines)
        else:
            rest.append(word)
    bridge = any(key.split(".")[0] in SECTIONS for key in reading.values) or (
        isinstance(program, str) and ("recipe" in program or "bridge" in program or "setup_experiment" in program)
    )  # fmt: skip
    if bridge:
        reading.framework = "bridge"
        reading.kind = reading.kind if reading.launches else "bridge-overrides"
    if rest:
        flags.read(reading, rest, lines, bridge=bridge)


def _override(reading: Reading, found: re.Match[str], lines: Lines) -> None:
    mark, key, raw = found.groups()
    if "$" in (raw or ""):
        reading.know(f"unknown.{key}")
        return
    line = lines.of(key)
    value = scalar(raw) if raw is not None else None
    if key.startswith("env_vars."):
        reading.env[key.removeprefix("env_vars.")] = Value(None if value is None else str(value), reading.file, line)
        return
    if key.split(".")[0] not in SECTIONS and not mark:
        reading.know("strange_section", key, line)
    if key in SECTIONS and isinstance(value, Mapping):
        put_section(reading, key, value, lambda _: line)
    else:
        reading.put(key, value, line)
    if mark:
        reading.know(f"added.{key}", mark, line)
    if key.endswith("comm_overlap.tp_comm_overlap_cfg") and isinstance(value, str | dict):
        reading.know("tp_preset_kind", "dict" if isinstance(value, dict) else "name", line)


__all__ = ["Lines", "read_script_text"]
