"""A judgement on the way to a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.diagnose.events import Event
from advisor.diagnose.patterns import Confidence


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause with the ranks that it points at, the sentence that says why, and the events it rests on.

    `node` is a node that the lines name; `blame_writer` is False where whoever wrote the lines only saw the failure.
    """

    cause: str
    confidence: Confidence
    ranks: tuple[int, ...] = ()
    said: str = ""
    events: tuple[Event, ...] = field(default=())
    node: str | None = None
    blame_writer: bool = True
    exit_code: int | None = None
