"""Optimizer, data parallelism, FSDP and number formats."""

from __future__ import annotations

import numpy as np

from advisor.rules.grid import dense_widths, expert_parts
from advisor.rules.rule import ARG, NEVER, OPT, PS, Case, Row, Rule, always, divisors, nearest
from advisor.spec.layout import Array, Fsdp
from advisor.spec.workload import Workload

TE_DIMS = "TE:transformer_engine/pytorch/utils.py (assert_dim_for_fp8_exec); MXFP8 and NVFP4 blocks are 32 and 16 wide"


def _training(case: Case, mask: Array) -> Array:
    return mask if case.workload.mode == "train" else NEVER


def _precision_aware(case: Case) -> Array:
    """Entries that need Megatron's precision-aware optimizer."""
    x = case.columns
    return (x.moment_bytes < 4) | (x.main_param_bytes < 4) | (x.optimizer_offload > 0)


def _instances(case: Case) -> Array:
    x = case.columns
    experts = (x.edp % x.optimizer_instances != 0) if case.model.is_moe else NEVER
    mask: Array = (x.dp * x.cp % x.optimizer_instances != 0) | experts
    return mask


def _what(row: Row) -> str:
    knobs = row.knobs
    named = [
        (knobs.optimizer_offload > 0, "optimizer offload"),
        (knobs.moment_dtype != "fp32", f"{knobs.moment_dtype} moments"),
        (knobs.main_param_dtype != "fp32", f"{knobs.main_param_dtype} main parameters"),
    ]
    return " and ".join(name for flag, name in named if flag)


def _pool(row: Row) -> int:
    dense = row.layout.dp * row.layout.cp
    return int(np.gcd(dense, row.layout.edp)) if row.model.is_moe else dense


OPTIMIZER = (
    Rule(
        "param-gather-needs-distopt", "stop", ("overlap_param_gather", "distributed_optimizer", "fsdp"),
        f"{ARG}:1066-1074",
        lambda c: _training(c, c.columns.overlap_param_gather & ~c.columns.distributed_optimizer
                            & (c.columns.fsdp == Fsdp.none)),
        lambda r: "the overlapped parameter gather needs the distributed optimizer or FSDP, both are off",
        lambda r: "overlap_param_gather=false",
        targets=("megatron-lm",),
    ),
    Rule(
        "param-gather-needs-grad-reduce", "stop", ("overlap_param_gather", "overlap_grad_reduce"), f"{ARG}:1066-1074",
        lambda c: _training(c, c.columns.overlap_param_gather & ~c.columns.overlap_grad_reduce),
        lambda r: "the overlapped parameter gather needs the overlapped gradient reduction, which is off",
        lambda r: "overlap_grad_reduce=true",
        targets=("megatron-lm",),
    ),
    Rule(
        "instances-divide-dp", "stop", ("optimizer_instances", "dp", "cp", "edp"), f"{PS}:922-929", _instances,
        lambda r: f"{r.knobs.optimizer_instances} distributed-optimizer instances do not divide dp x cp"
        f" {r.layout.dp * r.layout.cp}" + (f" and edp {r.layout.edp}" if r.model.is_moe else ""),
        lambda r: nearest("optimizer_instances", r.knobs.optimizer_instances, divisors(_pool(r))),
    ),
    Rule(
        "instances-need-distopt", "stop", ("optimizer_instances", "distributed_optimizer", "fsdp"),
        "ML:megatron/core/distributed/distributed_data_parallel.py:284-291",
        lambda c: (c.columns.optimizer_instances > 1) & ~c.columns.distributed_optimizer
        & (c.columns.fsdp == Fsdp.none),
        lambda r: f"{r.knobs.optimizer_instances} optimizer instances need the distributed optimizer, which is off",
        lambda r: "distributed_optimizer=true",
    ),
    Rule(
        "offload-needs-precision-aware", "stop",
        ("moment_bytes", "main_param_bytes", "optimizer_offload", "distributed_optimizer", "fsdp"),
        f"{OPT}:433-480; {ARG}:1884-1892",
        lambda c: _training(c, _precision_aware(c) & ~c.columns.distributed_optimizer
                            & (c.columns.fsdp == Fsdp.none)),
        lambda r: f"{_what(r)} need the precision-aware optimizer and so the distributed optimizer, which is off",
        lambda r: "distributed_optimizer=true",
    ),
    Rule(
        "precision-aware-needs-adam", "stop", ("moment_bytes", "main_param_bytes", "optimizer_offload"),
        f"{OPT}:433-480",
        lambda c: NEVER if c.workload.optimizer == "adam" else _training(c, _precision_aware(c)),
        lambda r: f"{_what(r)} need the precision-aware optimizer, which knows adam only, not {r.workload.optimizer}",
        lambda r: "optimizer=adam",
    ),
    Rule(
        "offload-fp8-params-need-delayed", "stop", ("optimizer_offload",), f"{ARG}:1884-1892",
        lambda c: c.columns.optimizer_offload > 0
        if c.workload.fp8_params and c.workload.precision.name != "fp8-delayed" else NEVER,
        lambda r: f"optimizer offload with fp8 parameters needs delayed scaling, not {r.workload.precision.name}",
        lambda r: "optimizer_offload=0",
        targets=("megatron-lm",),
    ),
    Rule(
        "fp8-params-need-distopt", "stop", ("distributed_optimizer", "fsdp"), f"{ARG}:1095",
        lambda c: _training(c, ~c.columns.distributed_optimizer & (c.columns.fsdp == Fsdp.none))
        if c.workload.fp8_params else NEVER,
        lambda r: "gathering fp8 parameters needs the distributed optimizer or FSDP, both are off",
        lambda r: "distributed_optimizer=true",
        targets=("megatron-lm",),
    ),
    Rule(
        "fp8-params-need-fp8", "stop", (), "ML:megatron/core/transformer/transformer_config.py:1560-1575",
        lambda c: always(c.workload.fp8_params and not c.workload.precision.quantised),
        lambda r: f"fp8 parameters need a quantised precision, not {r.workload.precision.name}",
        lambda r: "precision=fp8-current",
    ),
    Rule(
        "fsdp-needs-plain-optimizer", "stop", ("fsdp",), f"{ARG}:1118-1191",
        lambda c: NEVER if c.workload.optimizer in {"adam", "sgd"} else c.columns.fsdp > 0,
        lambda r: f"FSDP runs adam or sgd, not {r.workload.optimizer}",
        lambda r: "fsdp=none",
        targets=("megatron-lm",),
    ),
    Rule(
        "fsdp-with-tp-discouraged", "slow", ("fsdp", "tp", "cp"), f"{ARG}:1453-1479",
        lambda c: (c.columns.fsdp > 0) & ((c.columns.tp > 1) | (c.columns.cp > 1))
        if c.cluster.gpu.capability_major in (8, 9) else NEVER,
        lambda r: f"tp {r.layout.tp} and cp {r.layout.cp} want CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell, FSDP"
        " must not have it: their overlap is lost",
        lambda r: "tp=1, cp=1",
        targets=("megatron-lm",),
    ),
)  # fmt: skip


def _granule(workload: Workload) -> tuple[int, int]:
    """What the last dimension and the token count of a quantised GEMM must divide by."""
    return {"mxfp8": (32, 32), "nvfp4": (16, 16)}.get(workload.precision.name, (16, 8))


def _shapes(case: Case) -> Array:
    if not case.workload.precision.quantised:
        return NEVER
    x, model = case.columns, case.model
    width, tokens = _granule(case.workload)
    broken = (case.workload.seq_len // x.cp * x.mbs % tokens != 0) | (model.hidden % width != 0)
    for ffn in (*dense_widths(model), *(part.shared_ffn for part in expert_parts(model))):
        broken = broken | (ffn // x.tp % width != 0)
    for part in expert_parts(model):
        broken = broken | (part.ffn // x.etp % width != 0)
    mask: Array = broken
    return mask


PRECISION = (
    Rule(
        "gpu-runs-precision", "stop", (), "datasheets in presets/gpus.yaml; TE recipes check the capability",
        lambda c: always(c.workload.precision.gemm not in c.cluster.gpu.peak_tflops
                         and c.workload.precision.name != "fp32"),
        lambda r: f"{r.workload.precision.name} needs {r.workload.precision.gemm} tensor cores, {r.cluster.gpu.name}"
        " has none",
        lambda r: "precision=" + next((p for gemm, p in (("fp8", "fp8-current"), ("bf16", "bf16"), ("fp16", "fp16"))
                                       if gemm in r.cluster.gpu.peak_tflops), "fp32"),
        targets=("te",),
    ),
    Rule(
        "fp8-shapes-divide", "stop", ("tp", "etp", "cp", "mbs"), TE_DIMS, _shapes,
        lambda r: f"{r.workload.precision.name} needs widths per rank in multiples of {_granule(r.workload)[0]} and"
        f" tokens in multiples of {_granule(r.workload)[1]}: hidden {r.model.hidden}, feed-forward"
        f" {', '.join(map(str, (*dense_widths(r.model), *(p.ffn for p in expert_parts(r.model)))))} over"
        f" tp {r.layout.tp} / etp {r.layout.etp}, {r.workload.seq_len // r.layout.cp * r.layout.mbs} tokens",
        lambda r: "etp=1" if r.layout.etp > 1 else "tp=1" if r.layout.tp > 1 else "precision=bf16",
        targets=("te",),
    ),
)  # fmt: skip
