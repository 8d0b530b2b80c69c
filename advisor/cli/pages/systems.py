"""Pages of the system presets: all of them with GPU and wiring, and one in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import NONE, count, figure
from advisor.spec.hardware import System
from advisor.spec.load.system import load_system, system_names

LIST_COLUMNS = (
    Column("system", "name"), Column("GPU", "name"), Column("memory\nGiB"), Column("HBM\nGB/s"),
    Column("bf16\nTFLOP/s"),
    Column("GPUs\nper node"), Column("NVLink\ndomain"), Column("NVLink\nGB/s"), Column("network\nGb/s"),
)  # fmt: skip


def list_document() -> Document:
    """All presets by name."""
    systems = [load_system(name) for name in system_names()]
    rows = tuple(
        (
            system.name,
            system.gpu.name,
            figure(system.gpu.hbm_gib),
            figure(system.gpu.hbm_gbs),
            figure(system.gpu.peak_tflops.get("bf16")),
            count(system.gpus_per_node),
            count(system.nvlink_domain),
            figure(system.nvlink_uni_gbs),
            figure(system.nic_gbps_per_gpu),
        )
        for system in systems
    )
    record = [_record(system) for system in systems]
    note = Line("bandwidths are per GPU and direction; a GPU name (h100) stands for its usual system", "dim")
    return Document((Table("", LIST_COLUMNS, rows), note), {"schema_version": 1, "systems": record}, record)


def show_document(name: str) -> Document:
    """One system: its GPU, its wiring, sources."""
    system = load_system(name)
    record = _record(system)
    return Document(
        tuple(_show(system)),
        {"schema_version": 1, **record},
        [record],
        (f"next: advisor plan --model minimax-m2 --system {name} --gpus auto",),
    )


def _show(system: System) -> Iterator[Block]:
    gpu = system.gpu
    yield Line(f"{system.name} ({gpu.name})", "heading")
    usable = NONE if gpu.usable_gib is None else f"{figure(gpu.usable_gib)} usable ({gpu.usable_kind})"
    yield Facts(
        "",
        (
            ("GPU memory GiB", figure(gpu.hbm_gib), usable),
            ("HBM GB/s", figure(gpu.hbm_gbs), ""),
            ("architecture", gpu.arch, f"compute capability {gpu.compute_capability}, {count(gpu.sm_count)} SMs"),
            ("GPUs per node", count(system.gpus_per_node), f"NVLink domain of {count(system.nvlink_domain)}"),
            ("NVLink GB/s", figure(system.nvlink_uni_gbs), "per GPU, one direction"),
            (
                "network GB/s",
                figure(system.inter_domain_uni_gbs),
                f"per GPU, one direction; {system.fabric or 'fabric not stated'}",
            ),
            ("network Gb/s", figure(system.nic_gbps_per_gpu), f"per GPU; {figure(system.node_nic_gbps)} per node"),
            ("host memory GiB", NONE if system.host_gib is None else count(system.host_gib), system.host),
        ),
    )
    peaks = tuple((name, figure(value)) for name, value in gpu.peak_tflops.items())
    yield Table("dense peak", (Column("format", "text"), Column("TFLOP/s")), peaks)
    yield from (Line(f"note: {note}") for note in (*system.notes, *gpu.notes))
    yield from (Line(f"source: {source}", "dim") for source in (*system.sources, *gpu.sources))


def _record(system: System) -> dict[str, Any]:
    gpu = system.gpu
    return {
        "name": system.name,
        "gpu": gpu.name,
        "arch": gpu.arch,
        "hbm_gib": gpu.hbm_gib,
        "usable_gib": gpu.usable_gib,
        "usable_kind": gpu.usable_kind,
        "hbm_gb_per_s": gpu.hbm_gbs,
        "peak_dense_tflops": dict(gpu.peak_tflops),
        "gpus_per_node": system.gpus_per_node,
        "nvlink_domain": system.nvlink_domain,
        "nvlink_gb_per_s": system.nvlink_uni_gbs,
        "inter_domain_gb_per_s": system.inter_domain_uni_gbs,
        "nic_gb_per_s_per_gpu": system.nic_gbps_per_gpu / 8,
        "host_gib": system.host_gib,
        "sources": [*system.sources, *gpu.sources],
        "notes": [*system.notes, *gpu.notes],
    }
