"""Megatron-LM flags: the job as a quoted shell array that a launch script sources.

Flags are those of the argument parser of megatron-core 0.19 (presets/launch/megatron_arguments.json); what differs in
0.16 is in presets/versions.yaml. Reading them back (spec/load/megatron) gives the same layout and knobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from advisor.configure.beside import CP_WORDS, hierarchy
from advisor.configure.job import preset
from advisor.export.model_fields import WHOLE_NORM, Facts, model_fields, norms_all_heads, require_supported
from advisor.export.subject import Subject
from advisor.export.words import fill
from advisor.search.stages import megatron_flags
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp

Words = tuple[str, ...]
Groups = list[tuple[str, list[Words]]]

BUFFER_FILE = "tp_comm_overlap.yaml"
INSTEAD = "export it for Bridge, whose own recipe or model bridge knows it"
PRECISION = {
    "fp32": (),
    "fp16": (("--fp16",),),
    "bf16": (("--bf16",),),
    "fp8-delayed": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    "fp8-current": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8-blockwise": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}  # fmt: skip
# Fields whose flag has another name; None = said by another flag below.
RENAMED: dict[str, str | None] = {
    "num_moe_experts": "num-experts",
    "layernorm_epsilon": "norm-epsilon",
    "num_query_groups": None,
    "share_embeddings_and_output_weights": None,
    "gated_linear_unit": None,
    "activation_func": None,
    "add_bias_linear": None,
}


def megatron_text(subject: Subject, facts: Facts) -> dict[str, str]:
    """Files by name: the flags as a bash array, and the user buffers where a preset or custom ones are used."""
    require_supported(subject.model, facts, INSTEAD)
    caveats = [WHOLE_NORM] if norms_all_heads(subject.model) else []
    groups = flag_groups(subject, facts)
    files = {"megatron_args.sh": fill("megatron.sh.j2", subject=subject, groups=groups, caveats=caveats)}
    buffers = _buffers(subject)
    if buffers is not None:
        files[BUFFER_FILE] = buffers
    return files


def flag_groups(subject: Subject, facts: Facts) -> Groups:
    """Flags in groups, each flag with its words."""
    return [("model", list(_model(subject, facts))), *setting_groups(subject)]


def setting_groups(subject: Subject) -> Groups:
    """Flags of everything but the model: what stays when only the layout and its knobs change."""
    return [
        ("parallel sizes", list(_parallel(subject))),
        ("batch", list(_batch(subject))),
        ("precision and optimizer", list(_optimizer(subject))),
        ("communication overlap", list(_overlap(subject))),
        ("experts", list(_experts(subject))),
        ("recompute and CUDA graphs", list(_memory(subject))),
        ("checkpoints", list(_checkpoints(subject))),
    ]


def _value(value: Any) -> str:
    """A field's value as one word: per-layer switches in the list form that Megatron evaluates."""
    if isinstance(value, tuple):
        runs: list[list[int]] = []
        for one in value:
            if runs and runs[-1][0] == one:
                runs[-1][1] += 1
            else:
                runs.append([one, 1])
        if len(runs) > len(value) // 2:
            return "[" + ",".join(map(str, value)) + "]"
        return "(" + "+".join(f"[{one}]*{count}" for one, count in runs) + ")"
    return str(value)


def _model(subject: Subject, facts: Facts) -> Iterator[Words]:
    fields = model_fields(subject.model, subject.job.workload, facts)
    for name, value in fields.items():
        if name in RENAMED and RENAMED[name] is None:
            continue
        flag = "--" + (RENAMED.get(name) or name.replace("_", "-"))
        if name == "window_size":
            yield flag, ",".join(map(str, value))
        elif name == "position_embedding_type":
            yield flag, value
        elif isinstance(value, bool):
            if value:
                yield (flag,)
        else:
            yield flag, _value(value)
    if fields.get("num_query_groups", fields["num_attention_heads"]) != fields["num_attention_heads"]:
        yield ("--group-query-attention",)
        yield "--num-query-groups", str(fields["num_query_groups"])
    if not fields["share_embeddings_and_output_weights"]:
        yield ("--untie-embeddings-and-output-weights",)
    if not fields["add_bias_linear"]:
        yield ("--disable-bias-linear",)
    if fields["gated_linear_unit"]:
        yield ("--swiglu",)
    elif fields["activation_func"] == "squared_relu":
        yield ("--squared-relu",)
    if subject.job.workload.mtp_depth:
        yield "--mtp-num-layers", str(subject.job.workload.mtp_depth)


def _parallel(subject: Subject) -> Iterator[Words]:
    layout, job = subject.layout, subject.job
    yield "--tensor-model-parallel-size", str(layout.tp)
    if layout.sp:
        yield ("--sequence-parallel",)
    for name, value in megatron_flags(layout.split, job.workload.mtp_depth, job.model).items():
        flag = f"--{name.replace('_', '-')}"
        yield (flag,) if value is True else (flag, str(value))
    if layout.split.group is not None:
        yield "--microbatch-group-size-per-virtual-pipeline-stage", str(layout.split.group)
    yield "--context-parallel-size", str(layout.cp)
    if layout.cp > 1:
        yield "--cp-comm-type", CP_WORDS[subject.knobs.cp_comm]
    sizes = hierarchy(job)
    if sizes is not None:
        yield "--hierarchical-context-parallel-sizes", *map(str, sizes)
    if job.model.is_moe:
        yield "--expert-model-parallel-size", str(layout.ep)
        yield "--expert-tensor-parallel-size", str(layout.etp)
    if job.cluster.rank_order == "tp-cp-ep-pp-dp":
        yield ("--use-tp-pp-dp-mapping",)


def _batch(subject: Subject) -> Iterator[Words]:
    yield "--micro-batch-size", str(subject.layout.mbs)
    yield "--global-batch-size", str(subject.layout.gbs)


def _optimizer(subject: Subject) -> Iterator[Words]:
    knobs, workload = subject.knobs, subject.job.workload
    yield from PRECISION[workload.precision.name]
    if workload.fp8_params and workload.precision.name != "nvfp4":
        yield ("--fp8-param-gather",)
        if workload.precision.name == "mxfp8":
            yield ("--reuse-grad-buf-for-mxfp8-param-ag",)
    if workload.precision.name == "fp16":
        if knobs.grad_dtype == "fp32":
            yield ("--accumulate-allreduce-grads-in-fp32",)
    elif knobs.grad_dtype == "bf16" and knobs.fsdp is Fsdp.none:
        yield ("--grad-reduce-in-bf16",)
    if workload.optimizer != "adam":
        yield "--optimizer", "dist_muon" if workload.optimizer == "muon" else workload.optimizer
    if knobs.distributed_optimizer:
        yield ("--use-distributed-optimizer",)
    if knobs.optimizer_instances > 1:
        yield "--num-distributed-optimizer-instances", str(knobs.optimizer_instances)
    low = knobs.moment_dtype != "fp32" or knobs.main_param_dtype != "fp32"
    if low or knobs.optimizer_offload:
        yield ("--use-precision-aware-optimizer",)
    if low:
        yield "--exp-avg-dtype", knobs.moment_dtype
        yield "--exp-avg-sq-dtype", knobs.moment_dtype
        yield "--main-params-dtype", knobs.main_param_dtype
    if knobs.optimizer_offload:
        yield ("--optimizer-cpu-offload",)
        yield "--optimizer-offload-fraction", str(knobs.optimizer_offload)
        yield ("--overlap-cpu-optimizer-d2h-h2d",)
    yield from _offload(subject)
    yield ("--cross-entropy-loss-fusion",)
    # Megatron-LM refuses the implementation of Transformer Engine at start-up (megatron/training/arguments.py, 0.19).
    yield "--cross-entropy-fusion-impl", "native"


def _offload(subject: Subject) -> Iterator[Words]:
    """Activations in host memory; the number of layers switches offloading by layers on."""
    if subject.knobs.offload_layers:
        yield "--cpu-offloading-num-layers", str(subject.knobs.offload_layers)
    if subject.knobs.offload_modules:
        yield ("--fine-grained-activation-offloading",)
        yield "--offload-modules", *subject.knobs.offload_modules


def _overlap(subject: Subject) -> Iterator[Words]:
    knobs, layout = subject.knobs, subject.layout
    if knobs.fsdp is not Fsdp.none:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", knobs.fsdp.name
        main = {"fp32": "fp32", "bf16": "bf16"}.get(knobs.grad_dtype, "auto")
        yield "--megatron-fsdp-main-grads-dtype", main
        yield ("--no-gradient-accumulation-fusion",)
    if knobs.overlap_grad_reduce:
        yield ("--overlap-grad-reduce",)
    if knobs.overlap_param_gather:
        yield ("--overlap-param-gather",)
    bucket = subject.overlap.field("ddp.bucket_size").effective
    if bucket is not None and knobs.overlap_grad_reduce and knobs.fsdp is Fsdp.none:
        yield "--ddp-bucket-size", str(bucket)
    if layout.pp > 1 and not (knobs.overlap_p2p and layout.vpp > 1):
        yield ("--no-overlap-p2p-communication",)
    if knobs.tp_overlap:
        yield ("--tp-comm-overlap",)
        if subject.overlap.buffers.gemms:
            yield "--tp-comm-overlap-cfg", BUFFER_FILE


def _experts(subject: Subject) -> Iterator[Words]:
    knobs, workload = subject.knobs, subject.job.workload
    if not subject.model.is_moe:
        return
    flex = knobs.dispatcher in (Dispatcher.deepep, Dispatcher.hybridep)
    yield "--moe-token-dispatcher-type", "flex" if flex else knobs.dispatcher.name
    if flex:
        yield "--moe-flex-dispatcher-backend", knobs.dispatcher.name
    if workload.capacity_factor is not None:
        yield "--moe-expert-capacity-factor", str(workload.capacity_factor)
        if workload.pad_to_capacity:
            yield ("--moe-pad-expert-input-to-capacity",)
    switches = {
        "--overlap-moe-expert-parallel-comm": knobs.ep_overlap,
        "--delay-wgrad-compute": knobs.delay_wgrad,
        "--moe-shared-expert-overlap": knobs.shared_expert_overlap,
    }
    yield from ((flag,) for flag, on in switches.items() if on)


def _memory(subject: Subject) -> Iterator[Words]:
    knobs = subject.knobs
    full = knobs.full_uniform or knobs.full_block
    if full:
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform" if knobs.full_uniform else "block"
        yield "--recompute-num-layers", str(full)
    elif knobs.recompute:
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", *knobs.recompute
    if knobs.cuda_graph is CudaGraph.none:
        return
    version = preset("versions.yaml")["core"][subject.core]
    if knobs.cuda_graph is CudaGraph.full_iteration:
        for flag, value in version["full_iteration"].items():
            yield f"--{flag}", *(value if isinstance(value, Sequence) and not isinstance(value, str) else [value])
        yield ("--no-check-for-nan-in-loss-and-grad",)
    else:
        modules = ("attn", "moe_router", "moe_preprocess") if subject.model.is_moe else ("attn",)
        yield "--cuda-graph-impl", "transformer_engine"
        yield f"--{version['cuda_graph_modules']}", *modules
    yield ("--te-rng-tracker",)


def _checkpoints(subject: Subject) -> Iterator[Words]:
    yield "--ckpt-format", "torch_dist" if subject.knobs.fsdp is Fsdp.none else "fsdp_dtensor"


def _buffers(subject: Subject) -> str | None:
    """User buffers in the YAML form that Megatron-LM hands to Transformer Engine; None without any."""
    found = subject.overlap.buffers
    if not subject.knobs.tp_overlap or not found.gemms:
        return None
    head = f"# {found.name or 'custom'}: {found.match}, {found.reason}\n"
    return head + yaml.safe_dump({gemm: dict(row) for gemm, row in found.gemms.items()}, sort_keys=False)
