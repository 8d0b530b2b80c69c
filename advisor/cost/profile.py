"""What a GPU reaches in practice: every rate and coefficient that a time formula uses, with its kind and source.

Two files make a profile: `profiles/fitted/<gpu>.yaml` over `profiles/fitted/default.yaml` (coefficients) and
`profiles/kernels/<gpu>.json` (size tables condensed from measurements); what somebody's own system file holds goes over
both (`cost.own`). A GPU without them gets assumed shares of its datasheet peaks, each marked `assumed`.

Reading a profile in a formula:
    profile.value("tp_exposed")                     a coefficient, see profiles/fitted/default.yaml for the list
    profile.gemm_flops(workload.precision)          sustained FLOP/s of large GEMMs
    profile.gemm_efficiency(m, n, k)                1 for large local shapes, less for small ones (columns)
    profile.grouped_efficiency("wgrad", m, n, k)    share of gemm_flops that grouped GEMMs reach (columns)
    profile.attention_flops(seq, head_dim, heads)   forward FLOP/s over causal work (columns)
    profile.memory_Bps                              bandwidth of memory-bound kernels
    profile.recurrence_flops("mamba")               FLOP/s of the scan of Mamba and gated delta-net
    profile.collectives["all_gather"]               seconds by size and ranks inside an NVLink domain (cost/comm.py)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from advisor import data
from advisor.cost.network import DomainTable
from advisor.cost.own import own_sections
from advisor.cost.tables import RateTable, SizeTable
from advisor.errors import InputError
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array
from advisor.spec.load.fields import Fields, read_yaml_mapping
from advisor.spec.load.system import load_gpu
from advisor.spec.plan import Kind
from advisor.spec.precision import PRECISIONS, Precision
from advisor.units import gbs_to_bps, tflops_to_flops

Direction = Literal["fwd", "dgrad", "wgrad"]
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_KINDS: tuple[Kind, ...] = ("datasheet", "measured", "fitted", "assumed")


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A number of a time formula: its value, the bounds a fit may move it in, its kind and its source.

    `start` is what a fit begins from and is pulled to: what is known without the training runs it is fitted on.
    """

    value: float
    low: float
    high: float
    kind: Kind
    source: str
    start: float = float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Rates and coefficients of one GPU.

    `coefficients` holds every scalar by name; `gemm` the sustained FLOP/s by number format (bf16, fp16, fp8, mxfp8,
    nvfp4, tf32). `collectives` holds a table per operation in `COLLECTIVES`: seconds by full-tensor bytes and ranks,
    measured at `table_link_Bps` per GPU and direction. `attention` is forward FLOP/s by sequence and head dimension.
    `table_kind` says whether the tables are measured or made from the datasheet; `network` holds what was measured of
    somebody's own cluster across NVLink domains, by operation, and nothing for shipped profiles.
    """

    gpu: Gpu
    coefficients: Mapping[str, Coefficient]
    gemm: Mapping[str, Coefficient]
    collectives: Mapping[str, SizeTable]
    attention: RateTable
    table_link_Bps: float  # noqa: N815 (units in names)
    table_kind: Kind
    sources: tuple[str, ...]
    network: Mapping[str, DomainTable] = field(default_factory=lambda: MappingProxyType({}))

    def value(self, name: str) -> float:
        """Value of a coefficient; KeyError if there is none of that name."""
        return self.coefficients[name].value

    def kind(self, name: str) -> Kind:
        """Kind of a coefficient."""
        return self.coefficients[name].kind

    def under(self, precision: Precision) -> Profile:
        """The profile for runs in a number format: a coefficient `name.bf16` takes the place of `name` under bf16.

        The suffix is the key of the format's GEMM rate. Profiles of GPUs hold none, so that this is the profile itself.
        """
        suffix = f".{precision.gemm}"
        own = {name.removesuffix(suffix): one for name, one in self.coefficients.items() if name.endswith(suffix)}
        return replace(self, coefficients=MappingProxyType({**self.coefficients, **own})) if own else self

    def gemm_flops(self, precision: Precision) -> float:
        """Sustained FLOP/s of large GEMMs in the number format of `precision`, quantisation not included.

        InputError where the GPU has no such format.
        """
        return self.gemm_rate(precision).value

    def gemm_rate(self, precision: Precision) -> Coefficient:
        """As `gemm_flops`, with kind and source."""
        rate = self.gemm.get(precision.name) or self.gemm.get(precision.gemm)
        if rate is None:
            formats = ", ".join(self.gemm)
            raise InputError(f"{self.gpu.name} has no {precision.gemm} tensor cores", f"formats it has: {formats}")
        return rate

    def gemm_efficiency(self, m: Array, n: Array, k: Array) -> Array:
        """Share of the sustained rate that an (m, k) x (k, n) GEMM reaches: at most 1, less for small sizes (columns).

        `m`, `n`, `k` are local (after TP, CP). A ramp costs a fixed number of rows, columns and inner steps:
        1 / (1 + m0/m + n0/n + k0/k), over its value at `gemm_reference_dim`, where the sustained rate was seen.
        """
        value = self.value
        m0, n0, k0 = value("gemm_ramp_m"), value("gemm_ramp_n"), value("gemm_ramp_k")
        reference = 1 + (m0 + n0 + k0) / value("gemm_reference_dim")
        return np.minimum(reference / (1 + m0 / m + n0 / n + k0 / k), 1.0)

    def grouped_efficiency(self, direction: Direction, m: Array, n: Array, k: Array) -> Array:
        """Share of the sustained dense rate that grouped GEMMs reach in one direction (columns).

        `m` is tokens per local expert, (k, n) the expert's weight. The ramp over `m` is what reading an expert's weight
        costs when few tokens share it.
        """
        value = self.value
        ramp = value(f"grouped_{direction}_ramp_m") / m + value("grouped_ramp_n") / n + value("grouped_ramp_k") / k
        return value(f"grouped_{direction}") / (1 + ramp)

    def attention_flops(self, seq: Array, head_dim: Array | float, heads: Array | float) -> Array:
        """Forward FLOP/s of fused attention, over causal work (half of the full score matrix); columns.

        `seq` is the key length, `head_dim` the mean of the query-key and value dimensions, `heads` local query heads
        times sequences in the micro-batch. Backward time is this time x `attention_backward_ratio`; both x
        `attention_time_factor`. Attention with sinks: x `attention_sink_factor` and no saving from its window.
        """
        blocks = heads * np.maximum(seq, 1.0)
        filled = 1 / (1 + self.value("attention_ramp_blocks") / blocks)
        return self.attention.rate(seq * self.value("attention_seq_shift"), head_dim) * filled

    @property
    def memory_Bps(self) -> float:
        """Bandwidth of memory-bound kernels (norms, activations, residuals, optimizer), bytes per second."""
        return self.gpu.hbm_Bps * self.value("memory_share")

    def recurrence_flops(self, kind: Literal["mamba", "delta_net"]) -> float:
        """FLOP/s of the forward scan of Mamba-2 or gated delta-net; backward time x `recurrence_backward_ratio`."""
        return self.gpu.peak_flops("bf16") * self.value(f"{kind}_peak_share")


def load_profile(gpu: str | Gpu) -> Profile:
    """Profile of a GPU preset (name or alias) or of an own `Gpu`; read once per preset. See the module docstring."""
    named = load_gpu(gpu) if isinstance(gpu, str) else gpu
    for known, profile in _CACHE:
        if known == named:
            return profile
    profile = _read(named)
    _CACHE.append((named, profile))
    return profile


_CACHE: list[tuple[Gpu, Profile]] = []


def forget() -> None:
    """Read profiles anew when they are asked for next: their files have changed."""
    _CACHE.clear()


def _read(gpu: Gpu) -> Profile:
    default_path = data.require("profiles", "fitted/default.yaml")
    entries = read_yaml_mapping(default_path)
    shares = entries.pop("gemm_peak_share")
    coefficients = {name: _coefficient(name, entry, str(default_path)) for name, entry in entries.items()}
    gemm = _assumed_gemm(gpu, _coefficient("gemm_peak_share", shares, str(default_path)))
    shipped = data.find("profiles", f"fitted/{gpu.name}.yaml")
    formats = sorted({precision.gemm for precision in PRECISIONS.values()})
    known = (*coefficients, *(f"{name}.{fmt}" for name in coefficients for fmt in formats))
    fitted, kernels = own_sections(gpu, known, COLLECTIVES)
    for path, own in ((shipped, {} if shipped is None else read_yaml_mapping(shipped)), (gpu.profile, fitted)):
        for fmt, entry in own.pop("gemm_tflops", {}).items():
            gemm[fmt] = _scaled(_coefficient(f"gemm_tflops.{fmt}", entry, str(path)), tflops_to_flops(1.0))
        coefficients.update({name: _coefficient(name, entry, str(path)) for name, entry in own.items()})
    tables = _tables(gpu)
    collectives = _joined(tables["collectives_us"], kernels.pop("collectives_us", {}), "link_gbs" in kernels)
    network = kernels.pop("network_us", {})
    tables |= kernels
    return Profile(
        gpu=gpu,
        coefficients=MappingProxyType(coefficients),
        gemm=MappingProxyType(gemm),
        collectives=MappingProxyType({op: SizeTable.of(collectives[op], 1e-6) for op in COLLECTIVES}),
        attention=RateTable.of(tables["attention_fwd_tflops"], tflops_to_flops(1.0)),
        table_link_Bps=gbs_to_bps(tables["link_gbs"]),
        table_kind=tables["kind"],
        sources=tuple(tables["sources"]),
        network=MappingProxyType({op: DomainTable.of(curves) for op, curves in network.items()}),
    )


def _joined(shipped: Mapping[str, Any], own: Mapping[str, Any], other_link: bool) -> dict[str, Any]:
    """Own curves by operation, with the shipped ones at the ranks that were not measured unless the link differs."""
    return {op: {**({} if other_link and op in own else curves), **own.get(op, {})} for op, curves in shipped.items()}


def _coefficient(name: str, entry: Any, where: str) -> Coefficient:
    """One entry {value, start, low, high, kind, source} of a YAML file; missing numbers default to the value."""
    fields = Fields(entry if isinstance(entry, dict) else {}, f"{name}.")
    value = fields.number("value", -1e30, 1e30)
    low, high = fields.number("low", -1e30, 1e30, value), fields.number("high", -1e30, 1e30, value)
    start = fields.number("start", low, high, value)
    kind = fields.choice("kind", _KINDS, "assumed")
    source = fields.text("source")
    if not low <= value <= high:
        fields.problems.append(f"{name}: value {value:g} is outside its bounds {low:g} to {high:g}")
    fields.ignore("what")
    fields.refuse_unknown()
    fields.finish(f"profile {where}")
    return Coefficient(value, low, high, kind, source, start)  # type: ignore[arg-type]


def _scaled(one: Coefficient, factor: float) -> Coefficient:
    return Coefficient(
        one.value * factor, one.low * factor, one.high * factor, one.kind, one.source, one.start * factor
    )


def _assumed_gemm(gpu: Gpu, share: Coefficient) -> dict[str, Coefficient]:
    formats = ("tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4")
    return {fmt: _scaled(share, gpu.peak_flops(fmt)) for fmt in formats if fmt in gpu.peak_tflops}


def _tables(gpu: Gpu) -> dict[str, Any]:
    """Kernel tables of the GPU; what it has no measurements of comes from the datasheet tables."""
    path = data.find("profiles", f"kernels/{gpu.name}.json")
    own = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    return own if "attention_fwd_tflops" in own else {**_datasheet_tables(gpu), **own}


def _datasheet_tables(gpu: Gpu) -> dict[str, Any]:
    """The tables of datasheet.json scaled to the link and the bf16 peak of the GPU; latencies stay."""
    path = data.require("profiles", "kernels/datasheet.json")
    tables: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    share = tables.pop("attention_fwd_peak_share")
    rate = [[one * gpu.peak_tflops["bf16"] for one in row] for row in share["rate"]]
    link = gpu.nvlink_uni_gbs or gpu.pcie_uni_gbs
    slower = tables["link_gbs"] / link
    for by_ranks in tables["collectives_us"].values():
        for curve in by_ranks.values():
            floor = curve["us"][0]
            curve["us"] = [floor + (us - floor) * slower for us in curve["us"]]
    return {**tables, "attention_fwd_tflops": {**share, "rate": rate}, "link_gbs": link}
