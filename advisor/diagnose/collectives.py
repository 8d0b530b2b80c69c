"""Timeouts of collectives by kind: rank 0 busy, a rank missing, a pipeline stage, all ranks in step, a save, a hang.

What ranks report when they wait is a symptom. Who is named, who is silent and what rank 0 was doing decides the kind;
where nothing does, the answer is undetermined. Source of the messages: torch ProcessGroupNCCL.cpp and TraceUtils.h.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from advisor.diagnose.events import Event, Evidence
from advisor.diagnose.facts import Facts
from advisor.diagnose.patterns import UNDETERMINED
from advisor.diagnose.verdict import Verdict

POINT_TO_POINT = {"SEND", "RECV", "COALESCED", "SENDRECV", "BATCH_P2P"}
WAITS = (
    "watchdog",
    "last-work",
    "unique-id",
    "store-wait",
    "heartbeat",
    "ft-hang",
    "desync",
    "barrier-rank",
    "mismatch",
)
_GROUP = re.compile(
    r"PG GUID (?P<guid>[^ (]+)(?:\((?P<name>[^)]*)\))?|\[PG (?P<old>\S+)(?: \((?P<old_name>[^)]*)\))? Rank"
)
_CUDA_KEY = re.compile(r"(?:default_pg/0//cuda//|key '?)0\b")


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits in a collective: group, number and kind of the call, size."""

    rank: int
    group: str
    seq: int
    op: str
    numel: int
    event: Event

    @property
    def p2p(self) -> bool:
        """Whether it waits for one neighbour rather than for a group."""
        return self.op in POINT_TO_POINT or "PIPELINE" in self.group.upper()


def classify(evidence: Evidence, facts: Facts) -> Verdict | None:
    """The kind of timeout that the symptoms of a job amount to, or None where nobody waits."""
    events = [event for event in evidence.events if event.pattern.id in WAITS]
    if not events:
        return None
    waits = _waits(events, facts)
    for judge in (
        _named,
        _saving,
        _unique_id,
        _pipeline,
        _lagging,
        _waiting_for_rank0,
        _silent,
        _in_step,
        _hanging,
        _store,
    ):
        found = judge(evidence, facts, events, waits)
        if found is not None:
            return found
    return Verdict(
        UNDETERMINED, "low", (), "somebody waits in a collective, and nothing says for whom", tuple(events[:4])
    )


def _waits(events: Iterable[Event], facts: Facts) -> list[Wait]:
    """One wait for every rank: the first it reports."""
    found: dict[int, Wait] = {}
    for event in events:
        if event.pattern.id != "watchdog" or event.rank is None:
            continue
        group = _GROUP.search(event.text)
        name = next((part for part in group.groups() if part), "") if group else ""
        if group and (group["name"] or group["old_name"]):
            name = group["name"] or group["old_name"]
        wait = Wait(
            event.rank, name, int(event.fields["seq"]), event.fields["op"], int(event.fields.get("numel_in", 0)), event
        )
        found.setdefault(event.rank, wait)
    return list(found.values())


Judged = Verdict | None


def _named(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """The library itself names who is missing: desync report, monitored barrier, mismatched fingerprints."""
    missing: dict[int, Event] = {}
    for event in events:
        if event.pattern.id == "barrier-rank" or (
            event.pattern.id == "desync" and ("missing" in event.fields or "running" not in event.fields)
        ):
            for rank in re.findall(r"\d+", event.fields["ranks"]):
                missing.setdefault(int(rank), event)
    if missing:
        ranks, lines = tuple(sorted(missing)), tuple({event.at: event for event in missing.values()}.values())
        if ranks == (0,) and _busy(evidence, facts, lines[0].at):
            return _rank0(evidence, facts, lines)
        return Verdict("nccl_missing_rank", "high", ranks, f"torch names rank {_list(ranks)} as missing", lines)
    mismatched = [event for event in events if event.pattern.id == "mismatch"]
    if mismatched:
        line = mismatched[0]
        ranks = (int(line.fields["rank"]),)
        return Verdict("nccl_missing_rank", "medium", ranks, "ranks run different collectives", (line,))
    return None


def unfinished_save(evidence: Evidence, facts: Facts, before: int) -> Event | None:
    """The line that announces a save which did not end before a place, or None."""
    started = [event for event in evidence.of("saving") if event.at < before]
    if not started:
        return None
    last = started[-1]
    done = any(last.at < event.at < before for event in evidence.of("saved"))
    return None if done or any(last.at < one.at < before for one in facts.progress) else last


def _saving(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """The wait began within a save: rank 0 waits for writers too, or it is rank 0 that the others wait for."""
    save = unfinished_save(evidence, facts, events[0].at)
    stores = [event for event in events if event.pattern.id == "store-wait"]
    if save is None or not (waits or stores):
        return None
    lines = (save, *evidence.of("shards")[:1], *(wait.event for wait in waits[:2]), *stores[:2])
    if any(wait.rank == 0 for wait in waits) or evidence.of("shards") or not waits:
        return Verdict("ckpt_save", "medium", (), "a save began and never ended", lines, None, False)
    if any(wait.p2p for wait in waits):
        return None
    return Verdict("nccl_rank0_busy", "medium", (0,), "rank 0 was saving while the others waited for it", lines)


def _busy(evidence: Evidence, facts: Facts, before: int) -> Event | None:
    """What rank 0 announced last before a place, with no iteration in between."""
    since = facts.last_progress(before)
    kinds = ("busy", "saving", "loading")
    found = [e for e in evidence.of(*kinds) if since < e.at < before and e.rank in {None, 0}]
    return found[-1] if found else None


def _rank0(evidence: Evidence, facts: Facts, lines: Sequence[Event]) -> Verdict:
    busy = _busy(evidence, facts, lines[0].at)
    if busy is None:
        said = "the others wait for rank 0; its own log says why"
        return Verdict("nccl_rank0_busy", "medium", (0,), said, tuple(lines[:4]))
    said = "rank 0 was still at work while the others waited for it"
    return Verdict("nccl_rank0_busy", "medium", (0,), said, (busy, *lines[:3]))


def _unique_id(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """A new communicator waits for the rank that makes its id."""
    asked = [event for event in events if event.pattern.id == "unique-id"]
    owners = Counter(event.fields.get("owner") or event.fields["crash"] for event in asked)
    if not owners:
        return None
    owner = int(owners.most_common(1)[0][0])
    if owner == 0:
        return _rank0(evidence, facts, asked)
    said = f"the others wait for rank {owner} to open a communicator"
    return Verdict("nccl_missing_rank", "medium", (owner,), said, tuple(asked[:3]))


def _pipeline(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    stages = [wait for wait in waits if wait.p2p]
    others = [wait for wait in waits if not wait.p2p]
    named = evidence.of("pipeline-group") if waits else []
    if not stages and not named:
        return None
    if len(others) > 2 * len(stages) and _behind(others):
        return None
    ranks = sorted({wait.rank for wait in stages})
    lines = tuple(wait.event for wait in stages[:4]) or tuple(wait.event for wait in waits[:3])
    said = f"ranks {_list(ranks)} wait for a neighbouring stage (send or receive)"
    return Verdict("nccl_pipeline_stage", "medium", (), said, lines, None, False)


def _grouped(waits: Iterable[Wait], key: Callable[[Wait], Hashable]) -> Iterable[list[Wait]]:
    groups: dict[Hashable, list[Wait]] = {}
    for wait in waits:
        groups.setdefault(key(wait), []).append(wait)
    return groups.values()


def _behind(waits: Sequence[Wait]) -> list[Wait]:
    """Ranks that wait in an earlier collective than most of their group."""
    found = []
    for members in _grouped(waits, lambda wait: wait.group):
        usual, count = Counter(wait.seq for wait in members).most_common(1)[0]
        odd = [wait for wait in members if wait.seq < usual]
        if odd and len(odd) < count:
            found += odd
    return found


def _lagging(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """Ranks of one group that are at different numbers, or in different calls at the same number."""
    odd = _behind(waits)
    if not odd:
        for members in _grouped(waits, lambda wait: (wait.group, wait.seq)):
            usual, count = Counter((wait.op, wait.numel) for wait in members).most_common(1)[0]
            different = [wait for wait in members if (wait.op, wait.numel) != usual]
            odd += different if len(different) < count else []
    if not odd:
        behind = _last_work(events)
        if behind:
            ranks = tuple(sorted(behind))
            said = f"rank {_list(ranks)} enqueued less than the others"
            return Verdict("nccl_missing_rank", "medium", ranks, said, tuple(behind.values())[:4])
        return None
    ranks = tuple(sorted({wait.rank for wait in odd}))
    usual_lines = tuple(wait.event for wait in waits if wait.rank not in ranks)[:2]
    said = f"rank {_list(ranks)} waits in another collective than the others"
    return Verdict(
        "nccl_missing_rank", "medium", ranks, said, (*(wait.event for wait in odd[:3]), *usual_lines)
    )  # fmt: skip


def _last_work(events: Sequence[Event]) -> dict[int, Event]:
    """Ranks whose last enqueued work is behind that of the majority."""
    last = {e.rank: e for e in events if e.pattern.id == "last-work" and e.rank is not None}
    numbers = Counter(int(event.fields["enqueued"]) for event in last.values())
    if len(last) < 3 or len(numbers) < 2:
        return {}
    usual, count = numbers.most_common(1)[0]
    behind = {rank: event for rank, event in last.items() if int(event.fields["enqueued"]) < usual}
    return behind if len(behind) < count else {}


def _silent(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """Almost all ranks report the same collective; the few that do not are the ones they wait for."""
    if facts.world_size is None or len(waits) < 3 or len({wait.seq for wait in waits}) != 1:
        return None
    reporting = {wait.rank for wait in waits} | {e.rank for e in events if e.rank is not None}
    silent = tuple(sorted(set(range(facts.world_size)) - reporting))
    if not silent or len(silent) * 4 > facts.world_size:
        return None
    lines = tuple(wait.event for wait in waits[:3])
    if silent == (0,):
        return _rank0(evidence, facts, lines)
    said = f"{len(reporting)} of {facts.world_size} ranks wait in the same collective, all but rank {_list(silent)}"
    return Verdict("nccl_missing_rank", "medium", silent, said, lines)


def _waiting_for_rank0(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """Others wait, rank 0 does not, and the last thing it announced was work of its own."""
    if not waits or any(wait.rank == 0 for wait in waits):
        return None
    lines = tuple(wait.event for wait in waits[:4])
    return _rank0(evidence, facts, lines) if _busy(evidence, facts, lines[0].at) else None


def _in_step(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """Several ranks report the same collective, nobody is late."""
    if len(waits) < 2 or len({(wait.group, wait.seq, wait.op) for wait in waits}) != 1:
        return None
    lines = tuple(wait.event for wait in waits[:4])
    world = facts.world_size
    complete = len(waits) == world or (world is None and len(waits) >= 4)
    said = f"{len(waits)}{f' of {world}' if world else ''} ranks wait in the same collective, nobody is late"
    return Verdict("nccl_all_ranks_network", "medium" if complete else "low", (), said, lines, None, False)


def _hanging(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """Heartbeats stopped: of the watchdog of NCCL, or of the rank monitor of nvidia-resiliency-ext."""
    hung = [event for event in events if event.pattern.id in {"heartbeat", "ft-hang"}]
    if not hung or waits:
        return None
    ranks = {event.rank for event in hung if event.rank is not None}
    said = "no heartbeat: the process is stuck, or waits inside a call"
    one = tuple(ranks) if len(ranks) == 1 and hung[0].pattern.id == "ft-hang" else ()
    return Verdict("hang_process", "medium", one, said, tuple(hung[:4]), None, bool(one))


def _store(evidence: Evidence, facts: Facts, events: Sequence[Event], waits: Sequence[Wait]) -> Judged:
    """A wait at the key-value store: for the id of the first communicator it is rank 0 that is late."""
    asked = [event for event in events if event.pattern.id == "store-wait"]
    if not asked or waits:
        return None
    if any(_CUDA_KEY.search(event.text) for event in asked):
        return _rank0(evidence, facts, asked)
    if facts.progress or all("gloo" in event.text for event in asked):
        return None
    said = "ranks wait at the key-value store for somebody who does not come"
    return Verdict("rendezvous", "low", (), said, tuple(asked[:4]), None, False)


def _list(ranks: Iterable[int]) -> str:
    shown = [str(rank) for rank in ranks]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
