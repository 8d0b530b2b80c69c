"""Systems and GPUs: presets, GPU aliases and a user's own YAML become `System`, `Gpu` and `Cluster`.

A user's file has the form of a preset in presets/systems: `gpu` is a preset name or a mapping in the form of an entry
of presets/gpus.yaml, four more keys describe the job's share of it (`used_per_domain`, `usable_gib`, `rank_order`,
`oversubscription`), and `profile` may hold what was measured there: `fitted` in the form of profiles/fitted, `kernels`
in that of profiles/kernels (read by `cost.profile`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_args

from advisor import data
from advisor.errors import InputError, UnknownNameError
from advisor.spec.hardware import Cluster, Gpu, RankOrder, System
from advisor.spec.load.fields import Fields, did_you_mean, read_yaml_mapping, shown

MAX_GPUS = 1_000_000
MAX_DOMAIN = 4096
RANK_ORDERS: tuple[str, ...] = get_args(RankOrder)
_MAX_GBS = 1e5
_MAX_TFLOPS = 1e7
_MAX_GIB = 1e5
_KINDS = ("datasheet", "measured", "assumed")
_FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8")


@lru_cache(maxsize=4)
def _gpu_table(path: Path) -> MappingProxyType[str, Any]:
    return MappingProxyType(read_yaml_mapping(path))


def _gpu_presets() -> MappingProxyType[str, Any]:
    return _gpu_table(data.require("presets", "gpus.yaml"))


def _aliases() -> dict[str, str]:
    """Every name of a GPU, its own included, to the preset name."""
    names: dict[str, str] = {}
    for name, values in _gpu_presets()["gpus"].items():
        names[name] = name
        names.update(dict.fromkeys((str(alias) for alias in values["aliases"]), name))
    return names


def gpu_names() -> list[str]:
    """Names of the GPU presets, sorted."""
    return sorted(_gpu_presets()["gpus"])


def load_gpu(name: str) -> Gpu:
    """GPU preset by name or alias (h100, gb200 ...); UnknownNameError with the closest names otherwise."""
    names = _aliases()
    key = names.get(str(name).lower())
    if key is None:
        hint = did_you_mean(str(name), names) or f"known: {', '.join(gpu_names())}"
        raise UnknownNameError(f"unknown GPU {shown(name)}", hint)
    return _gpu(key, Fields(_gpu_presets()["gpus"][key], f"gpus.{key}."))


def _gpu(name: str, fields: Fields, own: bool = True) -> Gpu:
    """GPU from a mapping in the form of presets/gpus.yaml; problems are raised here only where `own` is set."""
    peaks = fields.mapping("peak_dense_tflops")
    rates = {fmt: peaks.number(fmt, 1e-3, _MAX_TFLOPS) for fmt in _FORMATS if peaks.has(fmt)}
    if not rates.get("bf16"):
        peaks.problems.append(f"{peaks.where}bf16 is missing (dense TFLOP/s)")
    hbm, nvlink, pcie = fields.mapping("hbm"), fields.mapping("nvlink", False), fields.mapping("pcie", False)
    host = fields.mapping("host_link", False)
    gpu = Gpu(
        name=name,
        arch=fields.text("arch", "unknown"),
        compute_capability=fields.text("compute_capability", "unknown"),
        status=fields.text("status", "own"),
        sm_count=fields.integer("sm_count", 1, 100_000, 100),
        peak_tflops=MappingProxyType(rates),
        hbm_gib=hbm.number("capacity_gb", 1e-3, _MAX_GIB),
        usable_gib=hbm.optional_number("usable_gib_torch", 1e-3, _MAX_GIB),
        hbm_gbs=hbm.number("bandwidth_gbs", 1e-3, 1e7),
        nvlink_uni_gbs=nvlink.number("uni_gbs", 0, _MAX_GBS, 0),
        pcie_uni_gbs=pcie.number("uni_gbs", 1e-3, _MAX_GBS, 32),
        tdp_w=fields.number("tdp_w", 0, 1e5, 0),
        aliases=fields.texts("aliases"),
        sources=fields.texts("sources"),
        notes=fields.texts("notes"),
        usable_kind=hbm.choice("usable_kind", _KINDS, "measured"),
        host_uni_gbs=host.optional_number("uni_gbs", 1e-3, _MAX_GBS),
    )
    nvlink.ignore("generation", "domain_size")
    pcie.ignore("generation")
    host.ignore("name")
    fields.ignore("name", "system", "gpus_per_node", "nic_gbps_per_gpu")
    for part in (peaks, hbm, nvlink, pcie, host, fields):
        part.refuse_unknown()
    if own:
        fields.finish(f"GPU {name}")
    return gpu


def system_names() -> list[str]:
    """Names of the system presets, sorted."""
    return list(data.listing("presets", "systems", ".yaml"))


def load_system(name: str | Path) -> System:
    """System by preset name, by GPU name or alias (its natural system), or from a YAML file of the same form.

    Raises UnknownNameError with the closest names, or InputError that lists every problem of the file.
    """
    path = system_path(name)
    return _read_system(path, path.stem)


def system_path(name: str | Path) -> Path:
    """The file of a system, named as for `load_system`; raises as it does where there is none."""
    text = str(name).strip()
    presets = data.listing("presets", "systems", ".yaml")
    path = presets.get(text) or presets.get(text.lower())
    if path is not None:
        return path
    gpu = _aliases().get(text.lower())
    if gpu is not None:
        return system_path(_gpu_presets()["gpus"][gpu]["system"])
    if _looks_like_a_path(text):
        own = Path(text).expanduser()
        if not own.exists():
            raise InputError(f"there is no system file {shown(text)}", "give a preset (advisor systems list) or a path")
        return own
    names = [*presets, *_aliases()]
    hint = did_you_mean(text, names) or "advisor systems list shows the presets; a path to a YAML file works too"
    raise UnknownNameError(f"unknown system or GPU {shown(text)}", hint)


def _looks_like_a_path(text: str) -> bool:
    if "\0" in text or len(text) > 1000 or not text:
        return False
    try:
        return "/" in text or text.endswith((".yaml", ".yml", ".json")) or Path(text).exists()
    except OSError:
        return False


def _read_system(path: Path, name: str) -> System:
    fields = Fields(read_yaml_mapping(path), "")
    gpu = _gpu_of(fields)
    if fields.mapping("profile", False).values:
        gpu = replace(gpu, profile=path.resolve())
    domain = fields.integer("nvlink_domain", 1, MAX_DOMAIN, 8 if gpu.nvlink_uni_gbs else 1)
    nic = fields.number("nic_gbps_per_gpu", 1e-3, _MAX_GBS)
    node = fields.integer("gpus_per_node", 1, 1024, 8)
    system = System(
        name=fields.text("name", name),
        gpu=gpu,
        gpus_per_node=node,
        nvlink_domain=domain,
        nvlink_uni_gbs=fields.number("nvlink_uni_gbs", 0, _MAX_GBS, gpu.nvlink_uni_gbs),
        inter_domain_uni_gbs=fields.number("inter_domain_uni_gbs", 1e-3, _MAX_GBS, nic / 8),
        nic_gbps_per_gpu=nic,
        node_nic_gbps=fields.number("node_nic_gbps", 1e-3, 1e6, nic * node),
        fabric=fields.text("fabric", ""),
        host=fields.text("host", ""),
        host_gib=fields.optional_number("host_gib", 1e-3, 1e6),
        sources=fields.texts("sources"),
        notes=fields.texts("notes"),
        used_per_domain=fields.integer("used_per_domain", 1, MAX_DOMAIN) if fields.has("used_per_domain") else None,
        rank_order=cast(RankOrder, fields.choice("rank_order", RANK_ORDERS, RANK_ORDERS[0])),
        oversubscription=fields.number("oversubscription", 1, 1000, 1),
    )
    fields.ignore("nics")
    fields.refuse_unknown()
    _check_shape(system, fields.problems)
    fields.finish(f"system file {path}")
    return system


def _gpu_of(fields: Fields) -> Gpu:
    """The GPU of a system file, by name or inline; `usable_gib` overrides what torch is known to report."""
    if isinstance(fields.values.get("gpu"), dict):
        inner = fields.mapping("gpu")
        gpu = _gpu(inner.text("name", "own-gpu"), inner, own=False)
    else:
        name = fields.text("gpu")
        try:
            gpu = load_gpu(name)
        except UnknownNameError as error:
            if name:
                fields.problems.append(f"gpu: {error.message}; {error.hint}")
            gpu = load_gpu("h100")
    usable = fields.optional_number("usable_gib", 1e-3, _MAX_GIB)
    if usable is None:
        return gpu
    if usable > gpu.hbm_gib:
        fields.problems.append(f"usable_gib: {usable:g} is more than the {gpu.hbm_gib:g} GB of {gpu.name}")
    return replace(gpu, usable_gib=usable, usable_kind="measured")


def _check_shape(system: System, problems: list[str]) -> None:
    """Nodes and NVLink domains must nest, and the used share must exist."""
    node, domain = system.gpus_per_node, system.nvlink_domain
    if node % domain and domain % node:
        problems.append(f"nvlink_domain: {domain} and gpus_per_node {node} do not nest (one must divide the other)")
    if domain > 1 and system.nvlink_uni_gbs < 1e-3:
        link = system.nvlink_uni_gbs
        problems.append(f"nvlink_uni_gbs: {link:g} but nvlink_domain is {domain}; give the bandwidth or a domain of 1")
    if system.used_per_domain is not None and system.used_per_domain > domain:
        problems.append(f"used_per_domain: {system.used_per_domain} is more than the nvlink_domain of {domain}")


def ranks_per_node(system: System, used_per_domain: int) -> int:
    """Ranks that the job puts on one node when it uses `used_per_domain` GPUs of each NVLink domain."""
    if system.nvlink_domain >= system.gpus_per_node:
        return min(system.gpus_per_node, used_per_domain)
    return used_per_domain * (system.gpus_per_node // system.nvlink_domain)


def default_used_per_domain(system: System, gpus: int) -> int:
    """GPUs of an NVLink domain that a job of `gpus` uses when nobody says.

    A job that fits in one domain takes what it needs of it. Beyond that, power-of-two groups of a domain whose size is
    no power of two (NVL72) would straddle racks, so the largest power of two is used (64 of 72; Megatron-Bridge
    docs/performance-guide.md) - except when the count is a multiple of the whole domain and not of that power.
    """
    domain = system.nvlink_domain
    if system.used_per_domain is not None:
        return system.used_per_domain
    if gpus <= domain:
        return gpus if domain > system.gpus_per_node else domain
    power = 1 << (domain.bit_length() - 1)
    return domain if gpus % domain == 0 and gpus % power else power


def make_cluster(
    system: System,
    gpus: int,
    *,
    used_per_domain: int | None = None,
    rank_order: RankOrder | None = None,
    oversubscription: float | None = None,
    usable_gib: float | None = None,
) -> Cluster:
    """The part of `system` that a job of `gpus` GPUs runs on.

    `gpus` is a whole number from 1 to 1e6 and fills whole nodes once it exceeds one. `used_per_domain` defaults as in
    `default_used_per_domain`, `rank_order` to Megatron's tp-cp-ep-dp-pp, `oversubscription` to 1, `usable_gib` to what
    torch reports for the GPU, or an assumed share of its capacity where nobody has seen that. `Cluster.origin` says
    for each of them whether it is given, from the system file, or a default. Raises InputError.
    """
    used = default_used_per_domain(system, gpus) if used_per_domain is None and _is_count(gpus) else used_per_domain
    _check_counts(system, gpus, used)
    spread = system.oversubscription if oversubscription is None else oversubscription
    if not math.isfinite(spread) or not 1 <= spread <= 1000:
        raise InputError(
            f"oversubscription {spread} is outside 1 to 1000", "1 is a fabric with full bisection bandwidth"
        )
    order = system.rank_order if rank_order is None else rank_order
    if order not in RANK_ORDERS:
        raise InputError(f"rank order {shown(order)} is not known", f"one of {', '.join(RANK_ORDERS)}")
    usable, kind = _usable(system.gpu, usable_gib)
    in_file = {"used_per_domain": system.used_per_domain is not None, "oversubscription": system.oversubscription != 1}
    given = {
        "used_per_domain": used_per_domain, "rank_order": rank_order,
        "oversubscription": oversubscription, "usable_gib": usable_gib,
    }  # fmt: skip
    origin = {
        key: "given" if value is not None else "system" if in_file.get(key) else "default"
        for key, value in given.items()
    }
    return Cluster(
        system=system,
        gpus=gpus,
        used_per_domain=min(int(used or 1), system.nvlink_domain),
        usable_gib=usable,
        usable_kind=kind,
        rank_order=order,
        oversubscription=float(spread),
        origin=MappingProxyType(origin),
    )


def _usable(gpu: Gpu, given: float | None) -> tuple[float, str]:
    if given is not None:
        if not math.isfinite(given) or not 0 < given <= gpu.hbm_gib:
            raise InputError(
                f"usable memory of {given} GiB is not within 0 to {gpu.hbm_gib:g}, the capacity of {gpu.name}",
                "leave it out to take what torch reports",
            )
        return float(given), "measured"
    if gpu.usable_gib is not None:
        return gpu.usable_gib, gpu.usable_kind
    return gpu.hbm_gib * float(_gpu_presets()["unknown_usable_share"]["value"]), "assumed"


def _is_count(gpus: object) -> bool:
    return isinstance(gpus, int) and not isinstance(gpus, bool) and 0 < gpus <= MAX_GPUS


def _check_counts(system: System, gpus: int, used: int | None) -> None:
    if not _is_count(gpus):
        raise InputError(f"the number of GPUs must be a whole number from 1 to {MAX_GPUS}, not {shown(gpus)}")
    domain = system.nvlink_domain
    if not isinstance(used, int) or isinstance(used, bool) or not 1 <= used <= domain:
        raise InputError(
            f"{shown(used)} GPUs used per NVLink domain is not within 1 to {domain}, the domain of {system.name}"
        )
    node = ranks_per_node(system, used)
    if gpus > used and used % min(node, used):
        low = used // node * node
        raise InputError(
            f"{used} GPUs used per NVLink domain do not fill nodes of {node}", f"use {low} or {min(low + node, domain)}"
        )
    if gpus > node and gpus % node:
        low = gpus // node * node
        raise InputError(f"{gpus} GPUs do not fill nodes of {node} on {system.name}", f"use {low} or {low + node} GPUs")
