"""What `advisor --version` says."""

from __future__ import annotations

import platform

from advisor import __version__, data


def version_text() -> str:
    """Package, Python, and the GPUs that profiles exist for."""
    lines = [f"advisor {__version__}", f"python {platform.python_version()}"]
    for folder, suffix in (("fitted", ".yaml"), ("kernels", ".yaml")):
        names = data.listing("profiles", folder, suffix)
        if names:
            lines.append(f"profiles/{folder}: {', '.join(names)}")
    return "\n".join(lines)
