"""Writes files whole or not at all, so that a reader never meets half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends, and leaves no trace when the block fails.

    The file gets the permissions that an ordinary new file would have. Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 in place of `path`. Raises OSError."""
    with replaced(path) as stream:
        stream.write(text.encode("utf-8"))
