"""GPU, system and cluster: what a vendor sells, how it is wired, and how much of it the job uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from advisor.units import from_gib, gbs_to_bps, tflops_to_flops

BLACKWELL = 10
"""Major compute capability of Blackwell in the data centre; later GPUs have more."""
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Peaks are dense TFLOP/s per number format; `usable_gib` is what torch reports (None = not known).

    `profile` is the system file whose section `profile` holds what was measured on it (None = shipped profiles alone);
    `host_uni_gbs` is a link to the host's memory other than PCIe (None = PCIe alone).
    """

    name: str
    arch: str
    compute_capability: str
    status: str
    sm_count: int
    peak_tflops: MappingProxyType[str, float]
    hbm_gib: float
    usable_gib: float | None
    hbm_gbs: float
    nvlink_uni_gbs: float
    pcie_uni_gbs: float
    tdp_w: float
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    usable_kind: str = "measured"
    profile: Path | None = None
    host_uni_gbs: float | None = None

    @property
    def host_Bps(self) -> float:
        """Bandwidth between the GPU and the memory of its host, one direction, bytes per second."""
        return gbs_to_bps(self.pcie_uni_gbs if self.host_uni_gbs is None else self.host_uni_gbs)

    @property
    def hbm_Bps(self) -> float:
        """HBM bandwidth in bytes per second."""
        return gbs_to_bps(self.hbm_gbs)

    @property
    def capability_major(self) -> int:
        """Major compute capability: 10 of "10.0" and "10.x"; 0 where there is none to read (unknown, "gfx942")."""
        major = self.compute_capability.partition(".")[0]
        return int(major) if major.isdecimal() else 0

    def peak_flops(self, number_format: str) -> float:
        """Dense peak in FLOP/s of bf16, fp16, fp8, mxfp8, nvfp4, tf32 or fp32; KeyError if the GPU lacks it."""
        return tflops_to_flops(self.peak_tflops[number_format])


@dataclass(frozen=True, slots=True)
class System:
    """A server or rack type: GPUs per node, NVLink domain, network per GPU, CPU memory.

    A file that describes somebody's own cluster may also say how a job uses it: `used_per_domain` (None = by the
    default rule of `make_cluster`), `rank_order`, `oversubscription`.
    """

    name: str
    gpu: Gpu
    gpus_per_node: int
    nvlink_domain: int
    nvlink_uni_gbs: float
    inter_domain_uni_gbs: float
    nic_gbps_per_gpu: float
    node_nic_gbps: float
    fabric: str = ""
    host: str = ""
    host_gib: float | None = None
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    used_per_domain: int | None = None
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The part of a system that a job runs on.

    `used_per_domain` is how many GPUs of an NVLink domain the job occupies (64 of 72 keeps power-of-two groups whole);
    `oversubscription` divides the network bandwidth between domains (1 = full bisection);
    `usable_gib` is the memory a process can allocate, of kind `usable_kind`.
    """

    system: System
    gpus: int
    used_per_domain: int
    usable_gib: float
    usable_kind: str = "measured"
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    oversubscription: float = 1.0
    origin: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def gpu(self) -> Gpu:
        """The GPU of the system."""
        return self.system.gpu

    @property
    def usable_bytes(self) -> float:
        """Memory that a process can allocate, in bytes."""
        return from_gib(self.usable_gib)

    @property
    def nvlink_Bps(self) -> float:
        """NVLink bandwidth of one GPU, one direction, bytes per second."""
        return gbs_to_bps(self.system.nvlink_uni_gbs)

    @property
    def network_Bps(self) -> float:
        """Network bandwidth of one GPU between NVLink domains, one direction, bytes per second."""
        return gbs_to_bps(self.system.inter_domain_uni_gbs) / self.oversubscription
