"""Follows the progress files of a group: the phase and the step every rank has reached, and when it last said so."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAME = re.compile(r"progress-(\d+)\.jsonl")


@dataclass(slots=True)
class Progress:
    """What the ranks of `folder` have told so far; `newest_s` is this process's clock at the last sign of life."""

    folder: Path
    newest_s: float = field(default_factory=time.monotonic)
    reached: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    loss: float | None = None
    step_s: float | None = None
    steady: dict[int, list[float]] = field(default_factory=dict)
    _read: dict[int, int] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps that every rank heard of has finished (0 while one has finished none)."""
        return min((self.done.get(rank, 0) for rank in self.reached), default=0)

    @property
    def laggard(self) -> int | None:
        """The rank that has come least far; None where all are level."""
        if not self.reached:
            return None
        least = min(self.reached, key=lambda rank: (self.done.get(rank, 0), rank))
        counts = {self.done.get(rank, 0) for rank in self.reached}
        return least if len(counts) > 1 else None

    @property
    def steady_s(self) -> list[float]:
        """Seconds of the steady steps that all ranks heard of have finished: of the slowest rank in each."""
        return [max(row) for row in zip(*(self.steady.get(rank, []) for rank in self.reached), strict=False)]

    def read(self) -> bool:
        """Take in the lines that are new; whether there were any."""
        new = False
        for rank, line in self._lines():
            new = True
            self.reached[rank] = line
            if line.get("at") == "step":
                self.done[rank] = int(line["number"]) + 1
                self.step_s = line["step_s"]
                if line["phase"] == "steady":
                    self.steady.setdefault(rank, []).append(line["step_s"])
                self.loss = line["loss"] if line["loss"] is not None else self.loss
        if new:
            self.newest_s = time.monotonic()
        return new

    def _lines(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for path in sorted(self.folder.glob("progress-*.jsonl")):
            named = _NAME.fullmatch(path.name)
            if named is None:
                continue
            rank = int(named[1])
            with path.open("rb") as file:
                file.seek(self._read.get(rank, 0))
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read[rank] = self._read.get(rank, 0) + len(whole) + 1
                yield from ((rank, line) for line in lines_of(whole))


def lines_of(text: bytes) -> list[dict[str, Any]]:
    """What a rank has told; what a full disk made of a line is left out."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]
