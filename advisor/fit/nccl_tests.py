"""Reads the output of nccl-tests: seconds of a collective by size, and on how many ranks and nodes.

A log holds the output of one or several programs (all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf,
sendrecv_perf), with or without what mpirun (`[1,0]<stdout>:`) or srun (`0: `) put before each line. Sizes are those
that the programs print: the full tensor of all-gather, reduce-scatter and all-reduce, all that a rank sends in an
all-to-all, the message of sendrecv. Of the two times, the one that training uses: in place for the first three, as
Megatron reduces and gathers inside its buffers, out of place for the others; where that is missing, the other one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.errors import InputError

OPERATIONS = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
"""Names of nccl-tests programs without _perf, as profiles call the operation."""
IN_PLACE = frozenset({"all_gather", "reduce_scatter", "all_reduce"})
MAX_LOG_BYTES = 1 << 26
_ANY = "|".join(OPERATIONS)
_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>:\s?|\s*\d+:\s|\[[\w.-]+:\d+\]\s)+")
_PROGRAM = re.compile(rf"\b({_ANY})_perf(?:_mpi)?\b")
_START = re.compile(r"^#\s*nThread\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?.*?\bon\s+(\S+)")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\S+)\s+(-?\d+)\s+(.*)$")
_DIGITS = re.compile(r"^\s*\d+\s+\d+\s")
_COLUMNS = 4
"""Columns of each half of a row: time, algorithm bandwidth, bus bandwidth, wrong results."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A line of a table that is not used, and why."""

    source: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class NcclTable:
    """One operation on `ranks` ranks of `nodes` nodes: seconds by bytes as nccl-tests prints them."""

    operation: str
    ranks: int
    nodes: int
    seconds: Mapping[int, float]
    source: str
    left_out: tuple[LeftOut, ...] = ()

    def bus_Bps(self, n_bytes: int) -> float:
        """Bus bandwidth at one size, as nccl-tests defines it: bytes per second x (n - 1) / n, twice for all-reduce."""
        if self.operation == "send_recv":
            return n_bytes / self.seconds[n_bytes]
        share = (self.ranks - 1) / self.ranks * (2 if self.operation == "all_reduce" else 1)
        return n_bytes / self.seconds[n_bytes] * share

    @property
    def best_Bps(self) -> float:
        """Best bus bandwidth of all sizes."""
        return max(self.bus_Bps(size) for size in self.seconds)


@dataclass(slots=True)
class _Run:
    """One program of a log while it is read; `hosts` are those of the ranks of its first group."""

    first: int
    program: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    rows: list[tuple[int, str]] = field(default_factory=list)


def read_nccl_log(path: Path) -> tuple[NcclTable, ...]:
    """The tables of a log, one per program that ran.

    A program is named by "Collective test starting", by the command line in the log, or by the name of the file.
    InputError for a file that cannot be read or holds no table, and for a table without name, ranks or usable line.
    """
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise InputError(f"{path}: {path.stat().st_size} bytes are more than a log of nccl-tests")
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    tables = tuple(_table(run, path) for run in _runs(lines) if run.rows)
    if not tables:
        raise InputError(f"{path}: a table of times is missing", "give the full output of all_reduce_perf, ...")
    return tables


def _runs(lines: Sequence[str]) -> Iterator[_Run]:
    """The programs of a log: each begins with its line of settings, or where a new list of ranks begins."""
    run, named = _Run(1), None
    for number, raw in enumerate(lines, 1):
        line = _PREFIX.sub("", raw)
        found = _PROGRAM.search(line)
        if found is not None:
            named = found[1]
        rank = _RANK.match(line)
        if _START.match(line) or (rank is not None and run.rows):
            yield run
            run = _Run(number)
        if found is not None and not run.rows:
            run.program = named
        if rank is not None and int(rank[2] or 0) == 0:
            run.hosts[int(rank[1])] = rank[3]
        elif _DIGITS.match(line):
            run.rows.append((number, line))
            run.program = run.program or named
    yield run


def _table(run: _Run, path: Path) -> NcclTable:
    names = set(re.findall(_ANY, path.name))
    program = run.program or (names.pop() if len(names) == 1 else None)
    where = f"{path}, from line {run.first}"
    hint = "give the full output of all_gather_perf, all_reduce_perf, ..."
    if program is None:
        raise InputError(
            f"{where}: the name of the operation is missing, which older nccl-tests do not print",
            "name the file after the program: all_reduce_perf.log",
        )
    if len(run.hosts) < 2:
        what = "its ranks are missing" if not run.hosts else "one rank alone exchanges nothing"
        raise InputError(f"{where}: {what} (lines '#  Rank  0 ... on HOST')", hint)
    operation = OPERATIONS[program]
    seconds: dict[int, float] = {}
    left_out = []
    for number, line in run.rows:
        read = _row(line, operation)
        if isinstance(read, str):
            left_out.append(LeftOut(path.name, number, read))
        elif read[0] in seconds and read[1] != seconds[read[0]]:
            seconds[read[0]] = min(seconds[read[0]], read[1])
        elif read[0]:
            seconds[read[0]] = read[1]
    if not seconds:
        reason = f"line {left_out[0].line}: {left_out[0].reason}" if left_out else "only sizes of 0 bytes"
        raise InputError(f"{where}: no line of {program}_perf can be used; {reason}", hint)
    nodes = len(set(run.hosts.values()))
    ordered = dict(sorted(seconds.items()))
    return NcclTable(operation, len(run.hosts), nodes, ordered, path.name, tuple(left_out))


def _row(line: str, operation: str) -> tuple[int, float] | str:
    """Bytes and seconds of a line, or why it is not used."""
    found = _ROW.match(line)
    if found is None:
        return "not a line of size, count, type, operation, root and times"
    words = found[6].split()
    halves = [words[:_COLUMNS], words[_COLUMNS : 2 * _COLUMNS]]
    times = [_half(half) for half in halves]
    if operation in IN_PLACE:
        times.reverse()
    for one in times:
        if isinstance(one, float):
            return int(found[1]), one
    return next((one for one in times if isinstance(one, str) and one), "no time in it")


def _half(words: Sequence[str]) -> float | str:
    """Seconds of one half of a line, "" where it has none, or what is wrong with it."""
    if not words or words[0].upper() == "N/A":
        return ""
    try:
        time = float(words[0])
    except ValueError:
        return f"{words[0]!r} is no time in us"
    if len(words) == _COLUMNS and words[3].upper() != "N/A" and words[3] != "0":
        return f"{words[3]} wrong results"
    if not 0 < time < float("inf"):
        return f"{words[0]} us is no time"
    return time * 1e-6
