"""Reports of steps read many lines at once: the same figures as line by line, at the speed of a search."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.check.readback.observed import Place
from advisor.check.readback.steps import COUNTS, StepTimes
from advisor.check.readback.wording import Wordings
from advisor.logs.blocks import Block
from advisor.logs.gate import shape_of
from advisor.logs.scan import Marks
from advisor.logs.sources import Source
from advisor.logs.text import clean, is_usual, last_states, without_escapes

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)"
_MS, _RATE = "elapsed time per iteration (ms):", "throughput per GPU (TFLOP/s/GPU):"
_COUNTED = {name: (label, re.compile(rf"{re.escape(label)} *([0-9]{{1,12}})")) for name, label in COUNTS.items()}


@dataclass(frozen=True, slots=True)
class _Form:
    """A sentence of `presets/check/readback.yaml` as rows: `regex` finds iteration, time and rate, as far as it has.

    `label` is in every row. `once` are texts that a row has no more than once, `shape` is what its shape looks like.
    """

    label: str
    once: tuple[bytes, ...]
    shape: re.Pattern[bytes]
    regex: re.Pattern[str]

    def fits(self, line: bytes) -> bool:
        """Whether all lines of a shape are rows; escape sequences may stand around what is read, not in it."""
        bare = without_escapes(line.decode("latin-1")).encode("latin-1")
        once = all(bare.count(one) == line.count(one) <= 1 for one in self.once)
        return once and self.shape.search(line) is not None


def _form(label: str, once: Sequence[str], shape: str, regex: str) -> _Form:
    texts = tuple(shape_of(one.encode()) for one in (label, *once))
    return _Form(label, texts, re.compile(shape.encode()), re.compile(regex, re.MULTILINE))


_FORMS = {
    "step": _form(
        _MS, ("iteration/", _RATE, *COUNTS.values()),
        r"iteration/\|.*elapsedtimeperiteration\(ms\):\.\|"
        r"(?:throughputperGPU\(TFLOP/s/GPU\):\.\||(?!.*throughputperGPU\(TFLOP/s/GPU\):))",
        rf"iteration +([0-9]{{1,12}}) */ *[0-9]{{1,12}} \|(?: [^|\n]*\|){{0,8}}? {re.escape(_MS)} {_NUMBER} \|"
        rf"(?: {re.escape(_RATE)} {_NUMBER} \|)?",
    ),
    "nemo-step": _form(
        "train_step_timing in s", ("global_step",), r"global_step:\|.*train_step_timingins:\.?(?:\||$)",
        rf"global_step: ([0-9]{{1,12}}) \|(?: [^|\n]*\|){{0,16}}? train_step_timing in s: {_NUMBER}(?: \||$)()",
    ),
    "short-step": _form(
        "Step Time :", (), r"StepTime:\.sGPUutilization:\.MODEL_TFLOP/s/GPU",
        rf"Step Time : {_NUMBER}s GPU utilization: {_NUMBER} *MODEL_TFLOP/s/GPU",
    ),
}  # fmt: skip
_ORDERED = {"step", "step-seconds", "nemo-step", "short-step", "arguments", "summary", "yaml"}


class StepRows:
    """Lines that report a step and nothing else, into `times` (whole lines) and `short` (Bridge's short ones)."""

    def __init__(self, known: Wordings, times: StepTimes, short: StepTimes) -> None:
        self._known, self._times, self._short = known, times, short
        self.met: set[str] = set()

    def fit(self, shape: bytes, marks: Marks) -> bool:
        """Whether every text that is read is in lines of this shape once and where it is expected."""
        form = _FORMS.get(self._known.id_of(marks[0])) if len(marks) == 1 else None
        if form is None or not is_usual(shape):
            return False
        return form.fits(last_states(shape.decode("latin-1") + "\n").rstrip("\n").encode("latin-1"))

    def beside(self, marks: Marks) -> bool:
        """Whether the order of rows and of such lines says nothing: a step elsewhere and what begins a job do."""
        return all(self._known.id_of(mark) not in _ORDERED for mark in marks)

    def take(self, source: Source, block: Block, lines: Sequence[int]) -> bool:
        """Read lines, all or none."""
        raw = _joined(block, lines)
        if b"\t" in raw or b"\0" in raw:
            return False
        text = last_states(raw.decode("utf-8", errors="replace"))
        idle = "short-step" if self._times.enough and "short-step" in self.met else ""
        labels = {name: form.label for name, form in _FORMS.items() if form.label in text}
        found = {name: _FORMS[name].regex.findall(text) for name in labels if name != idle}
        if sum(map(len, found.values())) + (text.count(labels[idle]) if idle in labels else 0) != len(lines):
            return False
        if "step" in labels and "nemo-step" in labels:
            return False
        if text.count(_RATE) != sum(bool(rate) for *_, rate in found.get("step", ())):
            return False
        for name, rows in found.items():
            if rows:
                self.met.add(name)
                self._read(name, rows, _last(source, block, lines, labels[name]))
        steps = len(found.get("step", ()))
        self._times.count({name: _sum(text, steps, label, regex) for name, (label, regex) in _COUNTED.items()})
        return True

    def _read(self, name: str, rows: Sequence[tuple[str, ...]], place: Place) -> None:
        if name == "short-step":
            self._short.short(rows, place)
            return
        iterations, times, rates = zip(*rows, strict=True)
        self._times.extend(
            list(map(int, iterations)), np.array(list(map(float, times))) / self._known.by_id(name).per_s,
            [float(rate or math.nan) for rate in rates], place,
        )  # fmt: skip


def _sum(text: str, rows: int, label: str, regex: re.Pattern[str]) -> int:
    """Sum of what stands after a label; nearly always that is 0 in every row."""
    return 0 if text.count(f"{label}   0 |") == rows else sum(map(int, regex.findall(text)))


def _joined(block: Block, lines: Sequence[int]) -> bytes:
    """The lines with nothing between them."""
    first, last = lines[0], lines[-1]
    if last - first + 1 == len(lines):
        start = int(block.ends[first - 1]) + 1 if first else 0
        return block.data[start : int(block.ends[last]) + 1]
    return b"".join([block.line(index) + b"\n" for index in lines])


def _last(source: Source, block: Block, lines: Sequence[int], label: str) -> Place:
    """The last of the lines that holds a label."""
    index = next(index for index in reversed(lines) if label.encode() in block.line(index))
    return Place(source.name, block.number_of(index), clean(block.line(index)))
