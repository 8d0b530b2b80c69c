"""NCCL flight-recorder dumps (pickle or JSON, one per rank): which rank is missing, which collective differs.

Pickles can run code when they are read, so only the containers and scalars that a dump consists of are accepted.
Source of the form: torch csrc/distributed/c10d/FlightRecorder.hpp (version 2.x).
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from advisor.diagnose.verdict import Verdict
from advisor.errors import InputError
from advisor.logs.sources import Source

LARGEST_DUMP_BYTES = 1 << 30
_TRAILING_RANK = re.compile(r"(\d+)(?:\.(?:pkl|pickle|json))?(?:\.gz)?$")
_UNFINISHED = {"scheduled", "started"}


class _OnlyValues(pickle.Unpickler):
    """Refuses every class and function: dumps are dicts, lists, tuples, strings and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a flight-recorder dump")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a reference to something outside the file")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective or send/receive of a rank: group, number in the group, name, sizes, whether it is done."""

    group: str
    seq: int
    name: str
    sizes: str
    done: bool
    p2p: bool


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded: calls in order, members of the groups (ranks)."""

    rank: int
    source: str
    calls: tuple[Call, ...]
    groups: Mapping[str, tuple[int, ...]]


def read_value(stream: IO[bytes], kind: str) -> Any:
    """The content of a dump. Raises ValueError for anything that is no plain value, or is damaged."""
    if kind == "json":
        return json.loads(stream.read(LARGEST_DUMP_BYTES).decode("utf-8", errors="replace"))
    try:
        return _OnlyValues(stream).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError,
            UnicodeDecodeError, MemoryError, OverflowError, RecursionError) as problem:  # fmt: skip
        raise ValueError(str(problem)) from problem


def read_dump(source: Source) -> Dump:
    """One dump. Raises InputError for a file that is none, or that asks for code."""
    try:
        with source.open() as stream:
            value = read_value(stream, source.kind)
        return _dump(value, source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise InputError(
            f"{source.name}: not a flight-recorder dump that can be read: {problem}",
            "give the files that TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, one per rank",
        ) from problem


def _dump(value: Mapping[str, Any], source: Source) -> Dump:
    name = Path(source.name).name
    found = _TRAILING_RANK.search(name)
    if "rank" in value:
        rank = int(value["rank"])
    elif found:
        rank = int(found[1])
    else:
        raise ValueError("neither the dump nor its name says which rank wrote it")
    calls = tuple(_call(entry) for entry in value["entries"])
    groups = {
        _group(uid, about.get("desc", "")): tuple(map(int, re.findall(r"\d+", str(about.get("ranks", "")))))
        for uid, about in (value.get("pg_config") or {}).items()
    }
    return Dump(rank, source.name, calls, groups)


def _group(uid: object, description: object) -> str:
    return f"{uid} ({description})" if description else str(uid)


def _call(entry: Mapping[str, Any]) -> Call:
    group = entry.get("process_group") or (entry.get("pg_id", 0), "")
    p2p = bool(entry.get("is_p2p", False))
    seq = entry.get("p2p_seq_id") if p2p else entry.get("collective_seq_id", entry.get("seq_id"))
    return Call(
        _group(group[0], group[1]), int(seq or 0), str(entry.get("profiling_name", "")).removeprefix("nccl:"),
        str(entry.get("input_sizes", "")), entry.get("state") not in _UNFINISHED, p2p,
    )  # fmt: skip


def compare(dumps: Sequence[Dump]) -> Verdict | None:
    """What the dumps of a job's ranks say together, or None where nothing is unfinished."""
    waiting = {dump.rank: [call for call in dump.calls if not call.done] for dump in dumps}
    stuck = [call for calls in waiting.values() for call in calls if not call.p2p]
    verdicts = [
        found for group in dict.fromkeys(call.group for call in stuck) if (found := _group_verdict(dumps, group))
    ]
    missing = [found for found in verdicts if found.cause == "nccl_missing_rank"]
    if missing:
        idle = [found for found in missing if not any(waiting.get(rank) for rank in found.ranks)]
        return (idle or missing)[0]
    sends = [(rank, call) for rank, calls in waiting.items() for call in calls if call.p2p]
    if sends:
        ranks = tuple(sorted({rank for rank, _ in sends}))
        said = f"ranks {_list(ranks)} wait in {sends[0][1].name} of group {sends[0][1].group}"
        return Verdict("nccl_pipeline_stage", "medium", (), said)
    return verdicts[0] if verdicts else None


def _group_verdict(dumps: Sequence[Dump], group: str) -> Verdict | None:
    """Missing ranks, a call that differs, or everybody in step, in one process group."""
    members = {rank for dump in dumps for rank in dump.groups.get(group, ())}
    here = [dump for dump in dumps if not members or dump.rank in members]
    last = {dump.rank: max((c.seq for c in dump.calls if c.group == group and not c.p2p), default=0) for dump in here}
    stuck = [
        (dump.rank, call)
        for dump in here
        for call in dump.calls
        if call.group == group and not call.done and not call.p2p
    ]
    if not stuck:
        return None
    seq = min(call.seq for _, call in stuck)
    behind = tuple(sorted(rank for rank, number in last.items() if number < seq))
    if behind:
        waiting = len(here) - len(behind)
        said = f"ranks {_list(behind)} never entered collective {seq} of group {group}; {waiting} wait in it"
        return Verdict("nccl_missing_rank", "high", behind, said)
    at_seq = {dump.rank: _at(dump, group, seq) for dump in here}
    kinds = Counter((call.name, call.sizes) for call in at_seq.values() if call)
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        odd = tuple(sorted(rank for rank, call in at_seq.items() if call and (call.name, call.sizes) != usual))
        said = f"collective {seq} of group {group} is {usual[0]} {usual[1]} for most ranks, but not for {_list(odd)}"
        return Verdict("nccl_missing_rank", "high" if len(odd) * 2 < len(here) else "medium", odd, said)
    gone = tuple(sorted(members - {dump.rank for dump in dumps}))
    if gone:
        said = f"no dump of ranks {_list(gone)}; the others wait in collective {seq} of group {group}"
        return Verdict("nccl_missing_rank", "medium", gone, said)
    if len(stuck) == len(here):
        said = f"all {len(here)} ranks are in collective {seq} of group {group}"
        return Verdict("nccl_all_ranks_network", "medium", (), said)
    return None


def _at(dump: Dump, group: str, seq: int) -> Call | None:
    return next((call for call in dump.calls if call.group == group and call.seq == seq and not call.p2p), None)


def _list(ranks: Iterable[int]) -> str:
    shown = [str(rank) for rank in ranks]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
