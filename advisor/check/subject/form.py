"""A configuration that was read: the job it describes, what of it takes effect, and where everything is stated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from advisor.check.reading import Reading
from advisor.check.run import Report
from advisor.configure.environment import Variable
from advisor.configure.resolved import Field
from advisor.rules.lint import Setup
from advisor.search.request import Request
from advisor.search.single import Choice
from advisor.search.sources import Setting
from advisor.spec.layout import Knobs, Layout

Settle = Callable[[Layout, Knobs], Knobs]


@dataclass(frozen=True, slots=True)
class Subject:
    """One job somebody runs today.

    `asked` is the layout with the knobs that the files ask for; `settle` turns knobs into those that take effect on a
    layout; `fields` says for every overlap setting what was asked, what holds and why. `sources` holds every size and
    knob with its origin; `report` every finding of `advisor check`; `environment` the variables that the job wants
    which the files do not set so.
    """

    reading: Reading
    setup: Setup
    report: Report
    request: Request
    asked: Choice
    settle: Settle
    fields: tuple[Field, ...]
    sources: MappingProxyType[str, Setting]
    environment: tuple[Variable, ...]

    @property
    def effective(self) -> Knobs:
        """The knobs that take effect today."""
        return self.settle(self.asked.layout, self.asked.knobs)

    @property
    def lost(self) -> tuple[Field, ...]:
        """What is asked for and does not hold."""
        return tuple(one for one in self.fields if one.outcome in ("silent", "stop"))

    @property
    def negative(self) -> bool:
        """Whether something stops the job or is silently not what was asked for."""
        return bool(self.lost) or self.report.verdict in ("stop", "silent")


def place(file: str, line: int) -> str:
    """Where a setting stands, as an origin."""
    name = Path(file).name
    return f"{name}:{line}" if line else name
