"""The records of trials: one JSON line each in `trials.jsonl`, one folder per attempt with everything it wrote."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import InputError

LINES = "trials.jsonl"


@dataclass(frozen=True, slots=True)
class Store:
    """Trials below `folder`, which is made where it is missing. Several processes may write to one store."""

    folder: Path

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(f"--out {self.folder}: {problem.strerror}", "name a folder that can be written") from None

    def records(self) -> list[dict[str, Any]]:
        """All records in the order they were written; a line that was cut off when its writer died is left out.

        Raises InputError where the file cannot be read.
        """
        path = self.folder / LINES
        with kept_in(path):
            lines = path.read_bytes().splitlines() if path.exists() else []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    found.append(record)
        return found

    def newest(self) -> dict[str, dict[str, Any]]:
        """The newest record per key."""
        return {str(record["key"]): record for record in self.records() if "key" in record}

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; it is on the disk when this returns, whole or not at all. Raises InputError."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with kept_in(self.folder / LINES):
            handle = os.open(self.folder / LINES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                append_line(handle, line)
            finally:
                os.close(handle)

    def attempt(self, name: str) -> Path:
        """A new folder for one more attempt at a trial; earlier ones are kept. Raises InputError."""
        for number in _counting(self.folder / name):
            folder = self.folder / name / str(number)
            with kept_in(folder), contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
        raise AssertionError("counting ends nowhere")


@contextlib.contextmanager
def kept_in(path: Path) -> Iterator[None]:
    """What cannot be kept in `path`, for want of space or permission, is an InputError that says so."""
    try:
        yield
    except OSError as problem:
        raise InputError(
            f"{path}: {problem.strerror or problem}", "name a folder with room that can be written"
        ) from None


def append_line(handle: int, line: bytes) -> None:
    """Write a line to the end of a locked file, and nothing where not all of it can be written. Raises OSError.

    What a writer that died has left of a line is cut off.
    """
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        size = os.pread(handle, size, 0).rfind(b"\n") + 1
        os.ftruncate(handle, size)
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def _counting(folder: Path) -> Iterator[int]:
    taken = [int(path.name) for path in folder.glob("*") if re.fullmatch(r"\d+", path.name)]
    number = max(taken, default=0)
    while True:
        number += 1
        yield number
