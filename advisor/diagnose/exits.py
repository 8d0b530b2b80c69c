"""What exit codes alone allow to say, and which of several exit codes belongs to the first failure."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.diagnose.events import Evidence
from advisor.diagnose.facts import TERMINATED, Facts, Failure
from advisor.diagnose.patterns import UNDETERMINED, Confidence
from advisor.diagnose.verdict import Verdict

ORIGINS = ("banner", "agent", "srun", "said")
KILLED = 137
# Codes that no partner's failure brings about: crashes (SIGSEGV, SIGILL, SIGFPE) and the rerun state machine.
TELLING = {139, 132, 136, 16, 17}
# Code of the process that failed first -> cause where no line says more.
MEANING: dict[int, tuple[str, Confidence, str]] = {
    139: ("native_crash", "medium", "the process crashed (SIGSEGV) and left no Python traceback"),
    132: ("native_crash", "medium", "the process crashed (SIGILL)"),
    136: ("native_crash", "medium", "the process crashed (SIGFPE)"),
    135: ("shm_full", "low", "the process died of a bus error; a full /dev/shm is the usual reason"),
    134: (UNDETERMINED, "low", "the process aborted itself (SIGABRT); the lines above that are missing"),
    143: ("preempted", "low", "the process was asked to stop from outside (SIGTERM)"),
    16: ("rerun_exit", "medium", "exit code 16: the rerun state machine asks for a restart on other hardware"),
    17: ("rerun_exit", "medium", "exit code 17: validation of results failed in the rerun state machine"),
    KILLED: (
        UNDETERMINED,
        "low",
        "the process was killed (SIGKILL) and no line says by whom: host memory, or somebody",
    ),
}


def first_failure(facts: Facts) -> Failure | None:
    """The process that failed first: torch's root cause, else the first that was not merely terminated."""
    roots = [one for one in facts.failures if one.root]
    own = [one for one in facts.failures if one.exit_code not in {TERMINATED, 0}]
    for origin in ORIGINS:
        for pool in (roots, own):
            found = next((one for one in pool if one.origin == origin), None)
            if found is not None:
                return found
    return next((one for one in facts.failures if one.exit_code), None)


def by_exit_code(evidence: Evidence, facts: Facts) -> Verdict | None:
    """A verdict from exit codes alone, or None where there is none or symptoms say as much."""
    failed = first_failure(facts)
    closed = evidence.of("rdzv-cascade")
    if closed and (failed is None or failed.exit_code == 1) and not evidence.with_role("symptom"):
        return Verdict(
            "rendezvous", "low", (), "the rendezvous was closed, and no line says by whom", tuple(closed[:2])
        )
    if failed is None:
        return None
    if evidence.with_role("symptom") and failed.exit_code not in TELLING and not failed.root:
        return None
    cause, confidence, said = MEANING.get(
        failed.exit_code, (UNDETERMINED, "low", f"exit code {failed.exit_code}, and no line says why")
    )
    lines = tuple(one.event for one in facts.failures[:3])
    ranks = () if failed.rank is None or (failed.origin == "srun" and facts.launcher) else (failed.rank,)
    return Verdict(cause, confidence, ranks, said, lines, failed.node, True, failed.exit_code)


def code_of(cause_code: int | None, rank: int | None, node: str | None, outside: bool, facts: Facts) -> int | None:
    """Exit code of the first failure: of that rank, else of that node, else the first; else what the cause implies.

    `outside` says that the job was stopped from outside: then SIGTERM is the code, not a consequence.
    """
    pool: Sequence[Failure] = facts.failures
    if not outside:
        pool = [one for one in pool if one.exit_code != TERMINATED]
    for chosen in (
        [
            one
            for one in pool
            if rank is not None and one.rank == rank and not (one.origin == "srun" and facts.launcher)
        ],
        [one for one in pool if one.root],
        [one for one in pool if node is not None and one.node == node],
        pool,
    ):
        for origin in ORIGINS:
            found = next((one for one in chosen if one.origin == origin), None)
            if found is not None:
                return found.exit_code
    return cause_code
