"""Times in log lines, in the forms that training jobs, torch, Slurm and kernels print; as seconds on one axis.

Some forms have no year (glog, syslog), so years are left out: the axis is the time within a year, which a job that runs
over New Year crosses once. A time of day alone gets the last date of the same log. Relative kernel times
(`[12345.678]`) are on no common axis and count as no time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

LEAP_YEAR = 2000
HEAD_CHARACTERS = 160
_MONTHS = {name: index for index, name in enumerate(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1)}  # fmt: skip

_CLOCK = r"(?P<hour>[0-2]\d):(?P<minute>[0-5]\d):(?P<second>[0-6]\d)(?:[.,](?P<part>\d{1,9}))?"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"(?<!\d)20\d\d[-/](?P<month>[01]\d)[-/](?P<day>[0-3]\d)[T _]{_CLOCK}",
        rf"(?<![A-Za-z0-9])[IWEF](?P<month>0?[1-9]|1[0-2])(?P<day>[0-3]\d) {_CLOCK}",
        rf"(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>[0-3]?\d) {_CLOCK}",
        rf"(?<!\d)(?P<month>[01]\d)/(?P<day>[0-3]\d)/20\d\d {_CLOCK}",
        rf"^\W{{0,2}}{_CLOCK}(?![\d:])",
    )
)
_EPOCH = datetime(LEAP_YEAR, 1, 1)


class Clock:
    """Reads the times of one log, line after line; remembers the date for lines that print only part of it."""

    def __init__(self) -> None:
        self._last: datetime | None = None

    def read(self, text: str) -> float | None:
        """Seconds on an axis that all logs of a job share, or None where the line has no time."""
        for form in _FORMS:
            match = form.search(text[:HEAD_CHARACTERS])
            if match is not None:
                moment = self._moment(match.groupdict())
                if moment is not None:
                    self._last = moment
                    return (moment - _EPOCH).total_seconds()
        return None

    def _moment(self, parts: dict[str, str | None]) -> datetime | None:
        last = self._last or _EPOCH
        name = parts.get("name")
        month = _MONTHS[name] if name else int(parts.get("month") or last.month)
        fraction = float(f"0.{parts['part']}") if parts.get("part") else 0.0
        try:
            moment = datetime(
                LEAP_YEAR, month, int(parts.get("day") or last.day),
                int(parts["hour"] or 0), int(parts["minute"] or 0), min(int(parts["second"] or 0), 59),
            )  # fmt: skip
        except ValueError:
            return None
        if parts.get("day") is None and self._last is not None and moment < last - timedelta(hours=12):
            moment += timedelta(days=1)
        return moment + timedelta(seconds=fraction)
