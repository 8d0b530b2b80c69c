"""Writes the sbatch script of one trial: it ends when nobody follows it, and starts afresh when it is requeued."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from advisor.configure.job import preset
from advisor.configure.launch import Launch
from advisor.configure.mounts import FACTS, Mount
from advisor.configure.secrets import refuse_secrets
from advisor.errors import InputError
from advisor.export.slurm.render import directives, fill, srun_flags

BEAT_S = 5


def trial_text(job: Launch, folder: Path, lost_s: int) -> str:
    """The script of a trial whose files lie in `folder`; it ends itself `lost_s` seconds after its last sign of life.

    Raises InputError for a folder that Slurm would read as a pattern, that no mount of the container holds, and for
    anything that looks like a secret.
    """
    where = str(folder)
    if "%" in where or "\\" in where or not where.isprintable():
        raise InputError(f"--out {where!r}: Slurm reads % and \\ in a log path as patterns", "name another folder")
    text = fill(
        "trial.sbatch.j2",
        job=job,
        directives=directives(job, output=f"{where}/stdout", error=f"{where}/stderr"),
        srun_flags=srun_flags(job),
        facts=preset(FACTS),
        folder=where,
        inside=inside_path(where, job.mounts) if job.container else where,
        beat_s=min(BEAT_S, lost_s),
        lost_s=lost_s,
    )
    refuse_secrets(text, "the script")
    return text


def inside_path(path: str, mounts: tuple[Mount, ...]) -> str:
    """A path of the host as the container sees it; InputError when no mount holds it."""
    found = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount.outside)]
    if not found:
        raise InputError(f"--out {path} is under no container mount", "--mounts, or an --out under a mount")
    mount = max(found, key=lambda one: len(one.outside))
    return str(PurePosixPath(mount.inside) / PurePosixPath(path).relative_to(mount.outside))
