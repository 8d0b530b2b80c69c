"""What became of a process group: measured, or which rank failed of what, with the lines that say so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from advisor.diagnose.diagnosis import Diagnosis
from advisor.diagnose.run import diagnose
from advisor.errors import InputError
from advisor.trial.processes import Ended
from advisor.trial.progress import Progress, lines_of

Kind = Literal[
    "measured", "oom", "nan", "hang", "collective timeout", "crash", "queue timeout", "start-up timeout",
    "total timeout", "time limit", "preempted", "node failure", "cancelled",
]  # fmt: skip

MOST_LINES = 12
LEAST_STEPS = 3
# How torch says that a collective was not joined in time: the watchdog of NCCL, and gloo.
NOT_JOINED = re.compile(
    r"aught collective operation timeout.*OpType=(?P<op>\w+)|NCCL operations have failed or timed out"
    r"|gloo\S* Timed out waiting \d+ms"
)
OF_MEMORY = {"cuda_oom", "cuda_oom_fragmentation", "host_oom"}
# States of Slurm in which a job was ended from outside, and what to do.
ENDED_BY: Mapping[str, tuple[Kind, str]] = {
    "TIMEOUT": ("time limit", "more --time, or fewer --steps"),
    "DEADLINE": ("time limit", "more time before the deadline of the job, or fewer --steps"),
    "PREEMPTED": ("preempted", "--restarts, or a partition or quality of service that is not preempted"),
    "NODE_FAIL": ("node failure", "--restarts; the controller's log names the node"),
    "BOOT_FAIL": ("node failure", "--restarts; the controller's log names the node"),
    "CANCELLED": ("cancelled", "--resume runs it again"),
    "REVOKED": ("cancelled", "--resume runs it again"),
    "OUT_OF_MEMORY": ("oom", "more memory per node: --exclusive"),
}
CUT_OFF = {"time limit", "preempted", "cancelled"}
# What says nothing about a layout, so that a resumed call runs it again.
CUT_FROM_OUTSIDE = CUT_OFF | {"queue timeout", "node failure"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial has no measurement: cause (of the diagnosis, or the outcome), rank, exit code, lines, what to do."""

    cause: str
    rank: int | None
    exit_code: int | None
    message: str
    excerpt: tuple[str, ...] = ()
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "excerpt": list(self.excerpt)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The kind, why there is no measurement (None for a measured trial), and what every rank left."""

    kind: Kind
    failure: Failure | None
    ranks: tuple[Mapping[str, Any], ...]


def outcome_of(ended: Ended, folder: Path, world: int) -> Outcome:
    """Judge a group by how it ended and by what its ranks left in `folder`."""
    ranks = tuple(_ranks(folder))
    if ended.ending == "ended" and ended.exit_code == 0 and len(ranks) == world:
        return Outcome("measured", None, ranks)
    for kind in ("oom", "nan"):
        told = next((rank for rank in ranks if rank["outcome"] == kind), None)
        if told is not None:
            lines = _tail(folder, told["rank"])
            failure = Failure(kind, told["rank"], 1, str(told["message"]), lines)
            return Outcome("oom" if kind == "oom" else "nan", failure, ranks)
    by, fix = ENDED_BY.get("" if ended.job is None or ended.ending != "ended" else ended.job["state"], (None, ""))
    cut = ended.ending in {"stopped", "total timeout"} or by in CUT_OFF
    if cut and _steady_steps(folder, world) >= LEAST_STEPS:
        return Outcome("measured", None, ranks)
    if by is not None or ended.ending != "ended":
        return _overrun(ended, by, fix, folder, ranks)
    return _crash(ended, folder, ranks, world)


def _overrun(ended: Ended, by: Kind | None, fix: str, folder: Path, ranks: tuple[Mapping[str, Any], ...]) -> Outcome:
    """A group that was ended from outside: by a limit of the runner, or (`by`) by the scheduler."""
    progress = Progress(folder)
    progress.read()
    rank = progress.laggard
    reached = progress.reached.get(rank if rank is not None else 0, {})
    where = f"step {reached['number']}" if "number" in reached else str(reached.get("at", "nothing"))
    who = "all ranks" if rank is None else f"rank {rank}"
    kind: Kind = by or ("hang" if ended.ending == "step timeout" else ended.ending)  # type: ignore[assignment]
    said = ended.ending if by is None or ended.job is None else f"{by} (Slurm: {ended.job['state']})"
    words = f"{said} after {ended.seconds:.0f} s; the last that {who} reached is {where}"
    return Outcome(kind, Failure(kind, rank, None, words, _tail(folder, rank or 0), fix), ranks)


def _crash(ended: Ended, folder: Path, ranks: tuple[Mapping[str, Any], ...], world: int) -> Outcome:
    found = _diagnosis(folder)
    told = [rank for rank in ranks if rank["outcome"] == "crash"]
    rank = found.first_failing_rank if found is not None else None
    if rank is None and len(told) == 1:
        rank = told[0]["rank"]
    if found is not None and found.found:
        lines = tuple(line.text for line in found.evidence)[:MOST_LINES]
        failure = Failure(found.cause_id, rank, found.exit_code, f"{found.title}: {found.reason}", lines, found.fix)
        return Outcome("oom" if found.cause_id in OF_MEMORY else "crash", failure, ranks)
    waited = _not_joined(folder)
    if waited:
        return Outcome("collective timeout", _missing(waited, world, folder), ranks)
    words = next((str(one["message"]) for one in told if one["rank"] == rank), "a rank ended")
    code = found.exit_code if found is not None and found.exit_code is not None else ended.exit_code
    return Outcome("crash", Failure("crash", rank, code, words, _tail(folder, rank or 0)), ranks)


def _not_joined(folder: Path) -> dict[int, str]:
    """The line with which a rank says that others have not come to a collective in time, by rank."""
    found: dict[int, str] = {}
    for path in sorted(folder.glob("logs/*/attempt_0/*/stderr.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        line = next((line for line in lines if NOT_JOINED.search(line)), None)
        if line is not None and path.parent.name.isdigit():
            found[int(path.parent.name)] = line
    return found


def _missing(waited: Mapping[int, str], world: int, folder: Path) -> Failure:
    """Names the rank that did not come: the only one that did not wait, or the one that has come least far."""
    progress = Progress(folder)
    progress.read()
    absent = [rank for rank in range(world) if rank not in waited]
    rank = absent[0] if len(absent) == 1 else progress.laggard
    who, line = next(iter(waited.items()))
    said = NOT_JOINED.search(line)
    what = said["op"] if said is not None and said["op"] else "a collective"
    missing = "which others did not join in time" if rank is None else f"which rank {rank} did not join in time"
    excerpt = (line, *(() if rank is None else _own_lines(folder, rank)))[:MOST_LINES]
    words = f"rank {who} waited for {what}, {missing}"
    return Failure("collective_timeout", rank, None, words, excerpt, "look for a hang or slow work on the rank missed")


def _diagnosis(folder: Path) -> Diagnosis | None:
    logs = [folder / "stderr", *sorted(folder.glob("logs/*/attempt_0/*/std*.log"))]
    try:
        return diagnose([str(path) for path in logs if path.exists() and path.stat().st_size])
    except InputError:
        return None


def _ranks(folder: Path) -> list[Mapping[str, Any]]:
    paths = sorted(folder.glob("rank-*.json"), key=lambda path: int(path.stem.removeprefix("rank-")))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _tail(folder: Path, rank: int) -> tuple[str, ...]:
    """The last lines that a rank wrote to its stderr, those of what started it where it wrote none."""
    return _own_lines(folder, rank) or _last_lines(folder / "stderr")


def _own_lines(folder: Path, rank: int) -> tuple[str, ...]:
    paths = sorted(folder.glob(f"logs/*/attempt_0/{rank}/stderr.log"))
    return next((lines for lines in map(_last_lines, paths) if lines), ())


def _last_lines(path: Path) -> tuple[str, ...]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return tuple(lines[-MOST_LINES:])


def steady_steps(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Lines of the steady steps that every rank has told of, by rank; also of a group that was cut off."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in folder.glob("progress-*.jsonl"):
        lines = lines_of(path.read_bytes().rpartition(b"\n")[0])
        rank = int(path.stem.removeprefix("progress-"))
        found[rank] = [line for line in lines if line["at"] == "step" and line["phase"] == "steady"]
    return found


def _steady_steps(folder: Path, world: int) -> int:
    found = steady_steps(folder)
    return min(map(len, found.values())) if len(found) == world else 0
