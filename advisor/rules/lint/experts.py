"""Experts: routing, dispatchers, the overlap of their all-to-all, and what only looks like it is on."""

from __future__ import annotations

from advisor.rules.lint.form import AFTER_06, ARG, COMM, SKILLS, TC, Hit, rule
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import captures, full, graph, modules

FLEX = "MB:src/megatron/bridge/training/flex_dispatcher_backend.py"
DISPATCH = f"{SKILLS}-perf-moe-dispatcher-selection"
OVERLAP = f"{SKILLS}-perf-expert-parallel-overlap"
BALANCING = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}


def ep_overlap(c: Setup) -> bool:
    """Overlap of the expert all-to-all, as it holds after `CommOverlapConfig.setup` (which overwrites the model)."""
    if c.has("comm_overlap"):
        return c.on("comm_overlap.overlap_moe_expert_parallel_comm")
    return c.on("overlap_moe_expert_parallel_comm")


def delayed_wgrad(c: Setup) -> bool:
    """Delayed weight gradients, wherever they are asked for."""
    return c.on("comm_overlap.delay_wgrad_compute") or c.on("delay_wgrad_compute")


def _precision_known(c: Setup) -> bool:
    return c.known("bf16") and c.known("fp16") and not c.has("mixed_precision")


def _runs(c: Setup, backend: object) -> bool | None:
    """Whether a flex back end runs on the GPU; None where the GPU is unknown."""
    if c.capability is None:
        return None
    major, name = c.capability[0], c.gpu_name.lower().replace("nvidia ", "")
    if backend == "deepep":
        return major in (8, 9) or name.startswith(("b200", "b300"))
    return major in (8, 9, 10)


def _wrong_gpu(c: Setup) -> Hit | None:
    backend = c.get("moe_flex_dispatcher_backend")
    if c.get("moe_token_dispatcher_type") != "flex" or backend not in ("deepep", "hybridep") or c.fact("flex_helper"):
        return None
    if _runs(c, backend) is False:
        return Hit(f"{backend} does not run on {c.gpu_name}", "hybridep on GB200/GB300, or alltoall")
    return None


def _helper_falls_back(c: Setup) -> Hit | None:
    backend = c.fact("flex_helper")
    if backend is None:
        return None
    if backend not in ("deepep", "hybridep", "ncclep"):
        return Hit(f"apply_flex_dispatcher_backend with {backend}: a warning only, the dispatcher stays as it is")
    if _runs(c, backend) is False:
        return Hit(f"{backend} does not run on {c.gpu_name}: Bridge falls back to alltoall with one warning",
                   "hybridep on GB200/GB300")  # fmt: skip
    return None


def _topk_groups(c: Setup) -> str | None:
    experts, groups, top = (
        c.number("experts"), c.number("moe_router_num_groups"), c.number("moe_router_group_topk"),
    )  # fmt: skip
    if not top:
        return None
    if c.off("experts"):
        return f"moe_router_group_topk {top} in a model without experts"
    if not groups:
        return "moe_router_group_topk without moe_router_num_groups"
    if experts and experts % groups:
        return f"{experts} experts do not divide into {groups} groups"
    return f"{top} of {groups} groups" if top > groups else None


def _needs_modules(c: Setup) -> str | None:
    if full(c):
        return "full recomputation"
    if c.get("recompute_method") is not None:
        return f"recompute_method {c.get('recompute_method')}"
    if c.get("recompute_num_layers") is not None:
        return f"recompute_num_layers {c.get('recompute_num_layers')}"
    return None


def _slow_overlap(c: Setup) -> bool:
    few = c.dp is not None and c.n("gbs") != 0 and c.n("mbs") != 0 and (
        c.n("gbs") // (c.n("mbs") * c.dp) < 4
    )  # fmt: skip
    return ep_overlap(c) and 1 < c.ep <= 4 and (bool(c.gpus and c.gpus <= 16) or few)


def _lost_etp(c: Setup) -> bool:
    many = c.n("experts") > 1 or not c.known("experts")
    stated = c.framework != "bridge" or c.given("etp")
    unset = c.number("etp") is None and c.fact("bare_layout") is None and stated
    return c.tp > 1 and c.ep > 1 and many and unset and not _wide_experts(c)


def _wide_experts(c: Setup) -> bool:
    """Experts wider than the hidden size, as those of Mixtral: to split them over TP is what their scripts mean."""
    return c.n("hidden_size") > 0 and c.n("moe_ffn_hidden_size") >= c.n("hidden_size")


SIZES = (
    rule("etp-follows-tp", "silent", "grid", "bridge megatron-lm", "ML:megatron/core/model_parallel_config.py "
         "__post_init__", _lost_etp,
         "expert_tensor_parallel_size is not set and becomes TP {tp}, not 1: experts are split {etp} ways",
         "expert_tensor_parallel_size=1 for fine-grained experts"),
    rule("etp-by-version", "info", "grid", "bridge", "MB:src/megatron/bridge/models/transformer_config.py (0.6.2); "
         "ML:megatron/core/model_parallel_config.py",
         lambda c: (c.tp > 1 and c.ep > 1 and not c.known("etp")) or (c.tp > 1 and c.ep > 1 and not c.given("etp")
                                                                   and c.number("etp") is None),
         "expert_tensor_parallel_size is not set: 1 in Bridge 0.6, TP {tp} in Bridge 0.3 and in Megatron-Core",
         "state expert_tensor_parallel_size=1"),
    rule("etp-follows-tp-note", "info", "grid", "mcore", "ML:megatron/core/model_parallel_config.py __post_init__",
         lambda c: c.fact("bare_layout") is not None and c.tp > 1 and c.ep > 1 and c.number("etp") is None,
         "ETP is not stated: Megatron-Core takes TP {tp}", "state --etp 1 where that is meant"),
    rule("moe-tp-without-sp-warns", "info", "transformer", "mcore", "ML:megatron/core/model_parallel_config.py",
         lambda c: c.ep > 1 and c.tp > 1 and c.known("sp") and c.off("sp"),
         "EP {ep} with TP {tp} and no sequence parallelism: the configuration warns, training stops in the MoE layer",
         "sequence_parallel=true"),
    rule("moe-bias-needs-etp1", "stop", "transformer", "mcore", TC,
         lambda c: c.n("experts") > 1 and c.on("add_bias_linear") and c.etp > 1
         and (c.given("add_bias_linear") or c.framework == "megatron-lm"),
         "experts with a bias cannot be split, ETP is {etp}", "add_bias_linear=false, or ETP 1"),
    rule("moe-ffn-needs-experts", "stop", "transformer", "mcore", TC,
         lambda c: c.number("moe_ffn_hidden_size") is not None and c.given("moe_ffn_hidden_size") and c.off("experts"),
         "moe_ffn_hidden_size {moe_ffn_hidden_size} without experts", "set num_moe_experts, or drop it"),
    rule("experts-positive", "stop", "transformer", "bridge mcore", TC,
         lambda c: c.number("experts") is not None and c.n("experts") <= 0, "num_moe_experts is {experts}",
         "None for a dense model"),
    rule("ep-only-splits-experts", "info", "grid", "mcore", f"{SKILLS} (ep-09); requirements/multi_node_slurm.txt",
         lambda c: c.tp >= 4 and c.ep == 1 and c.n("experts") >= 16 and c.known("ep"),
         "TP {tp} with EP 1: TP does not shrink the memory of {experts} experts as EP does", "raise EP"),
)  # fmt: skip

ROUTING = (
    rule("top1-needs-pre-softmax", "stop", "transformer", "mcore", TC,
         lambda c: c.known("experts") and c.number("moe_router_topk") == 1
         and c.get("moe_router_score_function") == "softmax" and c.off("moe_router_pre_softmax")
         and c.get("moe_router_load_balancing_type") not in ("sinkhorn", ["sinkhorn"]),
         "top-1 softmax routing needs pre-softmax", "moe_router_pre_softmax=true"),
    rule("topk-within-experts", "stop", "transformer", "mcore", "ML:megatron/core/transformer/moe/router.py (topk)",
         lambda c: c.n("experts") != 0 and c.n("moe_router_topk") > c.n("experts"),
         "top-{moe_router_topk} of {experts} experts", "a top-k no larger than the number of experts"),
    rule("expert-bias-needs-sigmoid", "stop", "transformer", "mcore", TC,
         lambda c: c.on("moe_router_enable_expert_bias")
         and c.isnt("moe_router_score_function", "sigmoid", "sqrtsoftplus", None),
         "expert bias with score function {moe_router_score_function}", "moe_router_score_function=sigmoid"),
    rule("group-limited-routing", "stop", "transformer", "mcore", TC, _topk_groups, "expert groups do not fit",
         "experts divide into groups, group_topk <= groups"),
    rule("capacity-needs-balancing", "stop", "transformer", "mcore", TC,
         lambda c: (c.number("moe_expert_capacity_factor") or -1) >= 0
         and bool(set(c.items("moe_router_load_balancing_type")) - BALANCING),
         "a capacity factor with load balancing {moe_router_load_balancing_type}",
         "moe_router_load_balancing_type=aux_loss"),
    rule("padding-needs-capacity", "stop", "transformer", "mcore", TC,
         lambda c: c.on("moe_pad_expert_input_to_capacity") and c.known("moe_expert_capacity_factor")
         and c.get("moe_expert_capacity_factor") is None,
         "padding to capacity without a capacity factor", "moe_expert_capacity_factor=1.0"),
    rule("rank-capacity-needs-hybridep", "stop", "transformer", "mcore", TC,
         lambda c: c.get("moe_expert_rank_capacity_factor") is not None
         and c.isnt("moe_flex_dispatcher_backend", "hybridep", "ncclep"),
         "moe_expert_rank_capacity_factor with back end {moe_flex_dispatcher_backend}", "hybridep",
         versions="megatron-core >=0.17"),
    rule("quantised-padding-needs-fp8", "stop", "transformer", "mcore", TC,
         lambda c: (c.on("moe_router_padding_for_quantization") or c.on("moe_router_padding_for_fp8"))
         and not c.has("mixed_precision") and c.off("fp8") and not c.on("fp4"),
         "router padding for quantisation without fp8 or fp4", "drop it"),
    rule("padding-needs-alltoall", "stop", "transformer", "mcore", TC,
         lambda c: (c.on("moe_router_padding_for_quantization") or c.on("moe_router_padding_for_fp8"))
         and c.get("moe_token_dispatcher_type") == "allgather",
         "router padding for quantisation with the allgather dispatcher", "moe_token_dispatcher_type=alltoall"),
    rule("forced-balance-is-benchmark", "silent", "transformer", "mcore", f"{SKILLS}-perf-moe (ep-08)",
         lambda c: c.on("moe_router_force_load_balancing") and c.given("moe_router_force_load_balancing")
         and (c.get("checkpoint.save") is not None and c.given("checkpoint.save")),
         "forced load balancing routes tokens at random: for benchmarks only, here checkpoints are saved",
         "moe_router_force_load_balancing=false"),
    rule("forced-balance-note", "info", "transformer", "mcore", f"{SKILLS}-perf-moe (ep-08)",
         lambda c: c.on("moe_router_force_load_balancing"), "forced load balancing is for benchmarks only",
         "say so with every figure"),
    rule("router-fp32", "info", "transformer", "mcore", TC,
         lambda c: c.n("experts") >= 32 and c.known("moe_router_dtype") and c.off("moe_router_dtype"),
         "{experts} experts are routed without fp32", "moe_router_dtype=fp32"),
)  # fmt: skip

DISPATCHERS = (
    rule("flex-backend-needs-flex-dispatcher", "silent", "overlap", "bridge megatron-lm", f"{FLEX}; {DISPATCH} (ep-01)",
         lambda c: c.given("moe_flex_dispatcher_backend") and c.on("moe_flex_dispatcher_backend")
         and c.get("moe_flex_dispatcher_backend") != "ncclep"
         and c.isnt("moe_token_dispatcher_type", "flex", None) and not c.fact("flex_helper"),
         "back end {moe_flex_dispatcher_backend} is named, the dispatcher is {moe_token_dispatcher_type}: it stays in "
         "use", "moe_token_dispatcher_type=flex, or apply_flex_dispatcher_backend"),
    rule("ncclep-needs-flex", "stop", "transformer", "mcore", TC,
         lambda c: c.get("moe_flex_dispatcher_backend") == "ncclep" and c.isnt("moe_token_dispatcher_type", "flex",
         None),
         "ncclep with dispatcher {moe_token_dispatcher_type}", "moe_token_dispatcher_type=flex",
         versions="megatron-core >=0.19"),
    rule("deepep-flag-needs-flex", "stop", "transformer", "mcore", TC,
         lambda c: c.on("moe_enable_deepep") and (c.isnt("moe_token_dispatcher_type", "flex", None)
                                                  or c.get("moe_flex_dispatcher_backend") == "hybridep"),
         "moe_enable_deepep with dispatcher {moe_token_dispatcher_type} and back end {moe_flex_dispatcher_backend}",
         "moe_token_dispatcher_type=flex and moe_flex_dispatcher_backend=deepep"),
    rule("flex-without-backend", "silent", "overlap", "bridge", FLEX,
         lambda c: c.get("moe_token_dispatcher_type") == "flex" and c.given("moe_token_dispatcher_type")
         and c.given("moe_flex_dispatcher_backend") and c.get("moe_flex_dispatcher_backend") is None,
         "dispatcher flex without a back end becomes alltoall", "moe_flex_dispatcher_backend=deepep",
         versions=AFTER_06),
    rule("flex-backend-runs-on-gpu", "stop", "overlap", "bridge mcore", FLEX, _wrong_gpu,
         "the flex back end does not run on this GPU", "another back end"),
    rule("flex-helper-falls-back", "silent", "overlap", "bridge", FLEX, _helper_falls_back,
         "apply_flex_dispatcher_backend changes nothing", "deepep or hybridep on a GPU that runs it"),
    rule("flex-helper-on-dense", "silent", "overlap", "bridge", FLEX,
         lambda c: c.fact("flex_helper") is not None and c.off("experts"),
         "apply_flex_dispatcher_backend on a dense model only warns", "drop the call"),
    rule("flex-helper-drops-shared-overlap", "silent", "overlap", "bridge", FLEX,
         lambda c: c.fact("flex_helper") in ("deepep", "hybridep") and c.on("moe_shared_expert_overlap"),
         "apply_flex_dispatcher_backend switches moe_shared_expert_overlap off", "drop one of them"),
    rule("deepep-without-padding", "stop", "transformer", "mcore", TC,
         lambda c: c.get("moe_token_dispatcher_type") == "flex" and c.on("moe_pad_expert_input_to_capacity")
         and c.get("moe_flex_dispatcher_backend") == "deepep",
         "deepep cannot pad expert inputs to capacity", "moe_token_dispatcher_type=alltoall"),
    rule("deepep-needs-ep", "stop", "transformer", "mcore", "ML:megatron/core/transformer/moe/token_dispatcher.py",
         lambda c: c.get("moe_token_dispatcher_type") == "flex" and c.get("moe_flex_dispatcher_backend") == "deepep"
         and c.one("ep") and c.etp * c.ep <= 1 and c.given("moe_token_dispatcher_type"),
         "deepep exchanges tokens between ranks, ETP x EP is 1", "moe_token_dispatcher_type=alltoall"),
    rule("allgather-fixed-lengths", "stop", "transformer", "mcore", TC,
         lambda c: c.get("moe_token_dispatcher_type") == "allgather" and c.on("variable_seq_lengths")
         and c.n("experts") > 1,
         "the allgather dispatcher does not take variable sequence lengths", "moe_token_dispatcher_type=alltoall"),
    rule("allgather-is-slow", "slow", "overlap", "mcore", "ML:megatron/core/transformer/moe/README.md",
         lambda c: c.given("moe_token_dispatcher_type") and c.get("moe_token_dispatcher_type") == "allgather"
         and c.ep > 1,
         "the allgather dispatcher sends every token to every rank of EP {ep}", "alltoall or flex"),
    rule("shared-overlap-needs-alltoall", "stop", "transformer", "mcore", TC,
         lambda c: c.on("moe_shared_expert_overlap") and c.on("moe_shared_expert_intermediate_size")
         and c.isnt("moe_token_dispatcher_type", "alltoall", "flex", None),
         "shared-expert overlap with dispatcher {moe_token_dispatcher_type}", "alltoall or flex"),
    rule("fused-permute-bring-up", "info", "transformer", "mcore", f"{SKILLS}-perf-moe (ep-05)",
         lambda c: c.on("moe_permute_fusion") and c.older("te", 2, 1),
         "fused permutation needs TE >= 2.1", "moe_permute_fusion=false for the smoke run only"),
)  # fmt: skip

EP_OVERLAP = (
    rule("ep-overlap-needs-ep", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and c.one("ep"), "EP all-to-all overlap with EP {ep}", "EP > 1, or drop the overlap"),
    rule("ep-overlap-needs-experts", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and c.known("experts") and c.n("experts") <= 1,
         "EP all-to-all overlap without experts ({experts})", "drop the overlap"),
    rule("ep-overlap-needs-alltoall", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and not c.fact("flex_helper")
         and c.isnt("moe_token_dispatcher_type", "alltoall", "flex", None),
         "EP all-to-all overlap with dispatcher {moe_token_dispatcher_type}", "moe_token_dispatcher_type=alltoall"),
    rule("ep-overlap-needs-vpp", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and c.pp > 1 and c.known("vpp") and c.get("vpp") is None
         and c.get("pipeline_model_parallel_layout") is None,
         "EP all-to-all overlap with PP {pp} needs virtual_pipeline_model_parallel_size",
         "virtual stages, 2 or more per rank"),
    rule("ep-overlap-without-full-recompute", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: (what := _needs_modules(c)) and ep_overlap(c) and f"EP all-to-all overlap with {what}",
         "EP all-to-all overlap with full recomputation", "selective recomputation of moe_act"),
    rule("ep-overlap-without-moe-recompute", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and "moe" in c.items("recompute_modules"),
         "EP all-to-all overlap with recompute_modules {recompute_modules}", "moe_act instead of moe"),
    rule("ep-overlap-xor-shared-overlap", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and c.on("moe_shared_expert_overlap") and not c.fact("flex_helper"),
         "EP all-to-all overlap with shared-expert overlap", "moe_shared_expert_overlap=false"),
    rule("ep-overlap-one-mtp", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and c.n("mtp_num_layers") > 1,
         "EP all-to-all overlap with {mtp_num_layers} prediction layers", "at most one"),
    rule("ep-overlap-needs-half-precision", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and _precision_known(c) and not c.on("bf16") and not c.on("fp16"),
         "EP all-to-all overlap without bf16 or fp16", "bf16=true"),
    rule("ep-overlap-needs-torch", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: ep_overlap(c) and c.older("torch", 2, 6), "EP all-to-all overlap with torch older than 2.6",
         "torch >= 2.6"),
    rule("ep-overlap-graph-modules", "stop", "overlap", "mcore", TC,
         lambda c: ep_overlap(c) and graph(c) == "transformer_engine" and bool({"moe", "mlp"} & modules(c)),
         "EP all-to-all overlap with CUDA graphs over {cuda_graph_modules}{cuda_graph_scope}", "attn, moe_router"),
    rule("early-release-needs-ep-overlap", "stop", "overlap", "mcore", TC,
         lambda c: c.on("ep_overlap_early_attn_memory_release") and not ep_overlap(c),
         "early release of attention memory needs the EP overlap", "drop it"),
    rule("dispatch-overlap-exclusive", "stop", "overlap", "mcore", TC,
         lambda c: c.on("overlap_dispatch_backward_with_experts_wgrad") and (ep_overlap(c) or delayed_wgrad(c)),
         "overlap_dispatch_backward_with_experts_wgrad excludes the EP overlap and delayed wgrad", "keep one"),
    rule("ep-overlap-small-group", "slow", "overlap", "mcore", f"{OVERLAP} (ep-03)", _slow_overlap,
         "EP {ep} on {gpus} GPUs: the overlap of the all-to-all rarely pays here", "leave it off"),
    rule("ep-overlap-with-cp-connections", "info", "environment", "megatron-lm", ARG,
         lambda c: ep_overlap(c) and (c.tp > 1 or c.cp > 1) and c.capability is not None and c.capability[0] < 10,
         "TP {tp} / CP {cp} want CUDA_DEVICE_MAX_CONNECTIONS=1, the EP overlap a larger value",
         "1 or 32, by measurement"),
)  # fmt: skip

WGRAD = (
    rule("delay-wgrad-needs-ep-overlap", "stop", "overlap", "mcore", f"{COMM}; {TC}",
         lambda c: delayed_wgrad(c) and not ep_overlap(c),
         "delayed wgrad without the EP all-to-all overlap"
         " (a flag on the model is reset where a CommOverlapConfig exists)",
         "comm_overlap.overlap_moe_expert_parallel_comm=true"),
    rule("delay-wgrad-needs-te", "stop", "overlap", "megatron-lm", ARG,
         lambda c: delayed_wgrad(c) and c.isnt("transformer_impl", "transformer_engine", None),
         "delayed wgrad with transformer_impl {transformer_impl}", "transformer_impl=transformer_engine"),
    rule("delay-wgrad-te-version", "stop", "overlap", "mcore", f"{COMM}; {ARG}",
         lambda c: delayed_wgrad(c) and (
             c.older("te", 2, 7) or (c.older("te", 2, 8) and c.framework == "megatron-lm")
             or (c.older("te", 2, 10) and graph(c) == "transformer_engine")
             or (c.older("te", 2, 12) and graph(c) != "none" and captures(c, "attn"))),
         "delayed wgrad needs a newer Transformer Engine (2.7; 2.10 with graphs, 2.12 with graphs over attention)",
         "update Transformer Engine"),
    rule("delay-wgrad-graph-bias", "stop", "overlap", "mcore", f"{COMM}; {ARG}",
         lambda c: delayed_wgrad(c) and graph(c) != "none" and "attn" in modules(c)
         and (c.on("add_qkv_bias") or (c.on("add_bias_linear") and c.given("add_bias_linear"))
              or c.stated("gradient_accumulation_fusion") is False),
         "delayed wgrad inside a graph of attention: no attention bias, gradient accumulation fused", "drop the bias",
         versions="bridge >=0.6, megatron-core >=0.17"),
)  # fmt: skip

EXPERTS = (*SIZES, *ROUTING, *DISPATCHERS, *EP_OVERLAP, *WGRAD)
