"""From paths to traces: which files of a folder are traces, what form they have, which rank they speak for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.errors import InputError
from advisor.trace.chunks import NoTraceError
from advisor.trace.events import Trace
from advisor.trace.kineto import read_kineto
from advisor.trace.nsys import MAGIC, read_nsys

SUFFIXES = (".json", ".json.gz", ".trace", ".trace.gz", ".sqlite", ".db")
MOST_FILES = 4096
FORMS = "give Kineto or Chrome JSON (plain or gzip), or nsys export --type sqlite"
_RANK = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")


def trace_files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Files in the order given, those of a folder by name (numbers by size); True where the file itself was named.

    Raises:
        InputError: a path does not exist, or a folder holds no file that may be a trace.
    """
    found: dict[Path, bool] = {}
    for path in paths:
        try:
            folder, exists = path.is_dir(), path.exists()
        except (OSError, ValueError) as problem:
            raise InputError(f"{path}: {getattr(problem, 'strerror', None) or problem}") from problem
        if folder:
            inside = sorted(_inside(path), key=_natural)
            if not inside:
                raise InputError(f"{path}: no traces in this folder ({' '.join(SUFFIXES)})", FORMS)
            if len(inside) > MOST_FILES:
                raise InputError(f"{path}: {len(inside)} files are more than the {MOST_FILES} that one call takes")
            for file in inside:
                found.setdefault(file, False)
        elif exists:
            found[path] = True
        else:
            raise InputError(f"{path}: no such file or folder")
    return list(found.items())


def _inside(folder: Path) -> Iterator[Path]:
    try:
        yield from (path for path in folder.rglob("*") if path.name.lower().endswith(SUFFIXES) and path.is_file())
    except OSError as problem:
        raise InputError(f"{folder}: {problem.strerror}") from problem


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() and len(word) < 19 else (0, word) for word in _DIGITS.split(str(path))]


def read(path: Path) -> list[Trace]:
    """The traces of a file: one of a Kineto file, one per process and device of an nsys export.

    Raises:
        InputError: the file is empty, cannot be read, or is neither.
    """
    try:
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from problem
    if not first:
        raise NoTraceError(f"{path}: the file is empty", FORMS)
    if first == MAGIC:
        return read_nsys(path)
    try:
        trace = read_kineto(path)
    except NoTraceError as problem:
        raise NoTraceError(f"{path}: {problem.message}", FORMS) from problem
    except InputError as problem:
        raise InputError(f"{path}: {problem.message}", problem.hint) from problem
    if not trace.events:
        raise NoTraceError(f"{path}: no event in it", FORMS)
    return [trace]


def rank_in_name(path: Path) -> int | None:
    """The rank that a file is named after (rank-3, rank_3, rank3), in its own name or its folder's."""
    for name in (path.name, path.parent.name):
        match = _RANK.search(name)
        if match:
            return int(match[1])
    return None
