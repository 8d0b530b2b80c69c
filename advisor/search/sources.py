"""Where a setting comes from: keyword or flag, ADVISOR_* variable, project file, user file, default - in that order."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import InputError, UnknownNameError

DATA_VARIABLES = ("ADVISOR_PRESETS", "ADVISOR_PROFILES")
OUTPUT_NAMES = ("format", "out", "color", "quiet", "verbose")


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of a request as resolved. `origin` says who chose it, `note` how (an alias, a rule)."""

    value: Any
    origin: str
    note: str = ""


def unknown_names(given: Mapping[str, object], allowed: frozenset[str], where: str) -> None:
    """Raise UnknownNameError with the closest names when `given` has a key outside `allowed`."""
    for name in given:
        if name not in allowed:
            close = difflib.get_close_matches(name, sorted(allowed), n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(sorted(allowed))}"
            raise UnknownNameError(f"unknown setting {name!r} in {where}", hint)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {error}", "settings files are TOML, for example: system = 'dgx-h100'"
        ) from (error)


def _files() -> Iterator[tuple[str, dict[str, Any]]]:
    """(origin, settings) of every settings file that exists, most specific first."""
    project = Path("advisor.toml")
    if project.exists():
        yield "./advisor.toml", _read_toml(project)
    python = Path("pyproject.toml")
    if python.is_file():
        table = _read_toml(python).get("tool", {}).get("advisor")
        if isinstance(table, dict):
            yield "./pyproject.toml [tool.advisor]", table
    from platformdirs import user_config_path

    user = user_config_path("advisor") / "advisor.toml"
    if user.is_file():
        yield str(user), _read_toml(user)


def merge(given: Mapping[str, object], allowed: frozenset[str], given_by: str = "argument") -> dict[str, Setting]:
    """Every setting that somebody made, the most specific source winning; defaults are not filled in.

    `given` are the keywords of the call (None = not given), `allowed` the names that exist. Settings files may hold
    keys of the other verbs with underscores or hyphens; environment variables are ADVISOR_<NAME>.
    """
    unknown_names(given, allowed, "the call")
    found = {name: Setting(value, given_by) for name, value in given.items() if value is not None}
    for name in sorted(allowed):
        variable = f"ADVISOR_{name.upper()}"
        if variable in os.environ and variable not in DATA_VARIABLES:
            found.setdefault(name, Setting(os.environ[variable], variable))
    for origin, table in _files():
        settings = {key.replace("-", "_"): value for key, value in table.items()}
        unknown_names(settings, ALL_NAMES, origin)
        for name, value in settings.items():
            if name in allowed:
                found.setdefault(name, Setting(value, origin))
    return found


def _all_names() -> frozenset[str]:
    from advisor.search.options import EstimateOptions, PlanOptions

    keywords = {*PlanOptions.__annotations__, *EstimateOptions.__annotations__} - {"given_by"}
    return frozenset({"model", "gpus", *OUTPUT_NAMES, *keywords})


ALL_NAMES = _all_names()
