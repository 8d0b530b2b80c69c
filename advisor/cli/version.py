"""What `advisor --version` says."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from advisor import __version__, data

FOLDERS = (("", ".yaml"), ("fitted", ".yaml"), ("kernels", ".json"))


def version_text() -> str:
    """Package, Python, and the profiles: a digest that changes with any of them, and the GPUs they cover."""
    found = {f"{folder}/{name}": path for folder, suffix in FOLDERS for name, path in _listing(folder, suffix)}
    digest = hashlib.sha256()
    for name, path in sorted(found.items()):
        digest.update(name.encode() + path.read_bytes())
    gpus = sorted({Path(name).name for name in found if name.startswith(("fitted/", "kernels/"))})
    lines = [f"advisor {__version__}", f"python {platform.python_version()}"]
    return "\n".join([*lines, f"profiles {digest.hexdigest()[:12]} ({', '.join(gpus)})"])


def _listing(folder: str, suffix: str) -> list[tuple[str, Path]]:
    return list(data.listing("profiles", folder, suffix).items())
