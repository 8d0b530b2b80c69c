"""From logs to a diagnosis."""

from __future__ import annotations

import re
from collections.abc import Sequence

from advisor.diagnose import events as reading
from advisor.diagnose.diagnosis import Diagnosis, Evidence, Follower
from advisor.diagnose.events import Event
from advisor.diagnose.exits import code_of, first_failure
from advisor.diagnose.facts import TERMINATED, Facts, facts
from advisor.diagnose.judge import EXTERNAL, judge
from advisor.diagnose.patterns import UNDETERMINED, Cause, knowledge
from advisor.diagnose.recorder import compare, read_dump
from advisor.diagnose.verdict import Verdict
from advisor.errors import InputError
from advisor.logs.sources import Source, find_sources

MOST_EVIDENCE = 8
MOST_FOLLOWERS = 8
# Causes that no single rank has.
OF_NO_RANK = EXTERNAL | {"network_ib", "nccl_all_ranks_network", "nccl_pipeline_stage", "launch_misuse", "rendezvous"}
# Where dumps of the flight recorder know better than what ranks report.
WAITING = {"nccl_rank0_busy", "nccl_missing_rank", "nccl_pipeline_stage", "nccl_all_ranks_network", "hang_process"}
ONE_NODE_GPUS = 8
_RAISED = re.compile(r"^\W{0,12}(?:[A-Za-z_]\w*\.)*[A-Z]\w*Error: ")


def diagnose(names: Sequence[str]) -> Diagnosis:
    """Diagnose the logs (and flight-recorder dumps) behind `names`: files, folders, "-" for stdin.

    Raises InputError for input that does not exist or cannot be read; a log that does not tell is `undetermined`.
    """
    sources = find_sources(names)
    known = knowledge()
    texts = [source for source in sources if source.kind == "text"]
    dumps = [source for source in sources if source.kind != "text"]
    try:
        evidence = reading.collect(texts, known)
    except OSError as problem:
        raise InputError(f"{problem.filename or names[0]}: {problem.strerror}") from problem
    job = facts(evidence)
    verdict = judge(evidence, job, known)
    recorded = compare([read_dump(dump) for dump in dumps]) if dumps else None
    if recorded is not None and verdict.cause in {UNDETERMINED} | WAITING:
        verdict = Verdict(recorded.cause, recorded.confidence, recorded.ranks, recorded.said, verdict.events[:4])
    return _diagnosis(verdict, evidence, job, known.causes[verdict.cause], dumps)


def _diagnosis(
    verdict: Verdict, evidence: reading.Evidence, job: Facts, cause: Cause, dumps: Sequence[Source]
) -> Diagnosis:
    rank, node = _who(verdict, job)
    code = verdict.exit_code
    if code is None and cause.id != UNDETERMINED:
        code = code_of(_implied(verdict, cause), rank, node, cause.id in EXTERNAL, job)
    elif code is None:
        failed = first_failure(job)
        code = failed.exit_code if failed else None
    rows = [
        {"name": name, "bytes": size.bytes, "lines": size.lines, "problem": size.problem}
        for name, size in evidence.sizes.items()
    ]
    done = [one.iteration for one in job.progress]
    return Diagnosis(
        cause_id=cause.id,
        title=cause.title,
        reason=verdict.said or _reason(verdict),
        confidence=verdict.confidence,
        first_failing_rank=rank,
        first_failing_node=node,
        exit_code=code,
        evidence=tuple(dict.fromkeys(Evidence.of(event) for event in verdict.events))[:MOST_EVIDENCE],
        cascade=tuple(_cascade(verdict, evidence)),
        not_to_blame=(*cause.not_to_blame, *_innocent(verdict, evidence, rank)),
        fix=cause.fix,
        next_step=cause.next_step,
        last_iteration=max(done) if done else None,
        world_size=job.world_size,
        sources=(*rows, *({"name": dump.name, "bytes": None, "lines": None, "problem": None} for dump in dumps)),
    )


def _who(verdict: Verdict, job: Facts) -> tuple[int | None, str | None]:
    """Rank and node that failed first, as far as verdict, tags, torch's banner and srun tell."""
    event = verdict.events[0] if verdict.events else None
    writer = event if event is not None and verdict.blame_writer else None
    rank = verdict.ranks[0] if verdict.ranks else None
    node = verdict.node or (writer.node if writer else None)
    if verdict.cause in OF_NO_RANK:
        return None, node
    failed = first_failure(job)
    if failed is not None and failed.exit_code == TERMINATED:
        failed = None
    agreed = failed is not None and (node is None or failed.node in {None, node})
    if rank is None and writer is not None and failed is not None and agreed and verdict.cause != UNDETERMINED:
        rank = _rank_of(failed.rank, failed.origin, job)
    if rank is None and writer is not None and job.world_size is not None and job.world_size <= ONE_NODE_GPUS:
        rank = writer.local_rank
    if node is None:
        node = job.node_of(rank)
    if node is None and failed is not None and verdict.blame_writer:
        failing = {one.node for one in job.failures if one.node and one.exit_code != TERMINATED}
        same = failed.rank == rank or rank is None or len(failing) == 1
        node = failed.node if same and verdict.cause != UNDETERMINED else None
    return rank, node


def _implied(verdict: Verdict, cause: Cause) -> int | None:
    """Exit code of a process that dies so; where the line is an exception of Python, its rank returns 1."""
    return 1 if verdict.events and _RAISED.search(verdict.events[0].rest) else cause.exit_code


def _rank_of(rank: int | None, origin: str, job: Facts) -> int | None:
    """A task of srun is a rank only where srun started the ranks itself."""
    return None if origin == "srun" and job.launcher else rank


def _reason(verdict: Verdict) -> str:
    if not verdict.events:
        return ""
    event = verdict.events[0]
    who = f"rank {event.rank} " if event.rank is not None and verdict.blame_writer else ""
    return f"{who}first, in line {event.number} of {event.source}"


def _cascade(verdict: Verdict, evidence: reading.Evidence) -> list[Follower]:
    """Kinds of lines that follow: symptoms, teardown and causes of others, by first occurrence."""
    used = {(event.file, event.number) for event in verdict.events}
    first: dict[str, Event] = {}
    counts: dict[str, int] = {}
    for event in evidence.with_role("symptom", "teardown", "error", "root"):
        if (event.file, event.number) in used or event.pattern.cause == verdict.cause:
            continue
        first.setdefault(event.pattern.id, event)
        counts[event.pattern.id] = counts.get(event.pattern.id, 0) + 1
    ordered = sorted(first.values(), key=lambda event: event.at)
    return [Follower(one.pattern.id, counts[one.pattern.id], Evidence.of(one)) for one in ordered[:MOST_FOLLOWERS]]


def _innocent(verdict: Verdict, evidence: reading.Evidence, rank: int | None) -> list[str]:
    """Ranks that only report: they wait in collectives, or lost their partner."""
    ranks = sorted({event.rank for event in evidence.with_role("symptom") if event.rank is not None} - {rank})
    if not ranks:
        return []
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return [f"rank {shown}: reports what it sees, did not begin it"]
