"""Who wrote a line: global rank, local rank and node, from the tags of torch, srun, torchrun, NCCL and file names."""

from __future__ import annotations

import re
from dataclasses import dataclass

HOST = r"[A-Za-z][A-Za-z0-9]*(?:[-.][A-Za-z0-9]+)*[-A-Za-z]*\d[A-Za-z0-9.-]*|[A-Za-z][\w-]*\d"


@dataclass(frozen=True, slots=True)
class Tag:
    """Writer of a line; None = the line does not say. `rest` is the line without its tags."""

    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    rest: str = ""


_RANK = re.compile(r"\[rank ?(?P<rank>\d+)\]:? ?", re.IGNORECASE)
_SRUN = re.compile(r"(?P<rank>\d{1,6}): ")
_RAISING = re.compile(r"\d{1,6}: (?:Traceback \(|  File \"|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b)")
_DEFAULT = re.compile(r"\[(?:default|trainer|worker)(?P<local>\d+)\]: ?")
_NODE_RANK = re.compile(rf"\[(?P<node>{HOST})[:/](?:rank ?)?(?P<rank>\d+)\]:? ?")
_NODE = re.compile(rf"(?P<node>{HOST}): ")
_NCCL = re.compile(r"(?P<node>[\w.-]+):\d+:\d+ \[(?P<local>\d+)\] ")
_KERNEL = re.compile(r"(?:[A-Z][a-z]{2} +\d+ [\d:]+ |\S+T[\d:.+-]+Z? )?(?P<node>[\w.-]+) kernel:")
_MPIRUN = re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:err|out)>: ?")
_RAY = re.compile(r"\((?:\w+ )?pid=\d+(?:, ip=(?P<node>[\d.]+))?\) ")
_STAMP = re.compile(r"\[?20\d\d[-/]\d\d[-/]\d\d[T _][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?:? (?:std(?:out|err) [FP] )?")
_CLOCK = re.compile(r"\[?[0-2]\d:[0-5]\d:[0-6]\d(?:[.,]\d{1,9})?\]? ")
_COMPOSE = re.compile(rf"(?P<node>{HOST}) +\| ")
_SYSLOG = re.compile(r"[A-Z][a-z]{2} +\d{1,2} [\d:]{8} (?P<node>[\w.-]+) (?!kernel)[\w./-]+(?:\[\d+\])?: ")
_NAMED_RANK = re.compile(r"rank(?P<rank>\d{1,6}): ?")
_BARE_LOCAL = re.compile(r"\[(?P<local>\d{1,3})\]: ?")
_MONITOR = re.compile(r"\[(?:RankMon\w*Server|ft_launcher)\d*@(?P<node>[\w.-]+)(?::(?P<rank>\d+))?(?:[:<>\w]*)?\]")
_SAID = re.compile(r"\[[Rr]ank ?(?P<first>\d+)\]|\bRank (?P<second>\d+)\]")
_NO_NODE = re.compile(
    r"^(?:rank|attempt|iteration|epoch|step|default|worker|gpu|cuda|python|torch|line|pid|step)[\d.:_-]*$", re.I
)

_FILE_RANK = re.compile(r"(?:^|[/_.-])(?:global_?)?rank[_-]?(\d+)(?=\D|$)", re.IGNORECASE)
_FILE_LOCAL = re.compile(r"(?:^|/)attempt_\d+/(\d+)/(?:stdout|stderr)(?:\.log)?$")
_FILE_NODE = re.compile(
    r"(?:^|[/_.])(?P<node>(?:node|host|gpu|worker|n|h|compute|cn|nid)-?[a-z]*\d[\w-]*?)(?=[._/]|$)", re.I
)


def read_tag(text: str, numbered: bool = False) -> Tag:
    """Tags at the head of `text`, any number of them in any order.

    `numbered` says that the log labels lines as `srun --label` does (`12: ...`), where a bare number is a task; before
    a traceback it is one anyway.
    """
    rank: int | None = None
    local: int | None = None
    node: str | None = None
    rest = text
    for _ in range(5):
        if match := _RANK.match(rest):
            rank = int(match["rank"])
        elif match := _DEFAULT.match(rest):
            local = int(match["local"])
        elif match := _NODE_RANK.match(rest):
            rank, node = int(match["rank"]), match["node"]
        elif match := _MPIRUN.match(rest):
            rank = int(match["rank"])
        elif match := _RAY.match(rest):
            node = node or match["node"]
        elif (match := _STAMP.match(rest)) or (match := _CLOCK.match(rest)):
            pass
        elif match := _NAMED_RANK.match(rest):
            rank = int(match["rank"])
        elif match := _BARE_LOCAL.match(rest):
            local = int(match["local"])
        elif rank is None and (numbered or node is not None or _RAISING.match(rest)) and (match := _SRUN.match(rest)):
            rank = int(match["rank"])
        elif (
            node is None
            and ((match := _NODE.match(rest)) or (match := _COMPOSE.match(rest)) or (match := _SYSLOG.match(rest)))
            and not _NO_NODE.match(match["node"])
        ):
            node = match["node"]
        else:
            break
        rest = rest[match.end() :]
    if match := _NCCL.match(rest):
        node, local = node or match["node"], int(match["local"])
    elif match := _KERNEL.match(rest):
        node = match["node"]
    elif match := _MONITOR.search(rest[:160]):
        node, rank = node or match["node"], int(match["rank"]) if rank is None and match["rank"] else rank
    if rank is None and (said := _SAID.search(rest[:200])):
        rank = int(said["first"] or said["second"])
    return Tag(rank, local, node, rest)


def is_numbered(lines: list[str]) -> bool:
    """Whether most of the first lines of a log begin with a task number."""
    labelled = sum(_SRUN.match(line) is not None for line in lines)
    return labelled >= 2 and labelled * 5 >= len(lines) * 4


def file_tag(name: str) -> Tag:
    """What the name of a log says about its writer: `rank_3.log`, `attempt_0/3/stderr.log`, `node-004.out`."""
    rank = _FILE_RANK.search(name)
    local = _FILE_LOCAL.search(name)
    node = _FILE_NODE.search(name.rsplit("/", 1)[-1])
    return Tag(
        int(rank[1]) if rank else None, int(local[1]) if local else None, node["node"] if node else None
    )  # fmt: skip
