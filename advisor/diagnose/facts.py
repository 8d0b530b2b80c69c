"""What a log says about the job as a whole: who failed with which exit code, where ranks run, how far training came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from advisor.diagnose.events import Event, Evidence

SIGNALS = {
    "Segmentation fault": 139, "Killed": 137, "Aborted": 134, "Bus error": 135, "Terminated": 143,
    "Out Of Memory": 137, "Illegal instruction": 132, "Floating point exception": 136,
}  # fmt: skip
TERMINATED = 143
MOST_TASKS = 4096


@dataclass(frozen=True, slots=True)
class Failure:
    """A process that ended badly: `exit_code` as 128 + signal; `origin` is banner, agent, srun or said."""

    rank: int | None
    local_rank: int | None
    node: str | None
    exit_code: int
    origin: str
    root: bool
    event: Event


@dataclass(frozen=True, slots=True)
class Progress:
    """An iteration that was reported done; `event` is the line."""

    at: int
    iteration: int
    event: Event


@dataclass(frozen=True, slots=True)
class Facts:
    """Failures in order, world size, nodes of ranks, progress in order.

    `launcher` says that torchrun or ft_launcher stood between Slurm and the ranks, so that a task is a node; several
    tasks on one node speak against it.
    """

    failures: tuple[Failure, ...]
    world_size: int | None
    nodes: dict[int, str]
    launcher: bool
    progress: tuple[Progress, ...]

    def node_of(self, rank: int | None) -> str | None:
        """Node of a rank, as far as the log tells."""
        return None if rank is None else self.nodes.get(rank)

    def advanced_after(self, event: Event) -> int:
        """Iterations made after an event (0 = none); lines of other logs count only where both have a time."""
        comparable = [
            one for one in self.progress
            if one.event.file == event.file or (one.event.time_s is not None and event.time_s is not None)
        ]  # fmt: skip
        before = [one.iteration for one in comparable if one.at < event.at]
        after = [one.iteration for one in comparable if one.at > event.at]
        return max(after) - (before[-1] if before else min(after)) if after else 0

    def last_progress(self, before: int) -> int:
        """Place of the last iteration before a place, or -1."""
        return max((one.at for one in self.progress if one.at < before), default=-1)


def exit_code(code: int) -> int:
    """An exit code as a shell shows it: 128 + signal for a process that a signal ended."""
    return 128 - code if code < 0 else code


def facts(evidence: Evidence) -> Facts:
    """Read the facts out of the events of a job."""
    failures = (*_banners(evidence), *_launchers(evidence), *_agents(evidence), *_srun(evidence), *_said(evidence))
    worlds = [int(event.fields["world"]) for event in evidence.of("world") if "world" in event.fields]
    many = any(len(list(_tasks(event.fields["tasks"]))) > 1 for event in evidence.of("srun-exit"))
    many = many or any(int(event.fields["tasks"]) > 1 for event in evidence.of("tasks-per-node"))
    launcher = bool(evidence.of("torchrun", "banner-rank", "agent-exit")) and not many
    ordered = tuple(sorted(failures, key=lambda one: one.event.at))
    nodes: dict[int, str] = {}
    for event in evidence.events:
        if event.rank is not None and event.node and event.pattern.role != "fact":
            nodes.setdefault(event.rank, event.node)
    for one in ordered:
        if one.rank is not None and one.node and (one.origin == "banner" or (one.origin == "srun" and not launcher)):
            nodes.setdefault(one.rank, one.node)
    return Facts(ordered, worlds[-1] if worlds else None, nodes, launcher, _progress(evidence))


def _progress(evidence: Evidence) -> tuple[Progress, ...]:
    done = []
    for event in evidence.of("iteration"):
        number = next((event.fields[name] for name in ("iteration", "step", "third") if name in event.fields), None)
        if number is not None:
            done.append(Progress(event.at, int(number), event))
    return tuple(done)


def _banners(evidence: Evidence) -> Iterator[Failure]:
    """Blocks of torch's failure banner: host, rank, exitcode; the one below "Root Cause" failed first."""
    blocks: dict[int, tuple[bool, str | None, Event | None]] = {}
    for event in evidence.of("banner-start", "banner-host", "banner-rank", "banner-exit"):
        root, node, rank = blocks.get(event.file, (False, None, None))
        match event.pattern.id:
            case "banner-start":
                blocks[event.file] = ("root" in event.fields, None, None)
            case "banner-host":
                blocks[event.file] = (root, event.fields["node"], None)
            case "banner-rank":
                blocks[event.file] = (root, node, event)
            case _:
                code = exit_code(int(event.fields["code"]))
                who = rank.fields if rank else {}
                yield Failure(
                    int(who["rank"]) if who else None,
                    int(who["local"]) if who else None,
                    node,
                    code,
                    "banner",
                    root,
                    event,
                )
                blocks[event.file] = (root, None, None)


def _launchers(evidence: Evidence) -> Iterator[Failure]:
    """The first failure that ft_launcher of nvidia-resiliency-ext lists, its own kind of banner."""
    for event in evidence.of("ft-ranks"):
        who, code = event.fields, exit_code(int(event.fields["code"]))
        yield Failure(int(who["rank"]), int(who["local"]), event.node, code, "banner", True, event)


def _agents(evidence: Evidence) -> Iterator[Failure]:
    for event in evidence.of("agent-exit"):
        code = exit_code(int(event.fields["code"]))
        yield Failure(event.rank, int(event.fields["local"]), event.node, code, "agent", False, event)


def _srun(evidence: Evidence) -> Iterator[Failure]:
    for event in evidence.of("srun-exit"):
        fields = event.fields
        code = int(fields["code"]) if "code" in fields else SIGNALS[fields["signal"]]
        tasks = list(_tasks(fields["tasks"]))
        yield Failure(tasks[0] if len(tasks) == 1 else None, None, fields["node"], code, "srun", False, event)


def _said(evidence: Evidence) -> Iterator[Failure]:
    for event in evidence.of("shell-exit"):
        yield Failure(event.rank, event.local_rank, event.node, SIGNALS[event.fields["signal"]], "said", False, event)
    for event in evidence.of("ftl-exit"):
        code = exit_code(int(event.fields["code"]))
        if 0 < code < 256:
            rank = int(event.fields["rank"]) if "rank" in event.fields else event.rank
            yield Failure(rank, event.local_rank, event.node, code, "said", False, event)


def _tasks(text: str) -> Iterator[int]:
    """Task numbers of a Slurm list, 0-7,12."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            yield from range(int(first), min(int(last or first), int(first) + MOST_TASKS) + 1)
