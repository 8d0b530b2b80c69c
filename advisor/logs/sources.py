"""Finds the logs that a command names: files, gz, folders, stdin; tells text from flight-recorder dumps."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from advisor.documents import require_file
from advisor.errors import InputError

Kind = Literal["text", "pickle", "json"]

STDIN = "-"
LOG_SUFFIXES = {".log", ".out", ".err", ".txt", ".stdout", ".stderr", ".gz", ".json", ".pkl", ".pickle", ""}
NUMBERED = tuple("0123456789")
MOST_FILES = 20_000
_SNIFFED_BYTES = 4096
_GZIP_MAGIC = b"\x1f\x8b"
_RECORDER_KEYS = (b'"entries"', b'"nccl_version"', b'"pg_config"')


@dataclass(frozen=True, slots=True)
class Source:
    """One log: `name` as a reader would write it, `path` (None = stdin), what it holds and its size on disk."""

    name: str
    path: Path | None
    kind: Kind = "text"

    def open(self) -> IO[bytes]:
        """A stream of bytes, unpacked where the file is gz. Raises OSError."""
        if self.path is None:
            return cast(IO[bytes], sys.stdin.buffer)
        stream = self.path.open("rb")
        if stream.peek(2)[:2] == _GZIP_MAGIC:
            return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        return stream


def find_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """The logs behind `names`, in the order given; folders are searched through all levels, sorted by name.

    Raises InputError for a path that does not exist or cannot be read, and for a folder without logs.
    """
    found: list[Source] = []
    for name in names:
        if name == STDIN:
            found.append(Source("stdin", None))
            continue
        path = Path(name)
        try:
            if path.is_dir():
                found += _in_folder(path)
            else:
                found.append(Source(name, path, _kind(path)))
        except (OSError, EOFError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or str(problem)
            raise InputError(f"{name}: {why}", "give log files, folders that hold them, or - for stdin") from problem
    unique = {source.path.resolve() if source.path else None: source for source in reversed(found)}
    return tuple(source for source in found if unique[source.path.resolve() if source.path else None] is source)


def _in_folder(folder: Path) -> list[Source]:
    found: list[Source] = []
    for directory, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for path in _logs(Path(directory), sorted(files)):
            found.append(Source(str(path), path, _kind(path)))
            if len(found) > MOST_FILES:
                raise InputError(f"{folder}: more than {MOST_FILES} files", "name the folder of one job")
    if not found:
        raise InputError(f"{folder}: no logs in this folder", f"logs end in {', '.join(sorted(LOG_SUFFIXES - {''}))}")
    return found


def _logs(folder: Path, names: Iterable[str]) -> Iterable[Path]:
    for name in names:
        path = folder / name
        suffix = path.suffix.lower()
        if name.startswith(".") or not path.is_file() or path.stat().st_size == 0:
            continue
        if suffix in LOG_SUFFIXES or suffix[1:].startswith(NUMBERED):
            kind = _kind(path)
            if suffix == ".json" and kind != "json":
                continue
            if kind != "text" or not _is_binary(path):
                yield path


def _head(path: Path) -> bytes:
    with Source(str(path), path).open() as stream:
        return stream.read(_SNIFFED_BYTES)


def _kind(path: Path) -> Kind:
    """Pickles begin with their protocol, JSON dumps of the flight recorder name their keys early; a pipe is text."""
    if not path.is_file():
        require_file(str(path), path.stat().st_mode, "log")
        return "text"
    head = _head(path)
    if head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        return "pickle"
    start = head.lstrip()[:1]
    if start == b"{" and any(key in head for key in _RECORDER_KEYS):
        return "json"
    return "text"


def _is_binary(path: Path) -> bool:
    """Whether a file without a telling name is no text (many NUL bytes)."""
    head = _head(path)
    return head.count(b"\0") * 10 > len(head)
