"""Experts: parallel sizes, dispatchers, and what may be overlapped with their all-to-all."""

from __future__ import annotations

import numpy as np

from advisor.rules.grid import expert_parts
from advisor.rules.rule import ARG, MB, NEVER, TC, TD, Case, Row, Rule, always, divisors, nearest
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array, CudaGraph, Dispatcher

RACK = 64
"""NVLink domains of this many GPUs and more are multi-node (NVL72)."""
FLEX = (Dispatcher.deepep, Dispatcher.hybridep)
ADAPTER = "ML:megatron/core/distributed/fsdp/mcore_fsdp_adapter.py (megatron-core 0.19.2)"


def _deepep_runs(gpu: Gpu) -> bool:
    base = gpu.name.lower().replace("-", "").replace("_", "")
    return gpu.capability_major in (8, 9) or base.startswith(("b200", "b300"))


def _hybridep_runs(gpu: Gpu) -> bool:
    return gpu.capability_major in (8, 9, 10)


def _with(case: Case, *kinds: Dispatcher) -> Array:
    return np.isin(case.columns.dispatcher, [int(kind) for kind in kinds])


def _when(flag: bool, mask: Array) -> Array:
    return mask if flag else NEVER


def _full(case: Case) -> Array:
    return (case.columns.full_uniform > 0) | (case.columns.full_block > 0)


def _moe_bias(case: Case) -> Array:
    return _when(any(part.bias for part in expert_parts(case.model)), case.columns.etp > 1)


def _alltoall(row: Row) -> str:
    return "dispatcher=alltoall"


def _straddles(case: Case) -> Array:
    x, domain = case.columns, case.cluster.used_per_domain
    group = x.etp * x.ep
    mask: Array = _with(case, Dispatcher.hybridep) & ((group > domain) | (domain % np.minimum(group, domain) != 0))
    return mask


def _group(row: Row) -> str:
    return f"etp {row.layout.etp} x ep {row.layout.ep}"


SIZES = (
    Rule(
        "ep-needs-experts", "stop", ("ep",), f"{TC}:1595",
        lambda c: _when(not c.model.is_moe, c.columns.ep > 1),
        lambda r: f"ep {r.layout.ep} without experts: {r.model.name} is a dense model",
        lambda r: "ep=1",
    ),
    Rule(
        "experts-divide-by-ep", "stop", ("ep",), f"{ARG}:1655-1658",
        lambda c: _when(c.model.is_moe, np.any([part.experts % c.columns.ep != 0 for part in expert_parts(c.model)],
                                               axis=0)),
        lambda r: f"{', '.join(str(part.experts) for part in expert_parts(r.model))} experts do not divide by"
        f" ep {r.layout.ep}",
        lambda r: nearest("ep", r.layout.ep, divisors(int(np.gcd.reduce([p.experts for p in expert_parts(r.model)])))),
    ),
    Rule(
        "moe-bias-needs-etp1", "stop", ("etp",), f"{TC}:2612", _moe_bias,
        lambda r: f"experts with a bias cannot be split, etp is {r.layout.etp}",
        lambda r: "etp=1",
    ),
)  # fmt: skip

DISPATCH = (
    Rule(
        "moe-needs-dispatcher", "stop", ("dispatcher",), f"{TC}:891-902",
        lambda c: _when(c.model.is_moe, c.columns.dispatcher == Dispatcher.none),
        lambda r: f"{r.model.name} has experts, so tokens need a dispatcher", _alltoall,
    ),
    Rule(
        "deepep-needs-ep", "stop", ("dispatcher", "ep", "etp"), f"{TD}:1835-1842",
        lambda c: _with(c, Dispatcher.deepep) & (c.columns.etp * c.columns.ep <= 1),
        lambda r: f"deepep exchanges tokens between ranks, {_group(r)} is one rank", _alltoall,
    ),
    Rule(
        "deepep-runs-on-gpu", "stop", ("dispatcher",), f"{MB}/flex_dispatcher_backend.py:33-85",
        lambda c: _when(not _deepep_runs(c.cluster.gpu), _with(c, Dispatcher.deepep)),
        lambda r: f"deepep runs on compute capability 8 and 9, B200 and B300, not on {r.cluster.gpu.name}"
        f" ({r.cluster.gpu.compute_capability})",
        lambda r: "dispatcher=hybridep" if _hybridep_runs(r.cluster.gpu) else "dispatcher=alltoall",
        targets=("bridge",),
    ),
    Rule(
        "hybridep-runs-on-gpu", "stop", ("dispatcher",), f"{MB}/flex_dispatcher_backend.py:33-85",
        lambda c: _when(not _hybridep_runs(c.cluster.gpu), _with(c, Dispatcher.hybridep)),
        lambda r: f"hybridep runs on compute capability 8, 9 and 10, not on {r.cluster.gpu.name}"
        f" ({r.cluster.gpu.compute_capability})", _alltoall,
        targets=("bridge",),
    ),
    Rule(
        "rack-needs-hybridep", "stop", ("dispatcher",), f"{TC}:898",
        lambda c: _when(c.cluster.system.nvlink_domain >= RACK, _with(c, Dispatcher.deepep)),
        lambda r: f"in an NVLink domain of {r.cluster.system.nvlink_domain} GPUs only hybridep works among the flex"
        " back ends",
        lambda r: "dispatcher=hybridep",
    ),
    Rule(
        "hybridep-inside-nvlink", "slow", ("dispatcher", "ep", "etp"),
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/6043 (EP64 over 8-GPU domains: topology error on B200;"
        " the vendor's H100 recipes run it over RDMA)",
        _straddles,
        lambda r: f"hybridep with {_group(r)} leaves its NVLink domain of {r.cluster.used_per_domain} used GPUs: it"
        " needs RDMA between nodes, and some releases refuse the topology",
        lambda r: nearest("ep", r.layout.ep,
                          [n for n in divisors(r.cluster.used_per_domain // r.layout.etp) if n < r.layout.ep],
                          "dispatcher=alltoall"),
        targets=("bridge",),
    ),
    Rule(
        "deepep-without-padding", "stop", ("dispatcher",), f"{TC}:1754",
        lambda c: _when(c.workload.pad_to_capacity, _with(c, Dispatcher.deepep)),
        lambda r: "deepep cannot pad expert inputs to their capacity", _alltoall,
    ),
    Rule(
        "padding-needs-capacity", "stop", (), f"{TC}:1836-1866",
        lambda c: always(c.workload.pad_to_capacity and c.workload.capacity_factor is None),
        lambda r: "padding to capacity needs a capacity factor, none is set",
        lambda r: "capacity_factor=1.0",
    ),
    Rule(
        "shared-overlap-needs-alltoall", "stop", ("dispatcher", "shared_expert_overlap"), f"{TC}:1820",
        lambda c: c.columns.shared_expert_overlap & ~_with(c, Dispatcher.alltoall),
        lambda r: f"shared experts overlap with the alltoall dispatcher, not with {r.knobs.dispatcher.name}",
        lambda r: "shared_expert_overlap=false",
        versions="0.16-0.19 (later core takes flex too, Bridge switches the overlap off there)",
    ),
)  # fmt: skip


def _overlap(case: Case, mask: Array) -> Array:
    return case.columns.ep_overlap & mask


OVERLAP = (
    Rule(
        "ep-overlap-needs-ep", "stop", ("ep_overlap", "ep"), f"{TC}:3002-3071",
        lambda c: _overlap(c, c.columns.ep <= 1),
        lambda r: f"the expert-parallel overlap needs ep > 1, ep is {r.layout.ep}",
        lambda r: "ep_overlap=false",
    ),
    Rule(
        "ep-overlap-needs-alltoall", "stop", ("ep_overlap", "dispatcher"), f"{TC}:3016",
        lambda c: _overlap(c, ~_with(c, Dispatcher.alltoall, *FLEX)),
        lambda r: f"the expert-parallel overlap needs alltoall, deepep or hybridep, not {r.knobs.dispatcher.name}",
        _alltoall,
    ),
    Rule(
        "ep-overlap-needs-vpp", "stop", ("ep_overlap", "pp", "vpp"), f"{TC}:3002-3071",
        lambda c: _overlap(c, (c.columns.pp > 1) & (c.columns.vpp <= 1)),
        lambda r: f"the expert-parallel overlap over pp {r.layout.pp} needs interleaving, vpp is {r.layout.vpp}",
        lambda r: "vpp=2",
    ),
    Rule(
        "ep-overlap-needs-16-bit", "stop", ("ep_overlap",), f"{TC}:3002-3071",
        lambda c: _when(c.workload.precision.name == "fp32", c.columns.ep_overlap),
        lambda r: "the expert-parallel overlap needs bf16 or fp16 parameters, not fp32",
        lambda r: "precision=bf16",
    ),
    Rule(
        "ep-overlap-without-full-recompute", "stop", ("ep_overlap", "full_uniform", "full_block"), f"{TC}:3002-3071",
        lambda c: _overlap(c, _full(c)),
        lambda r: "the expert-parallel overlap excludes full recomputation",
        lambda r: "recompute=moe_act,layernorm",
    ),
    Rule(
        "ep-overlap-without-moe-recompute", "stop", ("ep_overlap", "rc_moe"), f"{TC}:3002-3071",
        lambda c: _overlap(c, c.columns.rc_moe),
        lambda r: "the expert-parallel overlap excludes recomputing whole expert layers (moe)",
        lambda r: "recompute=moe_act",
        versions=">=0.17 (the 0.16 constructor does not look)",
    ),
    Rule(
        "ep-overlap-xor-shared-overlap", "stop", ("ep_overlap", "shared_expert_overlap"), f"{TC}:3039",
        lambda c: _overlap(c, c.columns.shared_expert_overlap),
        lambda r: "the expert-parallel overlap and the shared-expert overlap exclude each other",
        lambda r: "shared_expert_overlap=false",
    ),
    Rule(
        "ep-overlap-one-mtp", "stop", ("ep_overlap",), f"{TC}:3002-3071",
        lambda c: _when(c.workload.mtp_depth > 1, c.columns.ep_overlap),
        lambda r: f"the expert-parallel overlap carries one prediction module, {r.workload.mtp_depth} are trained",
        lambda r: "mtp_depth=1",
    ),
    Rule(
        "ep-overlap-mtp-needs-pp", "stop", ("ep_overlap", "pp"), f"{TC}:3002-3071",
        lambda c: _when(c.workload.mtp_depth == 1, _overlap(c, c.columns.pp <= 1)),
        lambda r: f"the expert-parallel overlap with a prediction module needs pp > 1, pp is {r.layout.pp}",
        lambda r: "pp=2",
    ),
    Rule(
        "ep-overlap-without-full-graph", "info", ("ep_overlap", "cuda_graph"), f"{TC}:3002-3071 (0.16.1 refuses it)",
        lambda c: _overlap(c, c.columns.cuda_graph == CudaGraph.full_iteration),
        lambda r: "megatron-core 0.16 refuses the expert-parallel overlap inside a CUDA graph of the full iteration;"
        " later releases take it",
        lambda r: "megatron-core>=0.17",
        versions="0.16",
    ),
    Rule(
        "ep-overlap-fsdp-without-scoped-graph", "stop", ("ep_overlap", "cuda_graph", "fsdp"), f"{ADAPTER}:171-180",
        lambda c: _overlap(c, (c.columns.fsdp > 0) & (c.columns.cuda_graph == CudaGraph.scoped)),
        lambda r: "the expert-parallel overlap under FSDP excludes CUDA graphs per layer",
        lambda r: "cuda_graph=none",
        versions=">=0.19",
    ),
    Rule(
        "delay-wgrad-needs-ep-overlap", "stop", ("delay_wgrad", "ep_overlap"), f"{TC}:3074",
        lambda c: c.columns.delay_wgrad & ~c.columns.ep_overlap,
        lambda r: "delayed weight gradients fill the expert-parallel overlap, which is off",
        lambda r: "delay_wgrad=false",
    ),
)  # fmt: skip
