"""Streams logs and gathers what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from advisor.check.readback.blocks import BlockReader, Launched, Scores, Summary, Writer, Yaml
from advisor.check.readback.observed import Observed, Peak, Place, Remark, Seen
from advisor.check.readback.rows import StepRows
from advisor.check.readback.starts import Starts, Told
from advisor.check.readback.steps import StepTimes
from advisor.check.readback.values import fields_of, value_of
from advisor.check.readback.wording import Wording, wordings
from advisor.check.readers.flags import key_of
from advisor.errors import InputError
from advisor.logs.blocks import Size
from advisor.logs.scan import Hit, Scanner
from advisor.logs.sources import Source, find_sources
from advisor.logs.text import shown
from advisor.rules.lint.setup import Framework
from advisor.spec.load.megatron.arguments import by_dest

MOST_REMARKS = 40
_BINARY_SHARE = 0.05
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\x1b")
_BLOCKS: Mapping[str, type[BlockReader]] = {
    "summary": Summary, "yaml": Yaml, "launcher": Launched, "scores": Scores,
}  # fmt: skip
# What logging puts before a message; blocks of several lines are read without it.
_LEVEL = re.compile(r"(?:- )?\[?(?:DEBUG|INFO|WARNING|WARN|ERROR)\]?(?: - | -$|:[\w.]+:|: ?| )")
_GROUP = re.compile(r"\{(\w+)\}")
_HINT = "give the stdout of a training job: Megatron-Bridge, Megatron-LM, ft_launcher or Slurm"


def read_log(names: Sequence[str], *, fast: bool = True) -> Observed:
    """What the logs behind `names` say: files (.gz too), folders, "-" for stdin.

    Logs are read once, as streams; of a setting that is said several times the last word counts. `fast` reads reports
    of steps many at once; without it every line goes one way, with the same answer. Raises InputError for
    a log that cannot be read, is empty or no text, and where no line is one of a framework that is known.
    """
    sources = [source for source in find_sources(names) if source.kind == "text"]
    if not sources:
        raise InputError(f"{names[0]}: no text", _HINT)
    known = wordings()
    gathered = _Gathered()
    rows = StepRows(known, gathered.times, gathered.short)
    scanner = Scanner(known.gate, known.confirm, most=float("inf"), timed=False, rows=rows if fast else None)
    others: set[str] = set()
    for source in sources:
        size = Size()
        gathered.begin(source)
        try:
            for hit in scanner.hits(source, size):
                other = known.other(hit.marks)
                others |= {other} if other else set()
                gathered.take(hit, [known.all[mark] for mark in hit.marks if mark < len(known.all)])
                scanner.follow(gathered.wants)
        except OSError as problem:
            raise InputError(f"{source.name}: {problem.strerror or problem}", _HINT) from problem
        gathered.end(size)
    if not (gathered.seen_any or rows.met):
        raise _unknown(sources, gathered.lines, others)
    return gathered.observed(bridge="short-step" in rows.met)


def _unknown(sources: Sequence[Source], lines: int, others: set[str]) -> InputError:
    name = sources[0].name if len(sources) == 1 else f"{len(sources)} logs"
    if others:
        return InputError(f"{name}: a log of {', '.join(sorted(others))}, not of Megatron-Bridge or Megatron-LM", _HINT)
    if lines == 0:
        return InputError(f"{name}: empty", _HINT)
    return InputError(f"{name}: no line of Megatron-Bridge or Megatron-LM in {lines} lines", _HINT)


class _Gathered:
    """What has been said so far."""

    def __init__(self) -> None:
        self.seen_any, self.lines, self.wants = False, 0, 0
        self._settings: dict[str, Seen] = {}
        self._starts, self._told, self._stepped = Starts(), Told(), 0
        self._frameworks: list[str] = []
        self.times, self.short = StepTimes(), StepTimes()
        self._peaks: dict[int | None, Peak] = {}
        self._remarks: dict[tuple[str, str], Remark] = {}
        self._records: dict[str, str] = {}
        self._block: BlockReader | None = None
        self._files: list[str] = []
        self._problems: list[str] = []
        self._source: Source | None = None
        self._handlers: Mapping[str, Callable[[Wording, Mapping[str, str], Seen, Hit], None]] = {
            "arguments": self._argument, "record": self._record, "step": self._step, "short-step": self._short_step,
            "memory": self._memory, "straggler": self._remark, "timeout": self._remark, "note": self._remark,
        }  # fmt: skip

    def begin(self, source: Source) -> None:
        """The next log."""
        if source.path is not None and source.path.is_file():
            with source.open() as stream:
                head = stream.read(4096)
            if len(head) - len(head.translate(None, _CONTROLS)) > _BINARY_SHARE * len(head):
                raise InputError(f"{source.name}: binary, not a log", _HINT)
        self._source = source
        self._files.append(source.name)
        self.times.begin()
        self.short.begin()

    def end(self, size: Size) -> None:
        """The log is over."""
        self._close()
        self.lines += size.lines
        if size.problem and self._source is not None:
            self._problems.append(f"{self._source.name}: {size.problem}")

    def take(self, hit: Hit, kinds: Sequence[Wording]) -> None:
        """A line: of a block, or of one or more kinds."""
        line = Place(hit.source.name, hit.number, hit.text)
        level = _LEVEL.match(hit.tag.rest)
        rest = hit.tag.rest[level.end() :] if level else hit.tag.rest
        met = [(kind, parts) for kind in kinds if (parts := kind.match(rest)) is not None]
        writer = (hit.tag.rank, hit.tag.local_rank, hit.tag.node)
        head = next((kind for kind, _ in met if kind.tells in _BLOCKS), None)
        if head is not None:
            self._close()
            self._block = _BLOCKS[head.tells](line, writer)
            if head.tells in ("summary", "yaml"):
                self._dumped(head.tells, line)
        elif self._block is not None and not met and _alike(writer, self._block.writer):
            self._block.take(rest, line)
        for kind, parts in met:
            self._means(kind, parts, hit)
        self._count()

    def _count(self) -> None:
        if self._block is None:
            return
        self._block.left -= 1
        self.wants = max(self._block.left, 0)
        if not self.wants:
            self._close()

    def _close(self) -> None:
        block, self._block, self.wants = self._block, None, 0
        if block is None:
            return
        for key, value, place, how in block.found():
            self._hold(key, Seen(place.file, place.line, place.text, value, how))
            if how in ("dump", "summary"):
                self._told.field(key, place)
        if isinstance(block, Scores) and block.worst is not None:
            score, who, place = block.worst
            remark = Remark(place.file, place.line, f"worst GPU score {score:.2f}: {who}", "score")
            self._remarks[("score", block.head.text)] = remark

    def _means(self, kind: Wording, parts: Mapping[str, str], hit: Hit) -> None:
        self.seen_any = True
        if kind.framework in ("bridge", "megatron-lm"):
            self._frameworks.append(kind.framework) if kind.framework not in self._frameworks else None
        seen = Seen(hit.source.name, hit.number, hit.text, None, "message", kind.dropped, parts.get("why", ""))
        for key, stated in kind.holds.items():
            value = _filled(stated, parts)
            if value is not _MISSING:
                self._hold(key, Seen(seen.file, seen.line, seen.text, value, "message", kind.dropped, seen.why))
        self._told.sentence(kind, seen)
        handler = self._handlers.get(kind.tells)
        if handler is not None:
            handler(kind, parts, seen, hit)

    def _hold(self, key: str, seen: Seen) -> None:
        """A setting; where a later dump or default says the same, the line that said why, or said it at all, stays."""
        if self._starts.changes(key, seen) and self.times.whole + self.short.whole > 0:
            self.times.forget()
            self.short.forget()
            self._peaks.clear()
        before = self._settings.get(key)
        if before is not None and before.value == seen.value and (before.how == "message" or seen.how == "default"):
            return
        self._settings[key] = seen

    def _argument(self, _kind: Wording, parts: Mapping[str, str], seen: Seen, _hit: Hit) -> None:
        name = parts["name"]
        self._dumped(name, seen)
        self._told.argument(name, seen)
        if name in by_dest() or name in _DERIVED:
            key = _DERIVED.get(name) or key_of(name)
            self._hold(key, Seen(seen.file, seen.line, seen.text, value_of(parts["value"]), "dump"))

    def _dumped(self, part: str, place: Place) -> None:
        whole = self.times.whole + self.short.whole
        if self._starts.dumped(part, place, whole > self._stepped, self._settings):
            self._stepped = whole

    def _record(self, _kind: Wording, parts: Mapping[str, str], seen: Seen, _hit: Hit) -> None:
        """A record that was just read says nothing new; ranks and starts repeat it."""
        for section, record in parts.items():
            if self._records.get(section) == record:
                continue
            self._records[section] = record
            for name, value in fields_of(record):
                self._hold(f"{section}.{name}", Seen(seen.file, seen.line, seen.text, value, "record"))

    def _step(self, kind: Wording, parts: Mapping[str, str], seen: Seen, _hit: Hit) -> None:
        self.times.report(parts, Place(seen.file, seen.line, seen.text), kind.per_s)

    def _short_step(self, _kind: Wording, parts: Mapping[str, str], seen: Seen, _hit: Hit) -> None:
        """Bridge's line of rank 0, which stands in where no whole line is."""
        if not self.times.enough:
            self.short.short([(parts["seconds"], parts["tflops"])], Place(seen.file, seen.line, seen.text))

    def _memory(self, kind: Wording, parts: Mapping[str, str], seen: Seen, hit: Hit) -> None:
        rank = int(parts["rank"]) if "rank" in parts else hit.tag.rank
        allocated = float(parts["allocated"]) * kind.unit_bytes
        reserved = float(parts["reserved"]) * kind.unit_bytes if "reserved" in parts else None
        before = self._peaks.get(rank)
        if before is None or allocated > before.allocated_bytes:
            self._peaks[rank] = Peak(seen.file, seen.line, seen.text, allocated, reserved, rank)

    def _remark(self, kind: Wording, parts: Mapping[str, str], seen: Seen, _hit: Hit) -> None:
        key = (kind.id, parts.get("section", "") or parts.get("ranks", ""))
        if len(self._remarks) < MOST_REMARKS:
            self._remarks.setdefault(key, Remark(seen.file, seen.line, shown(seen.text.strip()), kind.tells))

    def observed(self, *, bridge: bool) -> Observed:
        """Everything; `bridge` says that a line of Bridge is among those read as rows."""
        if self.times.batch is not None:
            count, place = self.times.batch
            self._settings.setdefault("train.global_batch_size", Seen(place.file, place.line, place.text, count))
        framework: Framework | None = "bridge" if bridge else self._framework()
        worst = max(self._peaks.values(), key=lambda one: one.allocated_bytes, default=None)
        peak = None
        if worst is not None:
            peak = Peak(
                worst.file, worst.line, worst.text, worst.allocated_bytes, worst.reserved_bytes, worst.rank,
                len(self._peaks),
            )  # fmt: skip
        gpus = self._settings.pop("gpus", None)
        version, told_by = self._told.version(framework, self._settings)
        restart = self._starts.remark()
        told = (*self._remarks.values(), *((restart,) if restart is not None else ()))
        remarks = sorted(told, key=lambda one: (self._files.index(one.file), one.line))
        return Observed(
            framework, version, self._settings, gpus, self.times.steps() or self.short.steps(), peak,
            tuple(remarks), tuple(self._files), self.lines, tuple(self._problems), told_by,
        )  # fmt: skip

    def _framework(self) -> Framework | None:
        if "bridge" in self._frameworks:
            return "bridge"
        return "megatron-lm" if "megatron-lm" in self._frameworks else None


def _alike(one: Writer, other: Writer) -> bool:
    """Whether lines may be of one writer; a node may be told by the first of them alone."""
    return one[:2] == other[:2] and (one[2] == other[2] or None in (one[2], other[2]))


_MISSING = object()
# Values that Megatron-LM derives and prints among the arguments.
_DERIVED = {
    "virtual_pipeline_model_parallel_size": "model.virtual_pipeline_model_parallel_size",
    "world_size": "gpus",
    "params_dtype": "model.params_dtype",
}


def _filled(stated: Any, parts: Mapping[str, str]) -> Any:
    """A value of the table, groups filled in; what did not match is missing."""
    group = _GROUP.fullmatch(stated) if isinstance(stated, str) else None
    if group is None:
        return stated
    return value_of(parts[group[1]]) if group[1] in parts else _MISSING
