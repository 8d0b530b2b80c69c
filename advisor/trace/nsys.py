"""An Nsight Systems export (`nsys export --type sqlite`) to columns: one `Trace` per process and device.

Tables as the Nsight Systems User Guide documents them ("SQLite Schema Reference"): CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY,
_MEMSET, _GRAPH_TRACE, _RUNTIME and _DRIVER, NVTX_EVENTS, StringIds, ENUM_CUDA_MEMCPY_OPER. Times are nanoseconds. The
lower 24 bits of a globalTid are the thread; the rest is the globalPid that device tables carry.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from advisor.errors import InputError
from advisor.trace.events import Launches, Mark, Sort, Trace, Work, no_work
from advisor.trace.intervals import Times
from advisor.trace.kernels import step_patterns
from advisor.trace.stray import without_strays

MAGIC = b"SQLite format 3\x00"
PREFIX = "CUPTI_ACTIVITY_KIND_"
DEVICE_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
CALL_TABLES = ("RUNTIME", "DRIVER")
SORTS = {"KERNEL": Sort.kernel, "MEMCPY": Sort.memcpy, "MEMSET": Sort.memset, "GRAPH_TRACE": Sort.kernel}
ROWS = 1 << 15
THREAD_BITS = 24
# Values of ENUM_CUDA_MEMCPY_OPER for exports without that table (CUpti_ActivityMemcpyKind).
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
GRAPH = "CUDA graph traced as a whole"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Device rows of all processes: `name` indexes `names`."""

    start: Times
    end: Times
    device: Times
    stream: Times
    correlation: Times
    process: Times
    name: Times
    sort: Times


def read_nsys(path: Path) -> list[Trace]:
    """Every process and device of an export as a `Trace`, in their order.

    Raises:
        InputError: the file is no database, or a database without the tables of an export.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _Export(path, database).traces()
    except (sqlite3.Error, OverflowError) as problem:
        raise InputError(
            f"{path}: {problem}", "export it again: nsys export --type sqlite REPORT.nsys-rep"
        ) from problem


class _Export:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self.database = database
        self.names: dict[str, int] = {}
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in found}

    def traces(self) -> list[Trace]:
        """One per process and device; the whole export is one clock."""
        parts = [self._device(kind) for kind in DEVICE_TABLES if PREFIX + kind in self.tables]
        if not parts:
            raise InputError(
                f"{self.path}: a database without CUDA activity (no table {PREFIX}KERNEL)",
                "trace with nsys profile --trace cuda,nvtx and export with nsys export --type sqlite",
            )
        columns = np.concatenate(parts, axis=1)
        negative = columns[1] < columns[0]
        findings = (
            (f"{int(negative.sum())} events have a negative duration and were left out",) if negative.any() else ()
        )
        rows = _Rows(*columns[:, ~negative])
        names = tuple(self.names)
        owners = sorted(set(zip(rows.process.tolist(), rows.device.tolist(), strict=True)))
        return [self._trace(rows, names, process, device, findings) for process, device in owners]

    def _trace(
        self, rows: _Rows, names: tuple[str, ...], process: int, device: int, findings: tuple[str, ...]
    ) -> Trace:
        mine = (rows.process == process) & (rows.device == device)
        count = int(mine.sum())
        unknown = np.full(count, -1, np.int32)
        work = Work(
            start=rows.start[mine], end=rows.end[mine], name=rows.name[mine].astype(np.int32),
            sort=rows.sort[mine].astype(np.int8), stream=rows.stream[mine], correlation=rows.correlation[mine],
            group=unknown, collective=unknown,
        )  # fmt: skip
        nothing = np.array([], np.int64)
        return without_strays(
            Trace(
                path=self.path, source="nsys", rank=None, world_size=None, backend="nccl", origin_ns=0, names=names,
                groups=(), device=work, gloo=no_work(), host_start=nothing, host_end=nothing,
                launches=self._launches(process), marks=self._marks(process), events=count, findings=findings,
                device_name=f"process {process >> THREAD_BITS} device {device}",
            )
        )  # fmt: skip

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self.database.execute(f'PRAGMA table_info("{table}")')}

    def _device(self, kind: str) -> Times:
        """Rows of one device table in the order of `_Rows`, shape (8, n)."""
        table = PREFIX + kind
        present = self._columns(table)
        if not {"start", "end", "deviceId"} <= present:
            raise InputError(f"{self.path}: table {table} has no columns start, end and deviceId")
        label = next((name for name in ("demangledName", "shortName", "copyKind") if name in present), None)
        wanted = ("deviceId", "streamId", "correlationId", "globalPid", label)
        texts = ", ".join(_whole(name) if name in present else "-1" for name in wanted)
        rows = self._numbers(f"SELECT {_whole('start')}, {_whole('end')}, {texts} FROM {table}", 7)  # noqa: S608
        distinct, index = np.unique(rows[6], return_inverse=True)
        named = self._kernel_names() if kind == "KERNEL" else self._copy_names() if kind == "MEMCPY" else {}
        other = {"KERNEL": "kernel without a name", "MEMCPY": "Memcpy", "MEMSET": "Memset", "GRAPH_TRACE": GRAPH}[kind]
        ids = [self.names.setdefault(named.get(key, other), len(self.names)) for key in distinct.tolist()]
        rows[6] = np.array(ids, np.int64)[index] if len(index) else rows[6]
        return np.concatenate((rows, np.full((1, rows.shape[1]), int(SORTS[kind]), np.int64)))

    def _numbers(self, query: str, width: int, *given: int) -> Times:
        """All rows of a query as int64, shape (width, n), without ever holding them as Python objects."""
        cursor = self.database.execute(query, given)  # the names in it are those of the schema
        parts = [np.zeros((0, width), np.int64)]
        while rows := cursor.fetchmany(ROWS):
            parts.append(np.array(rows, np.int64))
        return np.ascontiguousarray(np.concatenate(parts).T)

    def _strings(self) -> dict[int, str]:
        if "StringIds" not in self.tables:
            return {}
        return dict(self.database.execute("SELECT id, CAST(value AS TEXT) FROM StringIds WHERE value IS NOT NULL"))

    _kernel_names = _strings

    def _copy_names(self) -> dict[int, str]:
        if "ENUM_CUDA_MEMCPY_OPER" in self.tables:
            rows = self.database.execute("SELECT id, CAST(label AS TEXT) FROM ENUM_CUDA_MEMCPY_OPER").fetchall()
            return {key: f"Memcpy {_short(str(label))}" for key, label in rows}
        return {key: f"Memcpy {label}" for key, label in COPIES.items()}

    def _launches(self, process: int) -> Launches:
        parts = [np.zeros((2, 0), np.int64)]
        for kind in CALL_TABLES:
            table = PREFIX + kind
            if table in self.tables and {"correlationId", "start"} <= (present := self._columns(table)):
                where = f"WHERE (globalTid >> {THREAD_BITS}) = ?" if "globalTid" in present and process >= 0 else ""
                given = (process >> THREAD_BITS,) if where else ()
                parts.append(self._numbers(f"SELECT correlationId, start FROM {table} {where}", 2, *given))  # noqa: S608
        calls = np.concatenate(parts, axis=1)
        order = np.argsort(calls[0], kind="stable")
        return Launches(calls[0][order], calls[1][order])

    def _marks(self, process: int) -> tuple[Mark, ...]:
        """Ranges that mark a step: those of the first pattern that any range of the process has."""
        ranges = list(self._ranges(process))
        for pattern in step_patterns():
            marks = {mark for mark in ranges if pattern.fullmatch(mark.name)}
            if marks:
                return tuple(sorted(marks, key=lambda mark: (mark.start, mark.end)))
        return ()

    def _ranges(self, process: int) -> Iterator[Mark]:
        if "NVTX_EVENTS" not in self.tables:
            return
        present = self._columns("NVTX_EVENTS")
        if not {"start", "end"} <= present:
            return
        text = "text" if "text" in present else "NULL"
        key = "textId" if "textId" in present else "NULL"
        thread = "globalTid" if "globalTid" in present else "NULL"
        strings = self._strings()
        candidates = re.compile("|".join(pattern.pattern for pattern in step_patterns()), re.IGNORECASE)
        query = f"SELECT start, end, CAST({text} AS TEXT), {key}, {thread} FROM NVTX_EVENTS WHERE end > start"  # noqa: S608
        for start, end, said, said_id, owner in self.database.execute(query):
            name = str(said if said is not None else strings.get(said_id, ""))
            elsewhere = process >= 0 and isinstance(owner, int) and owner >> THREAD_BITS != process >> THREAD_BITS
            if not elsewhere and isinstance(start, int) and isinstance(end, int) and candidates.fullmatch(name):
                yield Mark(name, start, end)


def _whole(column: str | None) -> str:
    return f"CAST(COALESCE({column}, -1) AS INTEGER)"


def _short(label: str) -> str:
    """HtoD and the like, as Kineto writes it, from labels such as Host-to-Device."""
    words: Sequence[str] = re.findall(r"host|device|peer|array", label.lower())
    return f"{words[0][0].upper()}to{words[-1][0].upper()}" if len(words) > 1 else label
