"""Keywords that the Python functions, the command line and configuration files share; None counts as not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from advisor.spec.hardware import RankOrder
from advisor.spec.workload import Mode, OptimizerName, Routing, Task


class SharedOptions(TypedDict, total=False):
    """What a job is, whatever its layout.

    `system` is a system preset, a GPU alias or a YAML file; `headroom` is "8%", "4GiB" or a fraction below 1;
    `router_stats` is a file of tokens per expert and layer (see advisor.spec.load.router); `anchor` names files of
    measured runs that correct predictions (see advisor.fit.anchor); `measured_tflops` what such a job reached, to be
    set beside predicted and published rates; `gbs` sequences per step; `given_by` the origin shown for these keywords
    ("argument", "flag").
    """

    system: str | None
    precision: str | None
    seq_len: int | None
    gbs: int | None
    headroom: str | float | None
    task: Task | None
    routing: Routing | None
    router_skew: float | None
    router_stats: str | None
    capacity_factor: float | None
    optimizer: OptimizerName | None
    fp8_params: bool | None
    mtp_depth: int | None
    attention_impl: str | None
    vocab_divisor: int | None
    vocab_size: int | None
    rank_order: RankOrder | None
    used_per_domain: int | None
    oversubscription: float | None
    usable_gib: float | None
    anchor: str | Sequence[str] | None
    measured_tflops: float | None
    given_by: str


class PlanOptions(SharedOptions, total=False):
    """Search options: `fix` pins layout fields and knobs ("tp=2,ep=32" or a mapping), `allow` names what may change."""

    objective: str | None
    top: int | None
    fix: str | Mapping[str, object] | None
    allow: str | Sequence[str] | None
    target_tokens_per_s: float | None


class EstimateOptions(SharedOptions, total=False):
    """One layout and its knobs.

    Layout fields default to 1 (`sp` to tp > 1, `etp` to 1 in a mixture of experts), knobs to the defaults of
    `advisor.spec.layout.Knobs`, `bucket_size` (parameters) to the framework's own; `dispatcher` defaults to alltoall
    where there are experts. `recompute` is a list of modules, "full", "full-block:N" or "full-uniform:N". `mode` is
    train, inference (`batch`, `context`) or weights.
    """

    mode: Mode | None
    batch: int | None
    context: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    mbs: int | None
    sp: bool | None
    pipeline_layout: str | None
    recompute: str | Sequence[str] | None
    dispatcher: str | None
    ep_overlap: bool | None
    delay_wgrad: bool | None
    shared_expert_overlap: bool | None
    fsdp: bool | str | None
    cuda_graph: str | None
    optimizer_offload: float | None
    offload_layers: int | None
    offload_modules: str | Sequence[str] | None
    optimizer_instances: int | None
    cp_comm: str | None
    tp_overlap: bool | None
    distributed_optimizer: bool | None
    overlap_grad_reduce: bool | None
    overlap_param_gather: bool | None
    overlap_p2p: bool | None
    bucket_size: int | None
    grad_dtype: str | None
    moment_dtype: str | None
    main_param_dtype: str | None
