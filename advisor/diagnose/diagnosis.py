"""The answer: cause, who failed first, evidence, cascade, what not to blame, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advisor.diagnose.events import Event
from advisor.diagnose.patterns import UNDETERMINED, Confidence
from advisor.logs.text import shown

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line: file, number from 1, text."""

    file: str
    line: int
    text: str

    @classmethod
    def of(cls, event: Event) -> Evidence:
        """The line of an event."""
        return cls(event.source, event.number, shown(event.text.strip()))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"file": self.file, "line": self.line, "text": self.text}


@dataclass(frozen=True, slots=True)
class Follower:
    """A kind of line that follows from the first failure: its first line, and how many there are."""

    kind: str
    count: int
    first: Evidence

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind, "count": self.count, **self.first.to_dict()}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One answer. `exit_code` is 128 + signal; None = the log does not say. `reason` says why in one sentence.

    `cascade` is what follows from the first failure; `advice` is added by whoever knows the plan of the job.
    """

    cause_id: str
    title: str
    reason: str
    confidence: Confidence
    first_failing_rank: int | None
    first_failing_node: str | None
    exit_code: int | None
    evidence: tuple[Evidence, ...]
    cascade: tuple[Follower, ...]
    not_to_blame: tuple[str, ...]
    fix: str
    next_step: str
    last_iteration: int | None
    world_size: int | None
    sources: tuple[dict[str, Any], ...]
    advice: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is a cause."""
        return self.cause_id != UNDETERMINED

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "cause_id": self.cause_id,
            "title": self.title,
            "reason": self.reason,
            "confidence": self.confidence,
            "first_failing_rank": self.first_failing_rank,
            "first_failing_node": self.first_failing_node,
            "exit_code": self.exit_code,
            "evidence": [one.to_dict() for one in self.evidence],
            "cascade": [one.to_dict() for one in self.cascade],
            "not_to_blame": list(self.not_to_blame),
            "fix": self.fix,
            "next_step": self.next_step,
            "advice": list(self.advice),
            "last_iteration": self.last_iteration,
            "world_size": self.world_size,
            "sources": list(self.sources),
        }
