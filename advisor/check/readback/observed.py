"""What a log said: settings with the line that says so, steps, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from advisor.check.reading import Reading
from advisor.logs.text import shown
from advisor.rules.lint.setup import Framework

How = Literal["dump", "summary", "record", "message", "default"]
"""dump = arguments or YAML, summary = Bridge's list of what differs from Megatron-Core, record = a configuration object
as text, message = a sentence of the framework, default = Megatron-Core's, since the summary does not list it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a log: `text` is the line, cut to a readable length."""

    file: str
    line: int
    text: str

    @property
    def words(self) -> str:
        """file:line: text."""
        return f"{self.file}:{self.line}: {shown(self.text.strip())}"


@dataclass(frozen=True, slots=True)
class Seen(Place):
    """A setting as it took effect; `off` says that the framework itself dropped what was asked, `why` its reason."""

    value: Any = None
    how: How = "message"
    off: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of the steady steps: median, 10th and 90th percentile of `reports` lines.

    `left_out` reports are warm-up, as `rule` states. `tflops_per_gpu` is the median of the same lines; `loss` the last.
    """

    median_s: float
    low_s: float
    high_s: float
    reports: int
    left_out: int
    rule: str
    first_iteration: int
    last_iteration: int
    tflops_per_gpu: float | None
    loss: float | None
    nan_iterations: int
    skipped_iterations: int
    place: Place


@dataclass(frozen=True, slots=True)
class Peak(Place):
    """The largest peak that a rank reported, in bytes; `ranks` is how many ranks reported one."""

    allocated_bytes: float = 0.0
    reserved_bytes: float | None = None
    rank: int | None = None
    ranks: int = 0


@dataclass(frozen=True, slots=True)
class Remark(Place):
    """Something worth knowing beside settings: a straggler, a timeout, a fallback."""

    kind: str = "note"


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a log said. `settings` are under the keys of a Bridge configuration (`model.x`, `ddp.y`, `train.z`).

    `version` is that of Bridge (0.3, 0.6) or of megatron-core (0.16, 0.19) as far as the log tells, at `version_place`.
    `lines` counts what was read, `problems` the logs that broke off.
    """

    framework: Framework | None
    version: str | None
    settings: Mapping[str, Seen]
    gpus: Seen | None
    steps: Steps | None
    peak: Peak | None
    remarks: tuple[Remark, ...]
    files: tuple[str, ...]
    lines: int
    problems: tuple[str, ...] = field(default=())
    version_place: Place | None = None

    def reading(self) -> Reading:
        """The settings in the form that readers of configuration files have."""
        name = self.files[0] if self.files else ""
        found = Reading(name, "megatron-args" if self.framework == "megatron-lm" else "bridge-config", self.framework)
        for key, seen in self.settings.items():
            found.put(key, seen.value, seen.line)
        if self.gpus is not None:
            found.gpus = int(self.gpus.value)
        return found
