"""Optuna's journal in a file, with lines that are whole: a full disk, or a kill, costs what was being written only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from advisor.trial.store import append_line

OPERATION = b'{"op_code"'


class WholeJournal(JournalFileBackend):
    """The journal of a study; Optuna's own would read no further than a line that was cut off.

    Raises ValueError for a file that is something else, which a journal would overwrite.
    """

    def __init__(self, path: Path) -> None:
        if path.is_file():
            with path.open("rb") as file:
                first = file.read(len(OPERATION))
            if not OPERATION.startswith(first):
                raise ValueError("the file is no journal of a study")
        self.path, self.lock = path, JournalFileSymlinkLock(str(path))
        super().__init__(str(path), self.lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add operations, all or none. Raises OSError."""
        lines = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in logs).encode()
        self.lock.acquire()
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                append_line(handle, lines)
            finally:
                os.close(handle)
        finally:
            self.lock.release()
