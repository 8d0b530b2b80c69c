"""Container mounts, and which paths of a job the other nodes can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from advisor.configure.job import preset
from advisor.errors import InputError

FACTS = "launch/slurm.yaml"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host that a container sees as `inside`; `flags` as pyxis takes them ("ro")."""

    outside: str
    inside: str
    flags: str = ""

    @property
    def text(self) -> str:
        """As --container-mounts takes it."""
        return ":".join(part for part in (self.outside, self.inside, self.flags) if part)


def parse_mounts(values: Sequence[str]) -> tuple[Mount, ...]:
    """Mounts from SRC[:DST[:FLAGS]] texts, several of them separated by commas.

    Raises InputError for relative paths and for colons and commas within a path, which pyxis cannot quote.
    """
    return tuple(_mount(text) for value in values for text in value.split(",") if text)


def _mount(text: str) -> Mount:
    outside, *rest = text.split(":")
    inside = rest[0] if rest else outside
    flags = rest[1] if len(rest) > 1 else ""
    if len(rest) > 2 or not outside.startswith("/") or not inside.startswith("/"):
        raise InputError(
            f"mount {text!r} is not SRC[:DST[:FLAGS]] with absolute paths", "for example --mounts /lustre:/lustre"
        )
    return Mount(outside.rstrip("/") or "/", inside.rstrip("/") or "/", flags)


def _below(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The innermost mount that holds a path of the container, or None."""
    found = [mount for mount in mounts if _below(path, mount.inside)]
    return max(found, key=lambda mount: len(mount.inside), default=None)


def outside_path(path: str, mounts: Sequence[Mount]) -> str:
    """A path of the container as the host knows it; unchanged without a mount that holds it."""
    found = mount_of(path, mounts)
    return path if found is None else str(PurePosixPath(found.outside) / PurePosixPath(path).relative_to(found.inside))


def require_shared(name: str, path: str, mounts: Sequence[Mount], *, container: bool) -> str:
    """The path, if all nodes see it; InputError for a relative path, a node-local folder, or one under no mount."""
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise InputError(f"{name}={path!r} is not an absolute path", f"{name} on the shared file system")
    if container:
        found = mount_of(path, mounts)
        if found is None:
            known = ", ".join(mount.inside for mount in mounts) or "none"
            raise InputError(
                f"{name}={path} is under no container mount (mounts: {known}): it would be lost with the container",
                f"--mounts {PurePosixPath(path).parent}, or a {name} under a mount",
            )
        if "ro" in found.flags.split("+"):
            raise InputError(f"{name}={path} is under the read-only mount {found.text}", "a mount that can be written")
        path_outside = outside_path(path, mounts)
    else:
        path_outside = path
    local = next((folder for folder in preset(FACTS)["node_local"] if _below(path_outside, folder)), None)
    if local is not None:
        raise InputError(f"{name}={path} lies in {local}, which every node has for itself", "a shared file system")
    return path
