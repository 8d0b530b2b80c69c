"""Reads logs of nccl-tests: seconds of a collective by size, and on how many ranks and nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import InputError

OPERATIONS = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
}
"""Names of nccl-tests programs without _perf, as profiles call the operation."""
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)")
_LINE = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)")
_PROGRAM = re.compile(r"(all_gather|reduce_scatter|all_reduce|alltoall)_perf")


@dataclass(frozen=True, slots=True)
class NcclLog:
    """One operation on `ranks` ranks of `nodes` nodes: out-of-place seconds by bytes of the full tensor."""

    operation: str
    ranks: int
    nodes: int
    seconds: Mapping[int, float]

    def bus_Bps(self, n_bytes: int) -> float:
        """Bus bandwidth at one size, as nccl-tests defines it: bytes per second x (n - 1) / n, twice for all-reduce."""
        share = (self.ranks - 1) / self.ranks * (2 if self.operation == "all_reduce" else 1)
        return n_bytes / self.seconds[n_bytes] * share


def read_nccl_log(path: Path) -> NcclLog:
    """A log of one nccl-tests program. InputError if operation, ranks or a table of times cannot be found in it.

    The operation is the name of the program in the log, or in the name of the file where the log has none.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from error
    named = _PROGRAM.search("\n".join(lines)) or re.search("|".join(OPERATIONS), path.name)
    ranks = {int(found[1]): found[2] for found in map(_RANK.match, lines) if found}
    seconds = {int(found[1]): 1e-6 * float(found[6]) for found in map(_LINE.match, lines) if found}
    seconds = {size: time for size, time in seconds.items() if size and time}
    for found, what in ((named, "the name of the operation"), (ranks, "its ranks"), (seconds, "a table of times")):
        if not found:
            raise InputError(
                f"{path}: {what} is missing", "give the full output of all_gather_perf, all_reduce_perf, ..."
            )
    operation = named[0].removesuffix("_perf") if named else ""
    return NcclLog(OPERATIONS[operation], len(ranks), len(set(ranks.values())), seconds)


@dataclass(frozen=True, slots=True)
class Network:
    """What logs say of a cluster: share of the network card that is reached, and latency between nodes."""

    share: float | None
    latency_s: float | None


def network_of(logs: Sequence[NcclLog], card_Bps: float) -> Network:
    """Best bus bandwidth across nodes over what the cards of a rank can do, and the least time across nodes.

    All-to-all sends only (n - inside) / n of its bytes across and is left out of the share.
    """
    across = [log for log in logs if log.nodes > 1]
    shares = []
    for log in across:
        if log.operation != "all_to_all":
            per_rank = max(log.bus_Bps(size) for size in log.seconds) / (log.ranks / log.nodes)
            shares.append(per_rank / card_Bps)
    phases = [min(log.seconds.values()) / (2 if log.operation == "all_reduce" else 1) for log in across]
    return Network(max(shares, default=None), min(phases, default=None))
