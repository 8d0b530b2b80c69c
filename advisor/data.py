"""Finds presets and profiles: environment variable, user folder, checkout, installed wheel - in that order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from advisor.errors import EnvironmentMissingError

PACKAGE_DIR = Path(__file__).resolve().parent


def _roots(kind: str) -> Iterator[Path]:
    """Folders that may hold `kind` ("presets" or "profiles"), most specific first."""
    variable = os.environ.get(f"ADVISOR_{kind.upper()}")
    if variable:
        yield Path(variable)
    from platformdirs import user_data_path

    yield user_data_path("advisor") / kind
    yield PACKAGE_DIR.parent / kind
    yield PACKAGE_DIR / "_data" / kind


def find(kind: str, relative: str) -> Path | None:
    """Path of `relative` below the first root of `kind` that has it, or None."""
    for root in _roots(kind):
        candidate = root / relative
        if candidate.is_file():
            return candidate
    return None


def require(kind: str, relative: str) -> Path:
    """Path of a file that comes with the advisor; EnvironmentMissingError when no root of `kind` has it."""
    path = find(kind, relative)
    if path is None:
        raise EnvironmentMissingError(
            f"{kind}/{relative} is missing from this installation",
            f"reinstall the package, or set ADVISOR_{kind.upper()}",
        )
    return path


def listing(kind: str, folder: str, suffix: str) -> dict[str, Path]:
    """Files of a folder as {stem: path} over all roots, sorted; a more specific root wins."""
    found: dict[str, Path] = {}
    for root in _roots(kind):
        directory = root / folder
        if directory.is_dir():
            for path in directory.glob(f"*{suffix}"):
                found.setdefault(path.name.removesuffix(suffix), path)
    return dict(sorted(found.items()))
