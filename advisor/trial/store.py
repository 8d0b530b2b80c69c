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
        """All records in the order they were written; a line that was cut off when its writer died is left out."""
        try:
            lines = (self.folder / LINES).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    found.append(record)
        return found

    def finished(self) -> dict[str, dict[str, Any]]:
        """The newest record per key."""
        return {str(record["key"]): record for record in self.records() if "key" in record}

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; it is on the disk when this returns, whole or not at all."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        handle = os.open(self.folder / LINES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)

    def attempt(self, name: str) -> Path:
        """A new folder for one more attempt at a trial; earlier ones are kept."""
        for number in _counting(self.folder / name):
            folder = self.folder / name / str(number)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
        raise AssertionError("counting ends nowhere")


def _counting(folder: Path) -> Iterator[int]:
    taken = [int(path.name) for path in folder.glob("*") if re.fullmatch(r"\d+", path.name)]
    number = max(taken, default=0)
    while True:
        number += 1
        yield number
