"""Megatron-LM's own arguments: what its script refuses before and while it builds the configuration of the model."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.rules.lint.form import ARG, DDP, TC, rule
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import cp_types, full
from advisor.rules.rule import CPY, PS
from advisor.spec.load.megatron.pattern import layer_list

CORE = "ML:megatron/training/argument_utils.py core_transformer_config_from_args"
SPEC = "ML:megatron/core/models/gpt/gpt_layer_specs.py"
SPLITS = ("dataset.train_data_path", "valid_data_path", "test_data_path")
DELTA_NET = ("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
             "linear_num_value_heads")  # fmt: skip


def _twice(c: Setup) -> str | None:
    for name in ("layers", "seq"):
        other = f"encoder_{'num_layers' if name == 'layers' else 'seq_length'}"
        if c.given(name) and c.get(name) is not None and c.given(other) and c.get(other) is not None:
            return f"{other} {c.get(other)} beside {'num_layers' if name == 'layers' else 'seq_length'} {c.get(name)}"
    return None


def _sources(c: Setup) -> str | None:
    splits = any(c.get(key) is not None for key in SPLITS)
    named = [name for name, on in (("mock data", c.on("dataset.mock_data")),
                                   ("a data path", c.get("dataset.data_path") is not None),
                                   ("paths per split", splits)) if on]  # fmt: skip
    return " and ".join(named) if len(named) > 1 else None


def _pattern(c: Setup) -> str | None:
    layers, text = c.number("layers"), c.get("moe_layer_freq")
    if c.n("experts") < 1 or layers is None or not 0 < layers < 10_000 or not c.given("moe_layer_freq"):
        return None
    if isinstance(text, list):
        return f"it describes {len(text)} layers, the model has {layers}" if len(text) != layers else None
    if not isinstance(text, int | str) or isinstance(text, bool) or "$" in str(text):
        return None
    try:
        layer_list(str(text).strip("'\""), int(layers))
    except ValueError as error:
        return str(error)
    return None


def _rope(c: Setup) -> str | None:
    latent, kind = c.on("multi_latent_attention"), c.get("rope_type")
    rotary = c.get("position_embedding_type") == "rope" or c.on("use_rotary_position_embeddings")
    if kind == "yarn" and not latent:
        return "rope_type yarn without multi-latent attention"
    if kind == "rope" and latent and c.on("apply_rope_fusion") and rotary:
        return "rope_type rope with multi-latent attention and fused rotary embedding"
    if c.get("position_embedding_type") == "mrope" and c.get("mrope_section") is None:
        return "position embedding mrope without --mrope-section"
    return (
        "--no-position-embedding without rope" if c.stated("add_position_embedding") is False and not rotary else None
    )


def _activation(c: Setup) -> str | None:
    fused = c.on("bias_swiglu_fusion") if c.on("swiglu") else c.on("bias_gelu_fusion") and c.on("add_bias_linear")
    if c.on("use_te_activation_func") and fused:
        return "--use-te-activation-func with the fused bias and activation"
    if c.n("glu_linear_offset") != 0 and not c.on("quick_geglu") and c.on("swiglu") and fused:
        return f"glu_linear_offset {c.get('glu_linear_offset')} with an activation other than quick GeGLU"
    if c.on("fused_residual_rmsnorm") and c.get("normalization") not in ("RMSNorm", None):
        return f"--fused-residual-rmsnorm with {c.get('normalization')}"
    return None


def _experts(c: Setup) -> str | None:
    latent, shared = c.number("moe_latent_size"), c.number("moe_shared_expert_intermediate_size")
    if latent is not None and c.framework == "megatron-lm" and (latent <= 0 or c.off("experts")):
        return f"moe_latent_size {latent} with {c.get('experts') or 'no'} experts"
    if shared is not None and shared <= 0:
        return f"moe_shared_expert_intermediate_size {shared}"
    if (c.on("moe_single_grouped_weight") or c.on("moe_single_grouped_bias")) and c.off("moe_grouped_gemm"):
        return "single grouped weights or biases without moe_grouped_gemm"
    if c.on("moe_paged_stash") and c.get("moe_expert_rank_capacity_factor") is None:
        return "moe_paged_stash without moe_expert_rank_capacity_factor"
    if c.on("moe_layer_recompute") and full(c):
        return "moe_layer_recompute with full recomputation"
    kinds, weights = c.get("moe_router_load_balancing_type"), c.get("moe_aux_loss_coeff")
    several = isinstance(kinds, Sequence) and not isinstance(kinds, str) and len(kinds) > 1
    if several and len(kinds) != (len(weights) if isinstance(weights, list | tuple) else 1):
        return f"{len(kinds)} kinds of load balancing and moe_aux_loss_coeff {weights}"
    return None


def _variant(c: Setup) -> str | None:
    variant = c.get("experimental_attention_variant")
    if variant == "dsa" and c.on("add_bias_linear") and (c.given("add_bias_linear") or c.framework == "megatron-lm"):
        return "sparse attention (dsa) with biases of linear layers"
    if variant != "gated_delta_net" or c.framework != "megatron-lm":
        return None
    missing = [name for name in ("linear_attention_freq", *DELTA_NET) if c.known(name) and c.get(name) is None]
    return f"gated delta net without {', '.join(missing)}" if missing else None


def _ring(c: Setup) -> bool:
    """Whether a context-parallel exchange passes keys around in a ring, as the default does."""
    return c.cp > 1 and c.known("cp_comm_type") and not {*cp_types(c)} & {"a2a", "all_gather", "allgather"}


def _instances(c: Setup) -> str | None:
    count = int(c.n("ddp.num_distributed_optimizer_instances"))
    if count < 2 or c.dp is None or c.dp * c.cp % count == 0:
        return None
    return f"{count} distributed-optimizer instances do not divide DP x CP {c.dp * c.cp}"


ARGUMENTS = (
    rule("stated-once", "stop", "arguments", "megatron-lm", ARG, _twice,
         "encoder_num_layers or encoder_seq_length beside num_layers or seq_length", "keep one of the two"),
    rule("one-data-source", "stop", "arguments", "megatron-lm", ARG, _sources,
         "more than one data source: mock data, a data path, paths per split", "keep one data source"),
    rule("convert-needs-paths", "stop", "arguments", "megatron-lm", ARG,
         lambda c: c.get("ckpt_convert_format") is not None
         and (c.get("ckpt_convert_save") is None or c.get("checkpoint.load") is None),
         "--ckpt-convert-format without --ckpt-convert-save and --load", "state both paths"),
    rule("upcycling-needs-save", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.on("moe_use_upcycling") and c.get("checkpoint.save") is None,
         "--moe-use-upcycling without --save", "--save PATH --save-interval N"),
    rule("rotary-embedding-fits", "stop", "arguments", "megatron-lm", f"{ARG}; {CORE}; {TC}", _rope,
         "the position embedding does not fit the attention",
         "--position-embedding-type rope; --rope-type yarn with multi-latent attention, or --no-rope-fusion"),
    rule("activation-fits-fusion", "stop", "transformer", "megatron-lm", TC, _activation,
         "the activation or norm does not go with its fusion",
         "--no-bias-swiglu-fusion (--no-bias-gelu-fusion), or leave the extra switch out"),
    rule("expert-settings-fit", "stop", "transformer", "mcore", f"{TC}; {ARG}", _experts,
         "settings of experts do not fit together",
         "change one of the two settings that the message names"),
    rule("moe-pattern-per-layer", "stop", "transformer", "mcore", SPEC,
         lambda c: (what := _pattern(c)) and f"moe_layer_freq {str(c.get('moe_layer_freq'))[:60]}: {what}",
         "moe_layer_freq does not describe every layer", "a frequency, or a list of 0 and 1 with one entry per layer"),
    rule("attention-variant-complete", "stop", "transformer", "mcore", TC, _variant,
         "the attention variant misses settings", "state them; dsa needs --disable-bias-linear",
         "megatron-core >=0.17"),
    rule("fp8-output-needs-mxfp8", "stop", "transformer", "mcore", TC,
         lambda c: c.on("fp8_output_proj") and (c.off("fp8") or c.isnt("fp8_recipe", "mxfp8")),
         "fp8_output_proj with fp8 {fp8} and recipe {fp8_recipe}", "fp8 with recipe mxfp8", "megatron-core >=0.19"),
    rule("mla-fusion-needs-mla", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.on("mla_down_proj_fusion") and c.off("multi_latent_attention"),
         "--mla-down-proj-fusion without --multi-latent-attention", "drop it", "megatron-core >=0.17"),
    rule("batch-invariance-limits", "stop", "transformer", "mcore", TC,
         lambda c: c.on("batch_invariant_mode") and (c.isnt("attention_backend", "flash") or c.cp > 1),
         "batch_invariant_mode with attention back end {attention_backend} and CP {cp}",
         "attention_backend flash, CP 1", "megatron-core >=0.17"),
    rule("cp-window-needs-all-keys", "stop", "transformer", "te", CPY,
         lambda c: _ring(c) and c.get("window_size") is not None,
         "sliding windows {window_size} over CP {cp} with exchange {cp_comm_type}", "cp_comm_type a2a or all_gather"),
    rule("cp-sinks-need-a2a", "stop", "transformer", "te", CPY,
         lambda c: c.cp > 1 and c.get("softmax_type") in ("learnable", "off-by-one") and c.known("cp_comm_type")
         and "a2a" not in cp_types(c),
         "attention sinks (softmax_type {softmax_type}) over CP {cp} with exchange {cp_comm_type}", "cp_comm_type a2a"),
    rule("instances-divide-dp", "stop", "grid", "mcore", PS, _instances,
         "distributed-optimizer instances do not divide DP x CP", "a number that divides DP x CP"),
    rule("buckets-positive", "stop", "overlap", "bridge megatron-lm", DDP,
         lambda c: c.number("ddp.num_buckets") is not None and c.n("ddp.num_buckets") <= 0,
         "ddp.num_buckets is {ddp.num_buckets}", "1 or more, or leave it unset", "megatron-core >=0.17"),
)  # fmt: skip
"""Source: checks of megatron-core 0.19.2, met by running them beside `advisor check` on the same flags."""
