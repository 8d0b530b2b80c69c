"""The environment of the job as a file that a launch script sources."""

from __future__ import annotations

from advisor.export.subject import Subject
from advisor.export.words import fill


def environment_text(subject: Subject) -> dict[str, str]:
    """One file: `export NAME=value` lines, each with its reason. Secrets have no place in it."""
    return {"environment.sh": fill("environment.sh.j2", subject=subject)}
