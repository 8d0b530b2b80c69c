"""Hands a script to Slurm and reads the job id."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError, EnvironmentMissingError

# What sbatch says, and what to do about it.
ANSWERS = (
    ("invalid partition", "sinfo --summarize lists the partitions"),
    ("invalid account", "sacctmgr -nP show assoc where user=$USER format=account,partition lists what you may use"),
    ("invalid generic resource", "this cluster has no GPUs as a resource: --no-gres"),
    ("cannot find gpu specification", "this partition wants --gpus-per-node"),
    ("node configuration is not available", "fewer nodes, or a partition with larger ones"),
    ("more processors requested than permitted", "fewer tasks per node, or a partition with larger nodes"),
    ("unrecognized option", "an option that this release of Slurm does not know"),
)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job in the queue; `cluster` is empty on a single cluster."""

    job_id: int
    cluster: str
    script: Path


class SubmissionRefusedError(AdvisorError):
    """Slurm did not take the job (exit 1)."""

    exit_code = 1


def submit(script: Path, timeout_s: float = 60.0) -> Submitted:
    """Submit `script` with sbatch --parsable. Raises EnvironmentMissingError without sbatch, SubmissionRefusedError."""
    program = shutil.which("sbatch")
    if program is None:
        raise EnvironmentMissingError("sbatch is not on this host", "submit from a login node of the cluster")
    try:
        ran = subprocess.run(  # noqa: S603 (a program found by name and a file that we wrote)
            [program, "--parsable", str(script)], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as problem:
        raise SubmissionRefusedError(f"sbatch did not answer within {timeout_s:.0f} s", "scontrol ping") from problem
    found = re.fullmatch(r"(\d+)(?:;(\S+))?", ran.stdout.strip())
    if ran.returncode or not found:
        said = " ".join((ran.stderr or ran.stdout).split()) or f"exit code {ran.returncode}"
        hint = next((answer for words, answer in ANSWERS if words in said.lower()), "")
        raise SubmissionRefusedError(f"Slurm refused {script}: {said}", hint or None)
    return Submitted(int(found[1]), found[2] or "", script)
