"""What tables of nccl-tests say of a cluster: curves inside and across NVLink domains, and the coefficients behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.cost.profile import COLLECTIVES, Coefficient, load_profile
from advisor.errors import InputError
from advisor.fit.nccl_tests import LeftOut, NcclTable, read_nccl_log
from advisor.fit.own import own_entries
from advisor.fit.own_system import own_system
from advisor.spec.hardware import System
from advisor.spec.load.system import load_system
from advisor.units import gbs_to_bps

IN_RING = frozenset({"all_gather", "reduce_scatter", "all_reduce"})
HELD_POINTS = 2
"""A curve needs two sizes; one size tells no bandwidth from latency."""


@dataclass(frozen=True, slots=True, eq=False)
class NetworkCalibration:
    """Measured collectives of `system`: `inside` and `across` are the tables by where their ranks lie.

    `fitted` are coefficients by name, `kernels` the curves in the form of profiles/kernels, `left_out` lines of logs
    that are not used and `notes` what was done to the rest.
    """

    system: str
    gpu: str
    inside: tuple[NcclTable, ...]
    across: tuple[NcclTable, ...]
    fitted: Mapping[str, Coefficient]
    kernels: Mapping[str, Any]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        """The system file with these measurements in it, for --system of every verb."""
        names = ", ".join(dict.fromkeys(one.source for one in (*self.inside, *self.across)))
        note = f"Network of an own cluster, measured by nccl-tests: {names}"
        return own_system(self.system, own_entries(self.fitted), self.kernels, note)


def calibrate_network(logs: Sequence[Path], system: str) -> NetworkCalibration:
    """Curves and coefficients of a system from logs of nccl-tests.

    A group lies inside an NVLink domain if it spans no more nodes than one has. Several tables of the same operation
    and ranks are joined, the shortest time of a size first. Raises InputError for logs that do not fit the system.
    """
    found = load_system(system)
    tables = [table for path in logs for table in read_nccl_log(path)]
    for table in tables:
        _fits(table, found)
    inside = tuple(one for one in tables if _domains(one, found) == 1)
    across = tuple(one for one in tables if _domains(one, found) > 1)
    kernels, notes = _kernels(found, inside, across)
    return NetworkCalibration(
        system=system,
        gpu=found.gpu.name,
        inside=inside,
        across=across,
        fitted=_coefficients(found, inside, across),
        kernels=kernels,
        left_out=tuple(one for table in tables for one in table.left_out),
        notes=tuple(notes),
    )


def _fits(table: NcclTable, system: System) -> None:
    if table.ranks > table.nodes * system.gpus_per_node:
        raise InputError(
            f"{table.source}: {table.ranks} ranks on {table.nodes} nodes, a node of {system.name} has"
            f" {system.gpus_per_node} GPUs",
            "name the system that the logs come from: --system",
        )


def _kernels(
    system: System, inside: Sequence[NcclTable], across: Sequence[NcclTable]
) -> tuple[dict[str, Any], list[str]]:
    """Curves by operation and ranks inside a domain, and by operation and domains across."""
    shipped = load_profile(system.gpu)
    notes: list[str] = []
    link = gbs_to_bps(system.nvlink_uni_gbs if system.nvlink_domain > 1 else system.gpu.pcie_uni_gbs)
    faster = shipped.table_link_Bps / link
    near = _curves(inside, lambda table: (table.ranks, faster), notes)
    far = _curves(across, lambda table: _far(table, system), notes)
    kernels: dict[str, Any] = {}
    if near:
        kernels["collectives_us"] = near
    if far:
        kernels["network_us"] = far
    if kernels:
        names = ", ".join(dict.fromkeys(one.source for one in (*inside, *across)))
        kernels["sources"] = [*shipped.sources, f"own cluster, nccl-tests: {names}"]
    return kernels, notes


def _far(table: NcclTable, system: System) -> tuple[int, float]:
    """Domains of a table, and bytes per card of a domain over the bytes it prints (see cost.network)."""
    domains = _domains(table, system)
    shares = table.operation in {"all_to_all", "send_recv"}
    return domains, 1.0 if shares else domains / table.ranks


def _domains(table: NcclTable, system: System) -> int:
    """NVLink domains that the nodes of a table fill."""
    nodes = max(1, system.nvlink_domain // system.gpus_per_node)
    return max(-(-table.nodes // nodes), -(-table.ranks // max(1, system.nvlink_domain)))


def _curves(
    tables: Sequence[NcclTable], place: Callable[[NcclTable], tuple[int, float]], notes: list[str]
) -> dict[str, Any]:
    """Curves {operation: {"ranks": {bytes, us}}}; `place` gives the ranks and what bytes are multiplied by."""
    points: dict[tuple[str, int], dict[float, float]] = {}
    for table in tables:
        if table.operation in COLLECTIVES:
            ranks, scale = place(table)
            own = points.setdefault((table.operation, ranks), {})
            for size, time in table.seconds.items():
                x = float(f"{size * scale:.9g}")
                own[x] = min(own.get(x, time), time)
    out: dict[str, Any] = {}
    for (operation, ranks), own in sorted(points.items()):
        if len(own) < HELD_POINTS:
            notes.append(f"{operation} on {ranks}: one size alone makes no curve")
            continue
        sizes = sorted(own)
        slower = [at for at, size in enumerate(sizes) if any(own[larger] <= own[size] for larger in sizes[at + 1 :])]
        if slower:
            notes.append(f"{operation} on {ranks}: {len(slower)} sizes were slower than a larger one and are left out")
        kept = [size for at, size in enumerate(sizes) if at not in slower]
        if len(kept) >= HELD_POINTS:
            us = [float(f"{1e6 * own[size]:.6g}") for size in kept]
            out.setdefault(operation, {})[str(ranks)] = {"bytes": kept, "us": us}
    return out


def _coefficients(system: System, inside: Sequence[NcclTable], across: Sequence[NcclTable]) -> dict[str, Coefficient]:
    """What formulae use beside the curves: share of the network card, its latency, and the same of a message."""
    profile = load_profile(system.gpu)
    found: dict[str, tuple[float, str]] = {}
    for name, value, source in (*_network(across, system), *_messages(inside, system)):
        if name not in found or (value > found[name][0]) == (not name.endswith("_s")):
            found[name] = (value, source)
    return {name: _measured(name, profile.coefficients[name], value, source) for name, (value, source) in found.items()}


def _network(across: Sequence[NcclTable], system: System) -> Iterator[tuple[str, float, str]]:
    """Best bus bandwidth over what the cards of a rank can do, and the least time of a phase.

    All-to-all sends only (n - inside) / n of its bytes across and is left out of the share, unless nothing else is
    there; a ring of messages crosses with one card of each domain.
    """
    card_Bps = gbs_to_bps(system.inter_domain_uni_gbs)
    rings = [table for table in across if table.operation in IN_RING]
    for table in rings:
        cards = table.ranks / _domains(table, system)
        yield "network_share", table.best_Bps / cards / card_Bps, table.source
    for table in across:
        if table.operation == "send_recv" and not rings:
            yield "network_share", table.best_Bps / card_Bps, table.source
        phases = 2 if table.operation == "all_reduce" else 1
        yield "network_latency_s", min(table.seconds.values()) / phases, table.source


def _messages(inside: Sequence[NcclTable], system: System) -> Iterator[tuple[str, float, str]]:
    link = gbs_to_bps(system.nvlink_uni_gbs if system.nvlink_domain > 1 else system.gpu.pcie_uni_gbs)
    for table in inside:
        if table.operation == "send_recv":
            yield "p2p_link_share", table.best_Bps / link, table.source
            yield "p2p_latency_s", min(table.seconds.values()), table.source


def _measured(name: str, old: Coefficient, value: float, source: str) -> Coefficient:
    """The measured value with bounds that hold it, a share of a link at most 1; `start` is what was known before."""
    held = min(value, 1.0) if name.endswith("_share") else value
    low, high = min(old.low, held), max(old.high, held)
    return Coefficient(held, low, high, "measured", f"nccl-tests: {source}", old.start)
