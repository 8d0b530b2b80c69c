"""Communication overlap: what Bridge's CommOverlapConfig decides, what Megatron-LM switches off, user buffers."""

from __future__ import annotations

import re

from advisor.rules.lint.form import ARG, CFG, COMM, DDP, OVERLAP, SINCE_06, SKILLS, Hit, rule
from advisor.rules.lint.setup import Setup

SCH = "ML:megatron/core/pipeline_parallel/schedules.py"
TE_LAYERS = "ML:megatron/core/extensions/transformer_engine.py (TELinear, tp_comm_buffer_name)"
BUFFER = "ML:megatron/core/distributed/param_and_grad_buffer.py"
TP_SKILL = f"{SKILLS}-perf-tp-dp-comm-overlap/SKILL.md"
LOST_DDP = ("overlap_grad_reduce", "overlap_param_gather", "bucket_size", "align_param_gather")
LOST_MODEL = ("overlap_p2p_comm", "batch_p2p_comm", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute",
              "defer_embedding_wgrad_compute", "wgrad_deferral_limit")  # fmt: skip
PRECISION_OWNED = ("grad_reduce_in_fp32", "fp8_param_gather", "fp4_param_gather", "reuse_grad_buf_for_mxfp8_param_ag")
PRESET = re.compile(
    r"userbuffers_(?P<precision>bf16|fp8)_(?P<arch>[a-z]\d+)_h(?P<hidden>\d+)_tp(?P<tp>\d+)"
    r"(?:_cp(?P<cp>\d+))?_mbs(?P<mbs>\d+)_seqlen(?P<seq>\d+)"
)
MAJOR = {"a": 8, "h": 9, "b": 10}


def _tp_overlap(c: Setup) -> bool:
    return c.on("comm_overlap.tp_comm_overlap")


def _buckets(c: Setup) -> bool:
    """Whether step 5 of Bridge writes the data-parallel fields: DP > 1 and a distributed optimizer seen by ddp."""
    return c.has("comm_overlap") and c.dp != 1 and not c.off("ddp.use_distributed_optimizer")


def _auto_ddp(c: Setup, key: str) -> object:
    if key in ("overlap_grad_reduce", "overlap_param_gather"):
        return True
    if key == "bucket_size":
        return 134217728
    return c.pp > 1 and c.vpp > 1


def _lost_ddp(c: Setup) -> Hit | None:
    if not _buckets(c):
        return None
    lost = [key for key in LOST_DDP if c.given(f"ddp.{key}") and c.get(f"comm_overlap.{key}") is None
            and c.stated(f"ddp.{key}") != _auto_ddp(c, key)]  # fmt: skip
    if not lost:
        return None
    names = ", ".join(f"ddp.{key}={c.stated(f'ddp.{key}')}" for key in lost)
    return Hit(f"{names} is overwritten by the CommOverlapConfig (its own field is not set)",
               "set " + ", ".join(f"comm_overlap.{key}" for key in lost) + " too")  # fmt: skip


def _auto_model(c: Setup, key: str) -> object:
    if key in ("overlap_p2p_comm", "batch_p2p_comm"):
        return c.pp > 1 and (c.vpp > 1) == (key == "overlap_p2p_comm")
    return -1 if key == "wgrad_deferral_limit" else False


def _lost_model(c: Setup) -> Hit | None:
    if not c.has("comm_overlap"):
        return None
    lost = [key for key in LOST_MODEL if c.given(key) and c.get(f"comm_overlap.{key}") is None
            and c.stated(key) is not None and c.stated(key) != _auto_model(c, key)]  # fmt: skip
    if c.stated("tp_comm_overlap") is True and c.off("comm_overlap.tp_comm_overlap"):
        lost.append("tp_comm_overlap")
    if not lost or (lost == ["delay_wgrad_compute"] and not c.on("comm_overlap.overlap_moe_expert_parallel_comm")):
        return None
    names = ", ".join(f"model.{key}={c.stated(key)}" for key in lost)
    return Hit(f"{names} is overwritten by the CommOverlapConfig (its own field is not set)",
               "set " + ", ".join(f"comm_overlap.{key}" for key in lost))  # fmt: skip


def _precision_wins(c: Setup) -> Hit | None:
    if c.framework != "bridge" or not (c.has("mixed_precision") or c.fact("recipe")):
        return None
    for key in PRECISION_OWNED:
        mine, theirs = c.stated(f"ddp.{key}"), c.get(f"mixed_precision.{key}")
        if theirs is None and key == "grad_reduce_in_fp32" and c.fact("recipe") and not c.has("mixed_precision"):
            theirs = True
        if c.given(f"ddp.{key}") and theirs is not None and mine != theirs:
            text = f"ddp.{key}={mine} is overwritten by mixed_precision"
            return Hit(text + (f" ({theirs})" if theirs is not None else ""), f"set mixed_precision.{key}")
    return None


def _p2p_both(c: Setup) -> bool:
    overlap, batch = c.get("comm_overlap.overlap_p2p_comm"), c.get("comm_overlap.batch_p2p_comm")
    if not c.has("comm_overlap"):
        return c.on("overlap_p2p_comm") and c.on("batch_p2p_comm") and c.vpp > 1
    auto_batch = c.pp > 1 and c.vpp <= 1
    auto_overlap = c.pp > 1 and c.vpp > 1
    both = (auto_overlap if overlap is None else overlap) and (auto_batch if batch is None else batch)
    return bool(both) and c.pp > 1


def _asked_p2p(c: Setup) -> bool:
    return c.get("comm_overlap.overlap_p2p_comm") is True or (
        not c.has("comm_overlap") and c.stated("overlap_p2p_comm") is True
    )  # fmt: skip


def _plain_pipeline(c: Setup) -> bool:
    """A pipeline of Megatron-LM without virtual stages, whose default asks for the overlap all the same."""
    return c.pp > 1 and c.fact("interleaved") is False and c.get("overlap_p2p_comm") is not False


def _asks_overlap(c: Setup) -> bool:
    """Whether a script itself asks for overlapped communication, so that it will miss that of the pipeline."""
    asked = ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather", "tp_comm_overlap", "overlap_p2p_comm_warmup_flush")
    return any(c.stated(key) is True for key in asked)


def _preset(c: Setup) -> re.Match[str] | None:
    name = c.get("comm_overlap.tp_comm_overlap_cfg") or c.get("tp_comm_overlap_cfg")
    return PRESET.search(name) if isinstance(name, str) else None


def _preset_fits(c: Setup) -> str | None:
    found = _preset(c)
    if found is None or not _tp_overlap(c):
        return None
    expected = {"tp": "tp", "cp": "cp", "mbs": "mbs", "hidden": "hidden_size", "seq": "seq"}
    wrong = []
    for part, key in expected.items():
        stated = c.number(key)
        if found[part] and stated is not None and int(found[part]) != stated:
            wrong.append(f"{part} {stated} instead of {found[part]}")
    if c.capability is not None and MAJOR.get(found["arch"][0]) not in (None, c.capability[0]):
        wrong.append(f"GPU {c.gpu_name} instead of {found['arch']}")
    return f"user-buffer preset {found[0]} is made for another run: {', '.join(wrong)}" if wrong else None


def _bad_preset(c: Setup) -> str | None:
    value = c.get("comm_overlap.tp_comm_overlap_cfg")
    if not (_tp_overlap(c) and c.given("comm_overlap.tp_comm_overlap_cfg")) or value is None:
        return None
    kind = c.fact("tp_preset_kind")
    return f"tp_comm_overlap_cfg is a {kind}, the preset object is needed (TypeError)" if kind else None


def _ineffective_tp(c: Setup) -> str | None:
    if not (_tp_overlap(c) or (c.framework == "bridge" and not c.has("comm_overlap") and c.on("tp_comm_overlap"))):
        return None
    if c.one("tp"):
        return "TP communication overlap is asked for with TP 1: Bridge switches it off with one warning"
    if c.tp > 1 and c.off("sp"):
        return f"TP communication overlap is asked for without sequence parallelism (TP {c.tp}): Bridge switches it off"
    return None


TENSOR = (
    rule("tp-overlap-needs-sp", "silent", "overlap", "bridge", f"{COMM}; {OVERLAP}", _ineffective_tp,
         "TP communication overlap needs TP >= 2 and sequence parallelism; else it is switched off",
         "sequence_parallel=true with TP >= 2, or drop the request"),
    rule("tp-overlap-needs-te", "silent", "overlap", "bridge", f"{COMM}; {OVERLAP}",
         lambda c: _tp_overlap(c) and "te" in c.packages and c.packages["te"] is None,
         "TP communication overlap without Transformer Engine: Bridge switches it off", "install transformer-engine"),
    rule("tp-overlap-needs-te-layers", "silent", "overlap", "bridge", COMM,
         lambda c: _tp_overlap(c) and c.get("transformer_impl") == "local",
         "TP communication overlap with transformer_impl local: no layer uses it",
         "transformer_impl=transformer_engine"),
    rule("tp-overlap-lost-with-mla", "silent", "overlap", "mcore", TE_LAYERS,
         lambda c: (_tp_overlap(c) or c.on("tp_comm_overlap")) and c.tp > 1 and not c.off("sp")
         and c.on("multi_latent_attention"),
         "TP communication overlap with multi-head latent attention: its projections have buffer names that Transformer"
         " Engine does not know, and the first of them switches the overlap off for every layer built after it",
         "drop the request; with experts, EP in place of TP"),
    rule("tp-overlap-needs-sp-flag", "stop", "overlap", "megatron-lm", ARG,
         lambda c: c.on("tp_comm_overlap") and (c.off("sp") or c.one("tp")),
         "--tp-comm-overlap without --sequence-parallel (TP {tp})", "--sequence-parallel with TP > 1"),
    rule("tp-overlap-without-preset", "info", "overlap", "bridge", COMM,
         lambda c: _tp_overlap(c) and c.tp > 1 and not c.off("sp") and c.get("comm_overlap.tp_comm_overlap_cfg") is None
         and c.get("tp_comm_overlap_cfg") is None,
         "TP communication overlap without a user-buffer preset: Transformer Engine's own defaults are used",
         "choose a preset by GPU, precision and hidden size"),
    rule("tp-preset-is-object", "stop", "overlap", "bridge", f"{COMM} (TypeError)", _bad_preset,
         "tp_comm_overlap_cfg must be a preset object, not a dict or a name", "import the preset from comm_overlap"),
    rule("tp-preset-fits", "silent", "overlap", "bridge", f"{TP_SKILL} (tp-02)", _preset_fits,
         "the user-buffer preset is made for another layout", "pick by hidden size, GPU and precision"),
    rule("tp-preset-without-overlap", "silent", "overlap", "bridge", COMM,
         lambda c: c.off("comm_overlap.tp_comm_overlap") and c.get("comm_overlap.tp_comm_overlap_cfg") is not None
         and c.given("comm_overlap.tp_comm_overlap_cfg"),
         "a user-buffer preset with tp_comm_overlap off has no effect", "tp_comm_overlap=true"),
    rule("tp-overlap-is-required-field", "stop", "overlap", "bridge", COMM,
         lambda c: c.fact("built.comm_overlap") is not None and not c.given("comm_overlap.tp_comm_overlap"),
         "CommOverlapConfig without tp_comm_overlap: the field has no default", "tp_comm_overlap=False"),
)  # fmt: skip

PIPELINE = (
    rule("p2p-overlap-needs-vpp", "silent", "overlap", "megatron-lm", f"{ARG} (Setting args.overlap_p2p_comm)",
         lambda c: _plain_pipeline(c) and _asks_overlap(c),
         "PP {pp} without virtual stages: Megatron-LM sets overlap_p2p_comm and align_param_gather to False",
         "virtual stages (--num-layers-per-virtual-pipeline-stage), or --no-overlap-p2p-communication"),
    rule("pp2-interleave-needs-overlap", "stop", "overlap", "megatron-lm", ARG,
         lambda c: c.pp == 2 and c.fact("interleaved") is True and c.get("overlap_p2p_comm") is False,
         "PP 2 interleaved without p2p overlap: PP must be greater than 2", "drop --no-overlap-p2p-communication"),
    rule("p2p-overlap-asked-without-vpp", "stop", "overlap", "bridge", f"{COMM}; {SCH}",
         lambda c: _asked_p2p(c) and c.pp > 1 and c.known("vpp") and c.vpp <= 1
         and c.get("pipeline_model_parallel_layout") is None,
         "overlap_p2p_comm with PP {pp} and no virtual stages: the schedule refuses it",
         "virtual_pipeline_model_parallel_size > 1, or leave it unset"),
    rule("p2p-overlap-asked-without-pp", "silent", "overlap", "bridge", f"{COMM}; {OVERLAP}",
         lambda c: c.stated("comm_overlap.overlap_p2p_comm") is True and c.one("pp"),
         "overlap_p2p_comm with PP 1: there is nothing to overlap", "drop it"),
    rule("p2p-overlap-xor-batch", "stop", "overlap", "mcore", f"{SCH} (interleaved: not both)", _p2p_both,
         "overlap_p2p_comm and batch_p2p_comm are both on", "batch_p2p_comm=false"),
    rule("p2p-not-overlapped", "info", "overlap", "bridge megatron-lm", f"{COMM}; {ARG}; {OVERLAP}",
         lambda c: (_plain_pipeline(c) and not _asks_overlap(c)) if c.framework == "megatron-lm" else (
             c.has("comm_overlap") and c.pp > 1 and c.known("vpp") and c.vpp <= 1 and not _asked_p2p(c)
             and c.get("pipeline_model_parallel_layout") is None),
         "PP {pp} without virtual stages: p2p is batched, nothing of it is overlapped",
         "virtual stages (VPP > 1) where the layers divide"),
    rule("warmup-flush-needs-overlap", "stop", "overlap", "mcore", "ML:megatron/core/model_parallel_config.py",
         lambda c: c.on("overlap_p2p_comm_warmup_flush")
         and (c.off("overlap_p2p_comm") or c.on("batch_p2p_comm") or c.fact("interleaved") is False),
         "overlap in warm-up and flush needs overlap_p2p_comm without batch_p2p_comm", "overlap_p2p_comm=true"),
    rule("deferred-embedding-wgrad", "stop", "overlap", "mcore", f"{COMM}; ML:megatron/core/model_parallel_config.py",
         lambda c: (c.on("comm_overlap.defer_embedding_wgrad_compute")
                    or (c.on("defer_embedding_wgrad_compute") and not c.has("comm_overlap")))
         and (c.one("pp") or c.off("gradient_accumulation_fusion")
              or (c.has("comm_overlap") and (c.number("comm_overlap.wgrad_deferral_limit") is None
                                             or c.n("comm_overlap.wgrad_deferral_limit") < 0))),
         "defer_embedding_wgrad_compute needs PP > 1 (PP {pp}), gradient_accumulation_fusion and a "
         "wgrad_deferral_limit of 0 or more (the automatic value is -1)", "set wgrad_deferral_limit=0, or drop it"),
    rule("override-after-finalize", "silent", "overlap", "bridge",
         "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/627",
         lambda c: c.fact("after_finalize") is not None,
         "{fact.after_finalize} is set after finalize(): values derived from it "
         "(microbatch_group_size_per_vp_stage, ...) stay as they were", "set it before finalize()"),
    rule("comm-overlap-edited-late", "silent", "overlap", "bridge", COMM,
         lambda c: c.fact("comm_overlap_after_finalize") is not None,
         "{fact.comm_overlap_after_finalize} is set after comm_overlap.finalize(): a snapshot was taken, the edit is "
         "lost",
         "set it before finalize()"),
)  # fmt: skip

DATA = (
    rule("param-gather-needs-distopt", "stop", "overlap", "megatron-lm", ARG,
         lambda c: c.on("ddp.overlap_param_gather") and c.off("ddp.use_distributed_optimizer")
         and not c.on("ddp.use_megatron_fsdp") and c.get("optimizer.optimizer") != "dist_muon",
         "--overlap-param-gather without the distributed optimizer", "--use-distributed-optimizer"),
    rule("param-gather-needs-grad-reduce", "stop", "overlap", "megatron-lm", ARG,
         lambda c: c.on("ddp.overlap_param_gather") and c.off("ddp.overlap_grad_reduce"),
         "--overlap-param-gather without --overlap-grad-reduce", "--overlap-grad-reduce"),
    rule("param-gather-without-grad-reduce", "stop", "overlap", "bridge",
         "ML:megatron/core/distributed/distributed_data_parallel.py",
         lambda c: c.stated("comm_overlap.overlap_param_gather") is True
         and c.stated("comm_overlap.overlap_grad_reduce") is False,
         "overlap_param_gather with overlap_grad_reduce off", "overlap_grad_reduce=true"),
    rule("gather-with-step-needs-vpp", "stop", "overlap", "megatron-lm", ARG,
         lambda c: c.on("optimizer.overlap_param_gather_with_optimizer_step")
         and (c.fact("interleaved") is False or c.off("ddp.overlap_param_gather")
              or c.off("ddp.use_distributed_optimizer") or c.get("checkpoint.ckpt_format") in (
                  "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor")),
         "--overlap-param-gather-with-optimizer-step needs the distributed optimizer, param gather overlap, "
         "interleaved "
         "stages and a checkpoint format other than {checkpoint.ckpt_format}", "drop it"),
    rule("gather-with-step-needs-vpp-bridge", "silent", "overlap", "bridge", COMM,
         lambda c: c.on("comm_overlap.overlap_param_gather_with_optimizer_step") and c.known("pp") and c.known("vpp")
         and (c.pp <= 1 or c.vpp <= 1),
         "overlap_param_gather_with_optimizer_step with PP {pp} and VPP {vpp}: it needs interleaved stages", "drop it"),
    rule("mxfp8-buffer-xor-gather-with-step", "stop", "overlap", "mcore",
         "ML:megatron/core/optimizer/optimizer_config.py",
         lambda c: c.on("ddp.reuse_grad_buf_for_mxfp8_param_ag") and (
             c.on("optimizer.overlap_param_gather_with_optimizer_step")
             or c.on("comm_overlap.overlap_param_gather_with_optimizer_step")),
         "reuse_grad_buf_for_mxfp8_param_ag with the gather in the optimizer step", "keep one"),
    rule("ddp-fields-lost", "silent", "overlap", "bridge", f"{COMM} (what beats what)", _lost_ddp,
         "a ddp field is overwritten by the CommOverlapConfig", "set the field of CommOverlapConfig too"),
    rule("model-fields-lost", "silent", "overlap", "bridge", f"{COMM} (what beats what)", _lost_model,
         "a model field is overwritten by the CommOverlapConfig", "set the field of CommOverlapConfig too"),
    rule("bucket-size-none-impossible", "silent", "overlap", "bridge", COMM,
         lambda c: c.given("comm_overlap.bucket_size") and c.get("comm_overlap.bucket_size") is None and _buckets(c),
         "comm_overlap.bucket_size None reads as unset: 134217728 parameters are taken", "state a number"),
    rule("bucket-size-is-a-count", "silent", "overlap", "bridge", f"{COMM}; {OVERLAP}",
         lambda c: next((f"{key} is {c.get(key)}: it is a number of parameters"
                         for key in ("comm_overlap.bucket_size", "ddp.bucket_size") if isinstance(c.get(key),
                         bool | str)),
                        None),
         "bucket_size must be a number of parameters", "bucket_size=134217728"),
    rule("bucket-size-needs-grad-overlap", "silent", "overlap", "bridge mcore", BUFFER,
         lambda c: (c.stated("comm_overlap.bucket_size") is not None
         and c.stated("comm_overlap.overlap_grad_reduce") is False)
         or (not c.has("comm_overlap") and c.stated("ddp.bucket_size") is not None
             and c.off("ddp.overlap_grad_reduce")),
         "a bucket size without the overlap of the gradient reduction: everything is one bucket",
         "overlap_grad_reduce=true"),
    rule("bucket-size-without-dp", "silent", "overlap", "bridge", COMM,
         lambda c: c.dp == 1 and (c.stated("comm_overlap.overlap_grad_reduce") is True
                                  or c.stated("comm_overlap.overlap_param_gather") is True),
         "data-parallel overlap is asked for with DP 1 ({gpus} GPUs, TP {tp} PP {pp} CP {cp}): there is nothing to "
         "reduce",
         "drop it"),
    rule("bucket-size-looks-like-bytes", "info", "overlap", "bridge mcore", f"{OVERLAP}; {TP_SKILL} (dp-01)",
         lambda c: any((c.number(key) or 0) >= 2**29 and c.given(key) and not isinstance(c.get(key), bool)
                       for key in ("comm_overlap.bucket_size", "ddp.bucket_size")),
         "a bucket of {comm_overlap.bucket_size}{ddp.bucket_size}: the number counts parameters, not bytes",
         "about 134217728"),
    rule("bucket-size-counts-parameters", "info", "overlap", "bridge mcore", f"{OVERLAP}; {TP_SKILL} (dp-01)",
         lambda c: c.given("comm_overlap.bucket_size") or c.given("ddp.bucket_size"),
         "bucket_size counts parameters, not bytes", ""),
    rule("buckets-once", "stop", "overlap", "bridge", f"{COMM}; {DDP}",
         lambda c: c.get("ddp.num_buckets") is not None and (
             (c.has("comm_overlap") and c.dp != 1 and not c.off("ddp.use_distributed_optimizer"))
             or c.get("ddp.bucket_size") is not None),
         "ddp.num_buckets {ddp.num_buckets} with a bucket size (a CommOverlapConfig sets one for DP > 1)",
         "drop num_buckets, or leave comm_overlap None", versions=SINCE_06),
    rule("buckets-once-flags", "stop", "overlap", "megatron-lm", DDP,
         lambda c: c.get("ddp.num_buckets") is not None and c.get("ddp.bucket_size") is not None,
         "--ddp-num-buckets with --ddp-bucket-size", "keep one"),
    rule("distopt-flags-agree", "silent", "overlap", "bridge", f"{CFG} (18); {COMM}",
         lambda c: c.given("ddp.use_distributed_optimizer") and c.given("optimizer.use_distributed_optimizer")
         and c.on("ddp.use_distributed_optimizer") != c.on("optimizer.use_distributed_optimizer"),
         "ddp.use_distributed_optimizer {ddp.use_distributed_optimizer} and optimizer.use_distributed_optimizer "
         "{optimizer.use_distributed_optimizer} differ: both become True, after the overlap was decided",
         "set both alike"),
    rule("gather-flags-agree", "silent", "overlap", "bridge", f"{CFG} (18)",
         lambda c: c.given("ddp.overlap_param_gather") and c.given("optimizer.overlap_param_gather")
         and c.on("ddp.overlap_param_gather") != c.on("optimizer.overlap_param_gather"),
         "overlap_param_gather of ddp and optimizer differ: both become True", "set both alike", versions=SINCE_06),
    rule("mixed-precision-overrides-ddp", "silent", "overlap", "bridge", f"{CFG}; {OVERLAP} (dp-02)", _precision_wins,
         "mixed_precision overwrites fields of ddp of the same name", "set it on mixed_precision"),
    rule("environment-is-no-overlap-field", "stop", "overlap", "bridge", f"{OVERLAP}; {TP_SKILL} (dp-03)",
         lambda c: any(c.given(f"comm_overlap.{key}") for key in (
             "cuda_device_max_connections", "layernorm_sm_margin", "CUDA_DEVICE_MAX_CONNECTIONS")),
         "CUDA_DEVICE_MAX_CONNECTIONS and LayerNorm SM margins are environment variables, no fields of "
         "CommOverlapConfig",
         "export them in the launch script"),
    rule("overlap-needs-distopt", "silent", "overlap", "bridge", COMM,
         lambda c: c.stated("comm_overlap.overlap_param_gather") is True and c.off("ddp.use_distributed_optimizer")
         and c.off("optimizer.use_distributed_optimizer"),
         "overlap_param_gather without the distributed optimizer", "ddp.use_distributed_optimizer=true"),
)  # fmt: skip


OVERLAP_RULES = (*TENSOR, *PIPELINE, *DATA)
