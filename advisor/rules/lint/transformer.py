"""What Megatron-Core's TransformerConfig refuses or ignores: recomputation, CUDA graphs, contexts, numbers."""

from __future__ import annotations

from math import prod

from advisor.rules.lint.form import ARG, CFG, MPC, SINCE_06, SKILLS, TC, rule
from advisor.rules.lint.setup import Setup

BLOCK = "ML:megatron/core/transformer/transformer_block.py (full granularity checkpoints whole layers)"
SCH = "ML:megatron/core/pipeline_parallel/schedules.py"
RECOMPUTE = f"{SKILLS}-perf-activation-recompute/SKILL.md"
GRAPHS = f"{SKILLS}-perf-cuda-graphs/SKILL.md"
MODULES = {
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out", "gdp_in_proj",
    "gdp_qkv", "mhc",
}  # fmt: skip
GRAPHED = {"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full", "full_iteration",
           "full_iteration_inference"}  # fmt: skip
OFFLOADABLE = {
    "core_attn", "attn_proj", "expert_fc1", "fused_group_mlp", "moe_act", "attn_norm", "mlp_norm", "qkv_linear",
    "gdp_qkv",
}  # fmt: skip


def full(c: Setup) -> bool:
    """Full recomputation."""
    return bool(c.get("recompute_granularity") == "full")


def selective(c: Setup) -> bool:
    """Selective recomputation."""
    return bool(c.get("recompute_granularity") == "selective")


def graph(c: Setup) -> str:
    """CUDA graph implementation, "none" where there is none or it is unknown; old scopes of a whole iteration count."""
    found = c.get("cuda_graph_impl")
    old = {*c.items("cuda_graph_scope"), *c.items("cuda_graph_modules"), *c.items("cuda_graph_scope_deprecated")}
    if "full_iteration" in old and found not in (None, "none"):
        return "full_iteration"
    if c.on("enable_cuda_graph"):
        return "local"
    return "transformer_engine" if c.on("external_cuda_graph") else found if isinstance(found, str) else "none"


def modules(c: Setup) -> set[str]:
    """Modules inside a scoped CUDA graph, under their present and former key."""
    found = {*c.items("cuda_graph_modules"), *c.items("cuda_graph_scope"), *c.items("cuda_graph_scope_deprecated")}
    return found - {"full_iteration", "full"}


def captures(c: Setup, module: str) -> bool:
    """Whether a graph covers a module: it is named, or the graph covers whole layers."""
    return graph(c) != "none" and (module in modules(c) or not modules(c))


def cp_types(c: Setup) -> tuple[str, ...]:
    """Context-parallel exchanges asked for."""
    return c.items("cp_comm_type")


def _hierarchy(c: Setup) -> str | None:
    sizes = [int(n) for n in c.items("hierarchical_context_parallel_sizes") if n.isdigit()]
    if sizes and prod(sizes) != c.cp:
        return f"hierarchical sizes {sizes} multiply to {prod(sizes)}, CP is {c.cp}"
    return None


def _unknown(c: Setup, key: str, allowed: set[str]) -> str | None:
    wrong = sorted(set(c.items(key)) - allowed)
    return f"{key} names {', '.join(wrong)}; allowed: {', '.join(sorted(allowed))}" if wrong else None


def _bf16_ends(c: Setup) -> str | None:
    if not (c.on("first_last_layers_bf16") and c.number("layers")):
        return None
    most = int(c.n("layers")) // c.pp
    for key in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        count = c.number(key)
        if count is not None and not 0 <= count <= most:
            return f"{key} {count} is outside 0 to {most} layers of a pipeline stage"
    return None


def _cp_list(c: Setup) -> bool:
    types, layers = cp_types(c), c.number("layers")
    return c.cp > 1 and layers is not None and isinstance(c.get("cp_comm_type"), list | tuple) and (
        len(types) != layers if c.framework == "bridge" else len(types) not in (1, layers)
    )  # fmt: skip


def _a2a(c: Setup) -> bool:
    heads, groups = c.number("num_attention_heads"), c.number("num_query_groups")
    counts = [n for n in (heads, groups) if n]
    return cp_types(c) == ("a2a",) and c.cp > 1 and any(max(int(n) // c.tp, 1) % c.cp for n in counts)


def _moe_graph(c: Setup) -> str | None:
    inside, impl = modules(c), graph(c)
    if impl not in ("local", "transformer_engine"):
        return None
    if {"moe", "moe_router"} <= inside:
        return "a graph over moe and over moe_router"
    if "moe_preprocess" in inside and "moe_router" not in inside and impl == "transformer_engine":
        return "a graph over moe_preprocess without moe_router"
    if inside & {"moe", "moe_router"} and c.known("experts") and c.n("experts") <= 1:
        return "a graph over moe in a dense model"
    dense_none = c.get("moe_layer_freq") in (1, None) and c.known("moe_layer_freq")
    if "mlp" in inside and c.n("experts") > 1 and dense_none:
        return "a graph over mlp, but every layer of the model has experts"
    dropless = c.known("moe_pad_expert_input_to_capacity") and not c.on("moe_pad_expert_input_to_capacity")
    padded = c.on("moe_router_padding_for_fp8") or c.on("moe_router_padding_for_quantization")
    capped = c.get("moe_expert_capacity_factor") is not None or padded
    if "moe_preprocess" in inside and dropless and capped and c.get("moe_token_dispatcher_type") == "alltoall":
        return "a graph over moe_preprocess with alltoall and a capacity factor or router padding"
    if "moe" in inside and (dropless or c.off("moe_expert_capacity_factor")):
        return "a graph over moe needs drop and pad: capacity factor and moe_pad_expert_input_to_capacity"
    return None


def _graphed_dropout(c: Setup) -> str | None:
    """Random numbers in what is recomputed inside a graph; the default of recompute_modules is core_attn."""
    if not selective(c) or graph(c) == "none":
        return None
    repeated = set(c.items("recompute_modules")) if c.get("recompute_modules") is not None else {"core_attn"}
    for key, module, covers in (("attention_dropout", "core_attn", "attn"), ("hidden_dropout", "mlp", "mlp"),
                                ("hidden_dropout", "moe", "moe"), ("moe_input_jitter_eps", "moe", "moe")):  # fmt: skip
        random = c.n(key) > 0 and (c.given(key) or c.framework == "megatron-lm")
        if random and module in repeated and captures(c, covers):
            return f"{key} {c.get(key)} with {module} recomputed inside a CUDA graph"
    return None


def _wrong_kind(c: Setup) -> str | None:
    value, method = c.get("recompute_granularity"), c.get("recompute_method")
    if value not in (None, "full", "selective"):
        return f"recompute_granularity {value} is neither full nor selective"
    if value is not None and method not in (None, "block", "uniform"):
        return f"recompute_method {method} is neither block nor uniform"
    return None


RECOMPUTATION = (
    rule("recompute-names", "stop", "transformer", "mcore", TC, _wrong_kind, "a recomputation word is unknown",
         "granularity full or selective, method uniform or block"),
    rule("full-recompute-needs-method", "stop", "transformer", "mcore", TC,
         lambda c: full(c) and (c.known("recompute_method") or c.framework != "mcore")
         and c.get("recompute_method") is None,
         "full recomputation without recompute_method", "recompute_method=uniform and recompute_num_layers=1"),
    rule("full-recompute-needs-layers", "stop", "transformer", "mcore", TC,
         lambda c: full(c) and c.get("recompute_method") is not None and c.get("recompute_num_layers") is None,
         "full recomputation without recompute_num_layers", "recompute_num_layers=1"),
    rule("selective-recompute-has-no-method", "stop", "transformer", "megatron-lm", ARG,
         lambda c: selective(c) and c.get("recompute_method") is not None,
         "recompute_method {recompute_method} goes with granularity full only", "drop it"),
    rule("selective-method-ignored", "silent", "transformer", "bridge", TC,
         lambda c: selective(c) and c.get("recompute_method") is not None,
         "recompute_method {recompute_method} has no effect under selective recomputation", "drop it"),
    rule("selective-recompute-has-no-layers", "stop", "transformer", "mcore", TC,
         lambda c: selective(c) and c.get("recompute_num_layers") is not None,
         "recompute_num_layers {recompute_num_layers} goes with granularity full only", "drop it"),
    rule("recompute-without-granularity", "silent", "transformer", "mcore", TC,
         lambda c: c.known("recompute_granularity") and c.get("recompute_granularity") is None
         and (c.on("recompute_modules") or c.get("recompute_method") is not None
              or c.get("recompute_num_layers") is not None)
         and c.given("recompute_modules", "recompute_method", "recompute_num_layers"),
         "recompute settings without recompute_granularity: nothing is recomputed",
         "set recompute_granularity to selective or full"),
    rule("modules-ignored-under-full-recompute", "silent", "transformer", "mcore", BLOCK,
         lambda c: full(c) and bool(c.items("recompute_modules")) and c.given("recompute_modules"),
         "full recomputation repeats whole layers: recompute_modules {recompute_modules} are ignored",
         "recompute_granularity=selective, or drop the modules"),
    rule("unset-modules-mean-core-attn", "silent", "transformer", "mcore", TC,
         lambda c: selective(c) and c.given("recompute_modules") and c.get("recompute_modules") is None,
         "recompute_modules null becomes core_attn", "write [] to recompute nothing, or name the modules"),
    rule("default-modules-are-core-attn", "info", "transformer", "mcore", TC,
         lambda c: selective(c) and not c.given("recompute_modules") and not c.get("recompute_modules")
         and c.given("recompute_granularity"),
         "selective recomputation without modules means core_attn", "name the modules"),
    rule("recompute-modules-known", "stop", "transformer", "mcore", TC,
         lambda c: _unknown(c, "recompute_modules", MODULES) if selective(c) else None,
         "a recompute module is unknown", "use the allowed names"),
    rule("moe-act-needs-experts", "stop", "transformer", "mcore", TC,
         lambda c: selective(c) and "moe_act" in c.items("recompute_modules") and c.off("moe_grouped_gemm"),
         "recomputing moe_act needs moe_grouped_gemm", "moe_grouped_gemm=true"),
    rule("mla-up-proj-needs-mla", "stop", "transformer", "mcore", TC,
         lambda c: selective(c) and "mla_up_proj" in c.items("recompute_modules") and c.off("multi_latent_attention"),
         "recomputing mla_up_proj needs multi-latent attention", "drop mla_up_proj"),
    rule("shared-recompute-xor-shared-overlap", "stop", "transformer", "mcore", TC,
         lambda c: selective(c) and "shared_experts" in c.items("recompute_modules")
         and c.on("moe_shared_expert_overlap"),
         "shared experts are recomputed and overlapped with the dispatch", "keep one"),
    rule("delayed-fp8-without-output-recompute", "stop", "transformer", "mcore", TC,
         lambda c: selective(c) and c.on("fp8") and c.get("fp8_recipe") == "delayed"
         and bool({"moe_act", "layernorm"} & set(c.items("recompute_modules"))),
         "fp8 with delayed scaling cannot recompute {recompute_modules}", "another fp8 recipe, or other modules"),
    rule("mlp-recompute-idle", "silent", "transformer", "mcore", RECOMPUTE,
         lambda c: selective(c) and "mlp" in c.items("recompute_modules") and c.n("experts") > 1
         and c.get("moe_layer_freq") in (1, None) and c.known("moe_layer_freq") and c.given("recompute_modules"),
         "recomputing mlp does nothing: every layer has experts", "recompute moe_act instead"),
    rule("core-attn-recompute-fused", "slow", "transformer", "mcore", f"{RECOMPUTE} (-0.01 % memory, +3.9 % time)",
         lambda c: selective(c) and c.given("recompute_modules") and "core_attn" in c.items("recompute_modules")
         and c.get("transformer_impl") in (None, "transformer_engine"),
         "recomputing core_attn under fused attention saves nothing and costs time", "moe_act or mla_up_proj"),
    rule("saved-activations-xor-sp", "stop", "transformer", "mcore", TC,
         lambda c: c.on("distribute_saved_activations") and c.on("sp") and c.tp > 1
         and c.get("recompute_granularity") is not None,
         "distributed saved activations with sequence parallelism", "distribute_saved_activations=false"),
    rule("saved-activations-need-full", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("distribute_saved_activations")
         and (c.one("tp") or not full(c) or c.get("recompute_method") is None),
         "--distribute-saved-activations needs TP > 1 (TP {tp}) and full recomputation with a method",
         "drop the flag"),
)  # fmt: skip

CUDA_GRAPHS = (
    rule("graph-flag-once", "stop", "transformer", "mcore", f"{ARG}; {TC}",
         lambda c: ((c.on("enable_cuda_graph") or c.on("external_cuda_graph")) and c.given("cuda_graph_impl")
         and c.on("cuda_graph_impl")) or (c.on("enable_cuda_graph") and c.on("external_cuda_graph"))
         or (c.items("cuda_graph_scope_deprecated") != () and c.items("cuda_graph_modules") != ()),
         "enable_cuda_graph / external_cuda_graph exclude each other and cuda_graph_impl, --cuda-graph-scope excludes "
         "--cuda-graph-modules", "cuda_graph_impl and cuda_graph_modules alone"),
    rule("full-recompute-needs-full-graph", "stop", "transformer", "mcore", TC,
         lambda c: full(c) and graph(c) in ("local", "transformer_engine"),
         "full recomputation inside a scoped CUDA graph ({cuda_graph_impl})",
         "selective recomputation, no graph, or cuda_graph_impl=full_iteration"),
    rule("full-graph-has-no-modules", "stop", "transformer", "mcore", f"{ARG}; {TC}",
         lambda c: c.get("cuda_graph_impl") == "full_iteration" and bool(modules(c)),
         "cuda_graph_impl full_iteration with modules {cuda_graph_modules}", "drop the modules"),
    rule("full-graph-needs-nan-check-off", "stop", "transformer", "bridge megatron-lm", f"{CFG}; {ARG}",
         lambda c: graph(c) == "full_iteration" and c.get("rerun_state_machine.check_for_nan_in_loss") is True,
         "a graph of the full iteration with the NaN check of the loss on",
         "rerun_state_machine.check_for_nan_in_loss=false (--no-check-for-nan-in-loss-and-grad)"),
    rule("graph-modules-fit", "stop", "transformer", "mcore", TC, _moe_graph, "the graph's modules do not fit",
         "attn, moe_router and moe_preprocess for dropless experts"),
    rule("graph-modules-known", "stop", "transformer", "mcore", TC,
         lambda c: _unknown(c, "cuda_graph_modules", GRAPHED) or _unknown(c, "cuda_graph_scope", GRAPHED)
         or _unknown(c, "cuda_graph_scope_deprecated", GRAPHED),
         "a module of CUDA graphs is unknown", "attn, mlp, moe, moe_router, moe_preprocess, mamba; gated-delta layers "
         "are captured under attn"),
    rule("graph-module-names", "silent", "transformer", "mcore", GRAPHS,
         lambda c: "mamba" in modules(c) and c.get("experimental_attention_variant") == "gated_delta_net",
         "gated-delta layers are captured under attn, not {cuda_graph_modules}", "cuda_graph_modules attn"),
    rule("router-graph-without-moe-recompute", "stop", "transformer", "mcore", TC,
         lambda c: graph(c) == "transformer_engine" and "moe_router" in modules(c) and selective(c)
         and "moe" in c.items("recompute_modules"),
         "recomputing moe with a graph over moe_router", "moe_act instead of moe"),
    rule("graph-without-dropout-recompute", "stop", "transformer", "mcore", TC, _graphed_dropout,
         "dropout inside a graphed recomputation", "dropout 0, or recompute other modules"),
    rule("graph-without-layer-offload", "stop", "transformer", "mcore", TC,
         lambda c: c.on("cpu_offloading") and graph(c) in ("local", "transformer_engine"),
         "CPU offloading of layers with scoped CUDA graphs", "full_iteration, or no offloading"),
    rule("graph-impl-none-clears-scope", "silent", "transformer", "bridge mcore", f"{CFG} validate_cuda_graph",
         lambda c: c.known("cuda_graph_impl") and c.get("cuda_graph_impl") in (None, "none") and bool(modules(c))
         and c.given("cuda_graph_modules", "cuda_graph_scope"),
         "graph modules {cuda_graph_modules}{cuda_graph_scope} without a cuda_graph_impl: no graph is captured",
         "cuda_graph_impl=transformer_engine"),
    rule("local-graph-scope", "stop", "transformer", "bridge", f"{CFG}: cuda_graph_impl local",
         lambda c: c.get("cuda_graph_impl") == "local" and bool(modules(c)),
         "cuda_graph_impl local with modules {cuda_graph_modules}{cuda_graph_scope}: Bridge takes it for the full "
         "iteration (or inference) only", "cuda_graph_impl=transformer_engine", versions="bridge >=0.5"),
    rule("graph-needs-rng-tracker", "stop", "transformer", "bridge", f"{GRAPHS} (cg-01)",
         lambda c: graph(c) != "none" and c.given("cuda_graph_impl")
         and ((c.stated("rng.te_rng_tracker") is False and c.get("use_te_rng_tracker") is not True)
              or (c.stated("use_te_rng_tracker") is False and c.get("rng.te_rng_tracker") is not True)),
         "CUDA graphs without the Transformer Engine RNG tracker",
         "rng.te_rng_tracker=true and model.use_te_rng_tracker=true"),
    rule("rng-tracker-both-sides", "silent", "transformer", "bridge", f"{CFG} (Sync config)",
         lambda c: c.given("rng.te_rng_tracker") and c.given("use_te_rng_tracker")
         and c.on("rng.te_rng_tracker") != c.on("use_te_rng_tracker"),
         "rng.te_rng_tracker {rng.te_rng_tracker} and model.use_te_rng_tracker {use_te_rng_tracker}: both become true",
         "set both alike"),
    rule("graph-warmup-with-offload", "stop", "transformer", "mcore", TC,
         lambda c: graph(c) != "none" and c.on("fine_grained_activation_offloading")
         and c.number("cuda_graph_warmup_steps") == 0,
         "activation offloading with CUDA graphs needs warm-up steps", "cuda_graph_warmup_steps=3"),
    rule("graph-with-varying-lengths", "stop", "transformer", "bridge mcore", f"{GRAPHS} (cg-07)",
         lambda c: graph(c) != "none" and c.on("variable_seq_lengths"),
         "CUDA graphs with variable sequence lengths: shapes must be fixed", "pad to a fixed length"),
    rule("full-graph-memory", "info", "transformer", "mcore", f"{GRAPHS} (cg-02, cg-03)",
         lambda c: graph(c) == "full_iteration",
         "a graph of the full iteration can need 1.5 to 2 times the peak memory, and gains only where the host is late",
         "compare both on the final stack"),
)  # fmt: skip

CONTEXT = (
    rule("a2a-p2p-needs-hierarchy", "stop", "transformer", "bridge megatron-lm", f"{CFG} _validate_cp_comm_type; {ARG}",
         lambda c: "a2a+p2p" in cp_types(c) and c.get("hierarchical_context_parallel_sizes") is None,
         "cp_comm_type a2a+p2p without hierarchical_context_parallel_sizes (older cores cut the exchange and looked "
         "fast)", "hierarchical_context_parallel_sizes with product CP {cp}", versions=SINCE_06),
    rule("hierarchy-multiplies-to-cp", "stop", "transformer", "bridge megatron-lm", f"{CFG}; {ARG}", _hierarchy,
         "hierarchical sizes do not multiply to CP", "choose sizes with product CP", versions=SINCE_06),
    rule("hierarchy-without-decentralized", "silent", "transformer", "bridge", f"{SKILLS}-perf-hierarchical-context "
         "(cp-02)", lambda c: c.get("hierarchical_context_parallel_sizes") is not None
         and c.on("dist.use_decentralized_pg"),
         "hierarchical context parallelism is ignored with use_decentralized_pg", "dist.use_decentralized_pg=false"),
    rule("cp-type-per-layer", "stop", "transformer", "mcore", f"{TC}; {CFG}", _cp_list,
         "the list cp_comm_type is not as long as the model has layers ({layers})", "one word for all layers"),
    rule("cp-a2a-heads", "stop", "transformer", "te", "TE:transformer_engine/pytorch/attention context_parallel.py",
         _a2a, "cp_comm_type a2a deals heads to CP {cp} ranks, which do not divide ({num_attention_heads} heads, "
         "{num_query_groups} groups, TP {tp})", "cp_comm_type p2p"),
    rule("hybrid-cp-limits", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("hybrid_context_parallel") and (c.pp > 1 or c.on("ddp.use_megatron_fsdp")
                                                        or c.off("calculate_per_token_loss")),
         "hybrid context parallelism needs PP 1, no FSDP and per-token loss", "--calculate-per-token-loss, PP 1"),
)  # fmt: skip

NUMBERS = (
    rule("one-half-precision", "stop", "transformer", "mcore", f"{TC}; {ARG}",
         lambda c: (c.on("fp16") and c.on("bf16")) or (c.on("optimizer.fp16") and c.on("optimizer.bf16")),
         "bf16 and fp16 are both on", "keep one"),
    rule("fp8-xor-fp4", "stop", "transformer", "mcore", f"{TC}; {ARG}",
         lambda c: next((f"fp8 {c.get(f'{where}fp8')} and fp4 {c.get(f'{where}fp4')} exclude each other"
                         for where in ("", "mixed_precision.") if c.on(f"{where}fp8") and c.on(f"{where}fp4")), None),
         "fp8 and fp4 exclude each other", "keep one"),
    rule("fp8-params-need-fp8", "stop", "transformer", "mcore", TC,
         lambda c: (c.on("fp8_param") or c.on("ddp.fp8_param_gather")) and c.off("fp8")
         and c.framework == "megatron-lm",
         "fp8 parameters without fp8", "--fp8-format hybrid"),
    rule("fp4-params-need-fp4", "stop", "transformer", "mcore", f"{TC}; {ARG}",
         lambda c: (c.on("fp4_param") or c.on("ddp.fp4_param_gather")) and c.off("fp4"),
         "fp4 parameters without fp4", "--fp4-format e2m1"),
    rule("delayed-fp8-without-bf16-ends", "stop", "transformer", "mcore", TC,
         lambda c: c.on("fp8") and c.on("first_last_layers_bf16") and c.get("fp8_recipe") == "delayed",
         "first and last layers in bf16 do not go with delayed scaling", "fp8_recipe=tensorwise"),
    rule("bf16-ends-fit-stage", "stop", "transformer", "mcore", TC, _bf16_ends,
         "more bf16 layers at an end than a stage holds",
         "at most layers / PP in num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16"),
    rule("fp32-residual-needs-half", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("fp32_residual_connection") and c.off("fp16") and c.off("bf16"),
         "fp32 residual connection without fp16 or bf16", "--bf16"),
    rule("fp16-cross-entropy-needs-fp16", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("fp16_lm_cross_entropy") and c.off("fp16"), "fp16 cross entropy without fp16", "drop it"),
    rule("te-cross-entropy-refused", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("cross_entropy_loss_fusion") and c.get("cross_entropy_fusion_impl") == "te",
         "Megatron-LM refuses the Transformer Engine cross-entropy fusion", "--cross-entropy-fusion-impl native",
         versions="megatron-core >=0.19"),
    rule("te-cross-entropy-warns", "info", "transformer", "bridge", MPC,
         lambda c: c.on("cross_entropy_loss_fusion") and c.get("cross_entropy_fusion_impl") == "te",
         "the Transformer Engine cross-entropy fusion only warns in Bridge; Megatron-LM would refuse it",
         "native when exporting to Megatron-LM"),
    rule("mla-without-groups", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("multi_latent_attention") and c.on("group_query_attention"),
         "multi-latent attention with --group-query-attention", "drop --group-query-attention"),
    rule("mtp-position-embedding", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.n("mtp_num_layers") != 0 and c.isnt("position_embedding_type", "rope", "none", None),
         "multi-token prediction with position embedding {position_embedding_type}", "--position-embedding-type rope"),
    rule("mtp-with-cp", "info", "transformer", "mcore", "ML:docs (multi-token prediction; MoE README)",
         lambda c: c.n("mtp_num_layers") != 0 and c.cp > 1,
         "the documents disagree whether multi-token prediction runs with CP {cp}", "try it on few GPUs first"),
    rule("pipeline-dtype-left-out", "info", "transformer", "bridge",
        "MB:src/megatron/bridge/models/transformer_config.py",
         lambda c: c.pp > 1 and c.given("pipeline_dtype") and c.get("pipeline_dtype") is None,
         "pipeline_dtype None: Megatron-Core refuses it with PP {pp}, Bridge fills in params_dtype",
         "pipeline_dtype=torch.bfloat16"),
    rule("variable-lengths-vs-batched-p2p", "stop", "transformer", "mcore",
         "https://github.com/NVIDIA/Megatron-LM/issues/5100",
         lambda c: c.on("variable_seq_lengths") and c.on("batch_p2p_comm") and c.pp >= 4,
         "variable sequence lengths with batched p2p at PP {pp} deadlock in the first step", "batch_p2p_comm=false"),
)  # fmt: skip

OFFLOAD = (
    rule("layer-offload-forbids-pp", "stop", "transformer", "mcore", TC,
         lambda c: c.on("cpu_offloading") and c.pp > 1,
         "CPU offloading of layers with PP {pp}", "optimizer offload, or PP 1"),
    rule("layer-offload-forbids-recompute", "stop", "transformer", "mcore", TC,
         lambda c: c.on("cpu_offloading") and c.get("recompute_granularity") is not None,
         "CPU offloading of layers with activation recomputation", "keep one"),
    rule("layer-offload-below-layers", "stop", "transformer", "mcore", TC,
         lambda c: c.on("cpu_offloading") and (count := c.number("cpu_offloading_num_layers")) is not None
         and (count < 0 or count >= (c.number("layers") or 10**9)),
         "{cpu_offloading_num_layers} layers to offload, the model has {layers}",
         "0 to one layer less than the model has"),
    rule("fine-offload-xor-layer-offload", "stop", "transformer", "mcore", TC,
         lambda c: c.on("fine_grained_activation_offloading") and c.on("cpu_offloading"),
         "fine-grained offloading together with CPU offloading of layers", "keep one"),
    rule("fine-offload-modules", "stop", "transformer", "mcore", TC,
         lambda c: c.on("fine_grained_activation_offloading") and (
             _unknown(c, "offload_modules", OFFLOADABLE)
             or (c.known("offload_modules") and not c.items("offload_modules") and "no offload_modules are named")
             or ("attn_proj" in c.items("offload_modules") and "core_attn" not in c.items("offload_modules")
                 and "attn_proj is offloaded without core_attn")
             or (selective(c) and "moe" in c.items("recompute_modules")
                 and {"moe_act", "expert_fc1"} & set(c.items("offload_modules"))
                 and "activations inside a recomputed moe layer are offloaded")),
         "offload modules do not fit", "core_attn, attn_proj, expert_fc1, moe_act, attn_norm, mlp_norm, qkv_linear"),
    rule("fine-offload-needs-te", "stop", "transformer", "bridge megatron-lm", f"{CFG}; {ARG}",
         lambda c: c.on("fine_grained_activation_offloading") and c.isnt("transformer_impl", "transformer_engine",
         None),
         "fine-grained offloading with transformer_impl {transformer_impl}", "transformer_impl=transformer_engine"),
    rule("fine-offload-needs-variable", "stop", "environment", "bridge megatron-lm", f"{CFG}; {ARG} (TE >= 2.10)",
         lambda c: c.on("fine_grained_activation_offloading") and not c.older("te", 2, 10)
         and (c.unset("NVTE_CPU_OFFLOAD_V1") or c.variable("NVTE_CPU_OFFLOAD_V1") not in (None, "1")),
         "fine-grained offloading needs NVTE_CPU_OFFLOAD_V1=1, it is {env.NVTE_CPU_OFFLOAD_V1}",
         "export NVTE_CPU_OFFLOAD_V1=1"),
)  # fmt: skip

TRANSFORMER = (*RECOMPUTATION, *CUDA_GRAPHS, *CONTEXT, *NUMBERS, *OFFLOAD)
__all__ = ["SCH", "TRANSFORMER", "captures", "full", "graph", "modules", "selective"]
