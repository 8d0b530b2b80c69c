"""Optimizer, FSDP, data and packing: the cross-field checks of Bridge's ConfigContainer and of validate_args."""

from __future__ import annotations

from math import lcm

from advisor.rules.lint.form import AFTER_06, ARG, CFG, DDP, OPT, PERF, SINCE_06, SKILLS, rule
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import captures, graph

FSDP_SKILL = f"{SKILLS}-perf-megatron-fsdp"
PACK = f"{SKILLS}-perf-sequence-packing"
FREE_DTYPES = ("optimizer.main_grads_dtype", "optimizer.main_params_dtype", "optimizer.exp_avg_dtype",
               "optimizer.exp_avg_sq_dtype")  # fmt: skip
FINE_TUNING = ("GPTSFT", "Finetuning", "DirectHFSFT", "Energon", "MockVLM", "HFDataset")


def fsdp(c: Setup) -> bool:
    """Megatron-FSDP, under any of its names."""
    return any(c.on(key) for key in ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "ddp.use_custom_fsdp"))


def saves(c: Setup) -> bool:
    """Whether checkpoints are written or read."""
    return any(c.get(f"checkpoint.{key}") is not None for key in ("save", "load"))


def tuning(c: Setup) -> bool:
    """Fine-tuning data."""
    kind = c.fact("built.dataset")
    return c.fact("mode") in ("sft", "finetune", "peft", "lora") or (
        isinstance(kind, str) and kind.startswith(FINE_TUNING)
    )  # fmt: skip


def _low_states(c: Setup) -> str | None:
    if c.framework == "bridge" and not c.known("optimizer.use_precision_aware_optimizer"):
        return None
    wrong = [
        key for key in FREE_DTYPES if c.given(key) and c.get(key) not in (None, "fp32", "torch.float32", "float32")
    ]
    if wrong and not c.on("optimizer.use_precision_aware_optimizer"):
        return f"{wrong[0]} {c.get(wrong[0])} without the precision-aware optimizer"
    return None


def _v2(c: Setup) -> str | None:
    if not c.on("ddp.use_megatron_fsdp_v2") and c.get("ddp.megatron_fsdp_version") not in (2, "v2"):
        return None
    for key in ("tp", "pp", "cp", "ep"):
        if c.size(key) > 1:
            return f"Megatron-FSDP v2 with {key.upper()} {c.size(key)}"
    if c.n("experts") > 1:
        return "Megatron-FSDP v2 with experts"
    for key in ("fp8", "fp4", "calculate_per_token_loss", "optimizer.use_precision_aware_optimizer", "cpu_offloading",
                "optimizer.optimizer_cpu_offload", "checkpoint.save", "checkpoint.load"):  # fmt: skip
        if c.on(key):
            return f"Megatron-FSDP v2 with {key}"
    return "Megatron-FSDP v2 with CUDA graphs" if graph(c) != "none" else None


def _sft_length(c: Setup) -> str | None:
    seq = c.number("dataset.seq_length") or c.number("seq")
    if not tuning(c) or seq is None:
        return None
    unit = lcm(2 * c.cp if c.cp > 1 else 1, c.cp * c.tp if c.on("sp") and c.tp > 1 else 1)
    return f"fine-tuning length {seq} is no multiple of {unit} (CP {c.cp}, TP {c.tp})" if seq % unit else None


def _packs(c: Setup) -> bool:
    return c.on("dataset.enable_offline_packing") or c.get("dataset.packed_sequence_specs") is not None or (
        c.get("dataset.offline_packing_specs") is not None
    )  # fmt: skip


def _padded(c: Setup) -> bool:
    return c.on("dataset.pad_to_max_length") or c.on("dataset.dataset_kwargs.pad_to_max_length")


OPTIMIZER = (
    rule("offload-needs-precision-aware", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("optimizer.optimizer_cpu_offload") and c.off("optimizer.use_precision_aware_optimizer"),
         "--optimizer-cpu-offload without --use-precision-aware-optimizer", "--use-precision-aware-optimizer"),
    rule("offload-fp8-params-need-delayed", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("optimizer.optimizer_cpu_offload") and c.on("ddp.fp8_param_gather")
         and c.isnt("fp8_recipe", "delayed"),
         "optimizer offload with fp8 parameters and recipe {fp8_recipe}", "--fp8-recipe delayed"),
    rule("precision-aware-needs-adam", "stop", "transformer", "mcore", OPT,
         lambda c: c.on("optimizer.use_precision_aware_optimizer") and c.isnt("optimizer.optimizer", "adam", None),
         "the precision-aware optimizer with {optimizer.optimizer}", "optimizer adam"),
    rule("precision-aware-needs-distopt", "stop", "transformer", "mcore", OPT,
         lambda c: c.on("optimizer.use_precision_aware_optimizer") and not fsdp(c)
         and (c.off("ddp.use_distributed_optimizer") if c.framework == "megatron-lm" else
              c.stated("ddp.use_distributed_optimizer") is False
              and c.get("optimizer.use_distributed_optimizer") is not True),
         "the precision-aware optimizer without the distributed optimizer", "use_distributed_optimizer=true"),
    rule("precision-aware-same-precision", "stop", "transformer", "bridge", f"{CFG} (19)",
         lambda c: c.on("optimizer.use_precision_aware_optimizer") and c.given("bf16") and c.given("optimizer.bf16")
         and c.on("bf16") != c.on("optimizer.bf16"),
         "model.bf16 {bf16} and optimizer.bf16 {optimizer.bf16} differ", "set both alike"),
    rule("low-states-need-precision-aware", "stop", "transformer", "mcore", OPT, _low_states,
         "gradient, parameter or moment dtypes below fp32 need the precision-aware optimizer",
         "use_precision_aware_optimizer=true"),
    rule("optimizer-offload-is-slow", "slow", "transformer", "mcore", f"{SKILLS}-perf-memory-tuning (off-02)",
         lambda c: c.on("optimizer.optimizer_cpu_offload"),
         "optimizer offload: 1.9 times slower at 25 %, 4.2 at 100 % measured on Qwen3 30B", "the smallest fraction"),
    rule("fp8-params-need-distopt", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("ddp.fp8_param_gather") and c.off("ddp.use_distributed_optimizer") and not fsdp(c)
         and not c.on("dist.use_torch_fsdp2"),
         "--fp8-param-gather without the distributed optimizer or FSDP", "--use-distributed-optimizer"),
    rule("mxfp8-params-reuse-buffer", "stop", "transformer", "bridge", f"{CFG} (16)",
         lambda c: c.on("mixed_precision.fp8_param_gather") and c.get("mixed_precision.fp8_recipe") == "mxfp8"
         and not fsdp(c) and c.known("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag")
         and c.off("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"),
         "MXFP8 parameters are gathered without reuse_grad_buf_for_mxfp8_param_ag",
         "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=true"),
    rule("reused-buffer-needs-fp8-params", "stop", "transformer", "mcore", DDP,
         lambda c: c.on("ddp.reuse_grad_buf_for_mxfp8_param_ag") and c.off("ddp.fp8_param_gather")
         and not fsdp(c) and not c.has("mixed_precision"),
         "reuse_grad_buf_for_mxfp8_param_ag without fp8_param_gather", "fp8_param_gather=true"),
    rule("mxfp8-wants-reused-buffer", "info", "transformer", "megatron-lm", OPT,
         lambda c: c.on("fp8") and c.get("fp8_recipe") == "mxfp8" and c.off("ddp.reuse_grad_buf_for_mxfp8_param_ag"),
         "mxfp8 without fp8_param_gather and reuse_grad_buf_for_mxfp8_param_ag takes much more memory", "set both"),
    rule("fp32-grads-dtype", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("bf16") and c.on("ddp.grad_reduce_in_fp32")
         and c.get("optimizer.main_grads_dtype") not in (None, "fp32"),
         "--accumulate-allreduce-grads-in-fp32 with main gradients in {optimizer.main_grads_dtype}",
         "main_grads_dtype fp32"),
    rule("deterministic-without-fused-loss", "stop", "transformer", "bridge megatron-lm", f"{CFG} (17)",
         lambda c: c.on("deterministic_mode") and c.given("deterministic_mode") and c.on("cross_entropy_loss_fusion"),
         "deterministic mode with cross-entropy fusion", "cross_entropy_loss_fusion=false"),
    rule("deterministic-needs-nccl-algo", "stop", "environment", "bridge", f"{CFG} (17)",
         lambda c: c.on("deterministic_mode") and c.given("deterministic_mode") and (
             c.unset("NCCL_ALGO") or (c.variable("NCCL_ALGO") or "Ring") not in (
                 "Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")),
         "deterministic mode with NCCL_ALGO {env.NCCL_ALGO}", "export NCCL_ALGO=Ring"),
    rule("modelopt-without-fused-accumulation", "stop", "transformer", "bridge", f"{CFG} (23)",
         lambda c: c.on("restore_modelopt_state") and c.stated("gradient_accumulation_fusion") is not False
         and c.on("gradient_accumulation_fusion"),
         "restoring ModelOpt state with gradient_accumulation_fusion", "gradient_accumulation_fusion=false"),
)  # fmt: skip

FSDP = (
    rule("fsdp-one-kind", "stop", "transformer", "bridge megatron-lm", f"{CFG} (11)",
         lambda c: fsdp(c) and c.on("dist.use_torch_fsdp2"), "Megatron-FSDP and torch FSDP2 together", "Megatron-FSDP"),
    rule("fsdp-forbids-one-connection", "stop", "environment", "bridge megatron-lm", f"{CFG} (12); {ARG}",
         lambda c: (fsdp(c) or c.on("dist.use_torch_fsdp2")) and c.variable("CUDA_DEVICE_MAX_CONNECTIONS") == "1",
         "FSDP with CUDA_DEVICE_MAX_CONNECTIONS=1", "CUDA_DEVICE_MAX_CONNECTIONS=8, or unset it", versions=SINCE_06),
    rule("fsdp-needs-dtensor", "stop", "checkpoint", "bridge", f"{CFG} (12); {FSDP_SKILL} (fsdp-01)",
         lambda c: fsdp(c) and saves(c) and c.isnt("checkpoint.ckpt_format", "fsdp_dtensor"),
         "Megatron-FSDP with checkpoint format {checkpoint.ckpt_format}", "checkpoint.ckpt_format=fsdp_dtensor"),
    rule("fsdp-needs-dtensor-flag", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: fsdp(c) and c.isnt("checkpoint.ckpt_format", "fsdp_dtensor"),
         "--use-megatron-fsdp with --ckpt-format {checkpoint.ckpt_format}", "--ckpt-format fsdp_dtensor"),
    rule("dtensor-needs-fsdp", "stop", "checkpoint", "bridge megatron-lm", f"{CFG} (15); {ARG}",
         lambda c: c.get("checkpoint.ckpt_format") == "fsdp_dtensor" and c.given("checkpoint.ckpt_format")
         and not fsdp(c) and (saves(c) or c.framework == "megatron-lm")
         and (c.framework == "megatron-lm" or not c.fact("recipe") or c.given("ddp.use_megatron_fsdp")),
         "checkpoint format fsdp_dtensor without Megatron-FSDP", "ckpt_format torch_dist"),
    rule("fsdp-needs-plain-optimizer", "stop", "transformer", "megatron-lm", ARG,
         lambda c: fsdp(c) and c.isnt("optimizer.optimizer", "adam", "sgd", None),
         "Megatron-FSDP with optimizer {optimizer.optimizer}", "optimizer adam or sgd"),
    rule("fsdp-with-tp-discouraged", "info", "environment", "megatron-lm", ARG,
         lambda c: (fsdp(c) or c.on("dist.use_torch_fsdp2")) and (c.tp > 1 or c.cp > 1)
         and c.capability is not None and c.capability[0] < 10,
         "TP {tp} / CP {cp} want CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell, FSDP must not have it", "TP 1, CP 1"),
    rule("fsdp-registration-needs-ub", "stop", "transformer", "bridge megatron-lm", f"{CFG} (12); {ARG}",
         lambda c: c.on("ddp.fsdp_manual_registration") and (c.off("ddp.nccl_ub") or not fsdp(c)),
         "fsdp_manual_registration needs Megatron-FSDP and nccl_ub", "ddp.nccl_ub=true", versions=SINCE_06),
    rule("fsdp-forces-registration", "silent", "transformer", "bridge", f"{CFG} (12)",
         lambda c: fsdp(c) and c.on("ddp.nccl_ub") and c.stated("ddp.fsdp_manual_registration") is False,
         "nccl_ub switches fsdp_manual_registration on", "drop fsdp_manual_registration=false", versions=SINCE_06),
    rule("fsdp-without-mapping", "stop", "transformer", "bridge", f"{CFG} (12)",
         lambda c: fsdp(c) and c.on("dist.use_tp_pp_dp_mapping"), "Megatron-FSDP with use_tp_pp_dp_mapping", "drop it"),
    rule("fsdp-without-hash-check", "stop", "transformer", "bridge megatron-lm", f"{CFG} (12); {ARG}",
         lambda c: fsdp(c) and c.get("ddp.data_parallel_sharding_strategy") == "optim_grads_params"
         and c.get("train.check_weight_hash_across_dp_replicas_interval") is not None,
         "the weight-hash check with optim_grads_params: no rank holds whole weights", "drop the interval",
         versions=SINCE_06),
    rule("fsdp-forces-settings", "silent", "transformer", "bridge", f"{CFG} (13)",
         lambda c: fsdp(c) and (c.stated("ddp.use_distributed_optimizer") is False
                                or c.stated("optimizer.use_distributed_optimizer") is False
                                or (c.stated("ddp.average_in_collective") is True
                                    and not c.on("ddp.disable_symmetric_registration"))
                                or c.stated("ddp.reuse_grad_buf_for_mxfp8_param_ag") is True
                                or c.stated("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag") is True),
         "Megatron-FSDP switches the distributed optimizer on, average_in_collective and "
         "reuse_grad_buf_for_mxfp8_param_ag off", "drop these settings"),
    rule("fsdp-v2-limits", "stop", "transformer", "bridge", f"{CFG} (14)", _v2, "Megatron-FSDP v2 does not take this",
         "Megatron-FSDP v1", versions=AFTER_06),
    rule("torch-fsdp2-limits", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("dist.use_torch_fsdp2") and next((what for bad, what in (
             (c.pp > 1, "--use-torch-fsdp2 with PP"), (c.ep > 1, "--use-torch-fsdp2 with EP"),
             (c.on("ddp.use_distributed_optimizer"), "--use-torch-fsdp2 with the distributed optimizer"),
             (c.on("gradient_accumulation_fusion"), "--use-torch-fsdp2 with gradient accumulation fusion"),
             (c.isnt("checkpoint.ckpt_format", "torch_dist", "torch_dcp"),
             "--use-torch-fsdp2 with this checkpoint format"),
             (c.off("untie_embeddings_and_output_weights"), "--use-torch-fsdp2 with tied embeddings"),
             (c.on("fp16"), "--use-torch-fsdp2 with fp16")) if bad), None),
         "torch FSDP2 does not take this", "Megatron-FSDP"),
    rule("torch-fsdp2-in-bridge", "stop", "transformer", "bridge", f"{FSDP_SKILL} (fsdp-02)",
         lambda c: c.on("dist.use_torch_fsdp2") and not fsdp(c), "use_torch_fsdp2 fails before training in Bridge",
         "ddp.use_megatron_fsdp=true"),
    rule("expandable-segments-vs-nccl-ub", "stop", "environment", "mcore", f"{DDP}; {SKILLS} (mem-04)",
         lambda c: c.on("ddp.nccl_ub") and "expandable_segments:True" in (c.variable("PYTORCH_CUDA_ALLOC_CONF") or ""),
         "expandable_segments with NCCL user buffers", "unset PYTORCH_CUDA_ALLOC_CONF", versions="torch <2.11"),
    rule("dcp-needs-fsdp2", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.get("checkpoint.ckpt_format") == "torch_dcp" and not c.on("dist.use_torch_fsdp2"),
         "--ckpt-format torch_dcp without --use-torch-fsdp2", "--ckpt-format torch_dist"),
)  # fmt: skip

DATASETS = (
    rule("same-sequence-length", "stop", "transformer", "bridge", f"{CFG} (29)",
         lambda c: c.given("dataset.seq_length", "dataset.sequence_length", "seq")
         and (length := c.number("dataset.seq_length") or c.number("dataset.sequence_length")) is not None
         and (c.given("seq") or c.fact("recipe") is not None) and c.number("seq") is not None
         and c.number("seq") != length,
         "model.seq_length {seq} and the dataset's {dataset.seq_length} differ", "set both alike"),
    rule("sft-length-divides", "stop", "transformer", "bridge", f"{CFG} (7)", _sft_length,
         "the fine-tuning length does not divide", "pad to the multiple", versions="bridge >=0.6"),
    rule("sft-cp-per-token-loss", "stop", "transformer", "bridge", f"{CFG} (26); {SKILLS} (cp-04)",
         lambda c: tuning(c) and c.cp > 1 and (c.off("calculate_per_token_loss")
                                               or c.get("ddp.average_in_collective") is True),
         "fine-tuning with CP {cp} needs calculate_per_token_loss and no average_in_collective",
         "model.calculate_per_token_loss=true ddp.average_in_collective=false"),
    rule("packing-micro-batch-one", "stop", "transformer", "bridge", f"{CFG} (3); {PACK} (pk-01)",
         lambda c: _packs(c) and not c.on("dataset.enable_in_batch_packing") and (c.number("mbs") or 1) > 1,
         "offline packing with micro batch {mbs}", "micro_batch_size=1, scale the packed length"),
    rule("packing-exclusive", "stop", "transformer", "bridge", f"{CFG} (3)",
         lambda c: _packs(c) and c.on("dataset.enable_in_batch_packing"), "offline and in-batch packing together",
         "keep one"),
    rule("packing-specs-iff-enabled", "stop", "transformer", "bridge", f"{CFG} (3)",
         lambda c: (c.stated("dataset.enable_offline_packing") is True and c.given("dataset.offline_packing_specs")
                    and c.get("dataset.offline_packing_specs") is None)
         or (c.stated("dataset.enable_offline_packing") is False
             and (c.get("dataset.offline_packing_specs") is not None
                  or c.given("dataset.offline_packing_specs.packed_sequence_size"))),
         "enable_offline_packing {dataset.enable_offline_packing} and the packing specs disagree", "set both"),
    rule("packing-positive-size", "stop", "transformer", "bridge", f"{CFG} (3)",
         lambda c: any(c.number(f"dataset.{key}.packed_sequence_size") is not None
                       and c.n(f"dataset.{key}.packed_sequence_size") <= 0
                       for key in ("offline_packing_specs", "packed_sequence_specs"))
         and c.stated("dataset.enable_offline_packing") is not False,
         "a packed sequence size of 0 or less", "a size above 0"),
    rule("packing-cu-seqlens-padded", "stop", "transformer", "bridge", f"{CFG} (3, 4)",
         lambda c: c.on("dataset.offline_packing_specs.pad_cu_seqlens") and c.known("dataset.pad_to_max_length")
         and not _padded(c),
         "pad_cu_seqlens needs pad_to_max_length", "dataset.pad_to_max_length=true"),
    rule("packing-with-graphs", "stop", "transformer", "bridge", f"{CFG} (4); {SKILLS} (cg-07)",
         lambda c: _packs(c) and graph(c) in ("full_iteration", "transformer_engine")
         and (c.known("dataset.pad_to_max_length") or not c.fact("imports_megatron")) and (
             not _padded(c) or (captures(c, "attn") and not c.on("dataset.offline_packing_specs.pad_cu_seqlens")
                                and not c.on("dataset.packed_sequence_specs.pad_cu_seqlens"))),
         "offline packing with CUDA graphs needs pad_to_max_length, and pad_cu_seqlens where attention is captured",
         "set both"),
    rule("in-batch-packing-micro-batch", "stop", "transformer", "bridge", f"{CFG} (5)",
         lambda c: c.on("dataset.enable_in_batch_packing") and c.number("mbs") == 1,
         "in-batch packing with micro batch 1", "micro_batch_size=2 or more"),
    rule("energon-micro-batch", "stop", "transformer", "bridge", f"{CFG} (6)",
         lambda c: str(c.fact("built.dataset") or "").startswith("Energon") and c.number("mbs") is not None
         and c.number("dataset.micro_batch_size") is not None
         and c.number("mbs") != c.number("dataset.micro_batch_size"),
         "Energon micro batch {dataset.micro_batch_size} and train micro batch {mbs} differ", "set both alike"),
    rule("padding-forced", "silent", "transformer", "bridge", f"{CFG} (8)",
         lambda c: c.stated("dataset.pad_to_max_length") is False and (c.pp > 1 or c.ep > 1),
         "pad_to_max_length false with PP {pp} and EP {ep}: it becomes true", "set it true"),
    rule("peft-needs-pretrained", "stop", "checkpoint", "bridge", f"{CFG} (28)",
         lambda c: (c.has("peft") or c.fact("mode") in ("peft", "lora"))
         and c.get("checkpoint.pretrained_checkpoint") is None
         and (not c.fact("recipe") or c.given("checkpoint.pretrained_checkpoint") or c.given("peft")),
         "PEFT without checkpoint.pretrained_checkpoint", "checkpoint.pretrained_checkpoint=PATH"),
    rule("deprecated-eval-fields", "silent", "transformer", "bridge", f"{CFG} (31)",
         lambda c: any(c.given(f"train.{key}") and c.given(f"validation.{key}")
                       and c.get(f"train.{key}") not in (None, c.get(f"validation.{key}"))
                       for key in ("eval_iters", "eval_interval", "eval_global_batch_size", "eval_micro_batch_size")),
         "eval fields on train overwrite those on validation", "validation.eval_iters, validation.eval_interval"),
    rule("gloo-with-decentralized", "stop", "transformer", "bridge", f"{CFG} (25)",
         lambda c: c.on("dist.use_decentralized_pg") and c.stated("dist.use_gloo_process_groups") is not False
         and (c.given("dist.use_gloo_process_groups") or not c.fact("recipe")) and c.given("dist.use_decentralized_pg"),
         "decentralized process groups with Gloo groups", "dist.use_gloo_process_groups=false"),
    rule("no-gloo-needs-dist-checkpoint", "stop", "checkpoint", "bridge megatron-lm", f"{CFG} (25); {ARG}",
         lambda c: c.off("dist.use_gloo_process_groups") and c.get("dist.use_gloo_process_groups") is False
         and c.get("checkpoint.ckpt_format") in ("torch", "torch_dcp", "zarr")
         and (c.on("optimizer.use_distributed_optimizer") or c.on("ddp.use_distributed_optimizer")),
         "no Gloo groups, distributed optimizer and checkpoint format {checkpoint.ckpt_format}",
         "ckpt_format torch_dist"),
    rule("one-profiler", "stop", "launch", "bridge", f"{CFG} (33)",
         lambda c: c.on("profiling.use_pytorch_profiler") and c.on("profiling.use_nsys_profiler"),
         "nsys and PyTorch profiler together", "keep one"),
    rule("profile-steps-in-order", "stop", "launch", "bridge", f"{CFG} (33)",
         lambda c: ((start := c.number("profiling.profile_step_start")) is not None and start < 0)
         or ((end := c.number("profiling.profile_step_end")) is not None and end < (start or 0)),
         "profile steps {profiling.profile_step_start} to {profiling.profile_step_end}", "0 <= start <= end"),
)  # fmt: skip

FRAME = (*OPTIMIZER, *FSDP, *DATASETS)
__all__ = ["FRAME", "PERF", "fsdp", "saves", "tuning"]
