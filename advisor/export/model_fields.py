"""A model as fields of Megatron's TransformerConfig (and of the provider around it), or what cannot be said in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor import data
from advisor.errors import InputError
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    ExpertMlp,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
)
from advisor.spec.workload import Workload

ACTIVATIONS = {"silu": "silu", "swiglu": "silu", "relu2": "squared_relu", "gelu": "gelu", "gelu_new": "gelu"}


WHOLE_NORM = (
    "The model norms queries and keys over all heads at once, Megatron's qk_layernorm norms each head: memory and speed"
    " are the same, weights of the published checkpoint do not load."
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model's configuration file says beyond what costs depend on; None where the file is silent."""

    activation: str
    rotary_base: int | None
    rotary_percent: float | None
    norm_epsilon: float | None
    routed_scaling: float | None
    aux_loss: float | None
    hf_id: str | None


def model_facts(model: Model, name: str) -> Facts:
    """Facts of the configuration file that `name` (preset or path) stands for; defaults where there is no such file."""
    path = data.listing("presets", "models", ".json").get(name.lower()) or Path(name)
    path = path / "config.json" if path.is_dir() else path
    config = _config(path)
    inner = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), Mapping)), config)
    percent = inner.get("partial_rotary_factor")
    rotary_dim, head_dim = inner.get("rotary_dim"), inner.get("head_dim")
    if percent is None and isinstance(rotary_dim, int) and isinstance(head_dim, int) and head_dim:
        percent = rotary_dim / head_dim
    base, epsilon = inner.get("rope_theta"), inner.get("rms_norm_eps", inner.get("layer_norm_eps"))
    activation = str(inner.get("hidden_act") or inner.get("hidden_activation") or "gelu")
    return Facts(
        activation=ACTIVATIONS.get(activation, activation),
        rotary_base=None if base is None else int(base),
        rotary_percent=None if percent is None else float(percent),
        norm_epsilon=None if epsilon is None else float(epsilon),
        routed_scaling=inner.get("routed_scaling_factor"),
        aux_loss=inner.get("router_aux_loss_coef"),
        hf_id=config.get("_hf_id"),
    )


def _config(path: Path) -> Mapping[str, Any]:
    """Keys of a configuration file that the model was loaded from; none where the model comes from elsewhere."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8-sig"))
    return found if isinstance(found, Mapping) else {}


def norms_all_heads(model: Model) -> bool:
    """Whether queries and keys are normed over all heads at once, which only a layer of the model's own can do."""
    mixers = [layer.mixer for layer in model.kinds]
    return any(isinstance(one, GroupedQueryAttention) and one.qk_norm == "full" for one in mixers)


def unsupported(model: Model, facts: Facts) -> list[str]:
    """What of a model neither Megatron's flags nor a generic provider can say."""
    found = []
    if model.is_hybrid:
        found.append("hybrid layers")
    if model.hyper_connections > 1:
        found.append("hyper-connections")
    for layer in model.kinds:
        found.extend(_strange(layer, facts))
    if model.norm_bias and model.norm == "rms":
        found.append("RMS norm with a bias")
    return list(dict.fromkeys(found))


def _strange(layer: Layer, facts: Facts) -> Iterator[str]:
    mixer, mlp = layer.mixer, layer.mlp
    if isinstance(mixer, CompressedAttention):
        yield "compressed attention"
    if isinstance(mixer, GroupedQueryAttention):
        if mixer.query_rank is not None or mixer.shares_kv:
            yield "low-rank queries or shared keys and values"
        if mixer.v_head_dim != mixer.head_dim:
            yield "value heads of another width"
    if getattr(mixer, "indexer", None) is not None:
        yield "a sparse-attention indexer"
    if layer.norms != 2 and not (mixer is None or mlp is None):
        yield f"{layer.norms} norms per layer"
    if isinstance(mlp, ExpertMlp) and mlp.hash_routed:
        yield "hash routing"
    if mlp is not None and mlp.gated and facts.activation != "silu":
        yield f"a gated {facts.activation} activation"


def require_supported(model: Model, facts: Facts, instead: str) -> None:
    """InputError with everything that cannot be said, and what to do instead."""
    found = unsupported(model, facts)
    if found:
        raise InputError(
            f"{model.name} cannot be written as flags or as a generic provider: {', '.join(found)}", instead
        )


def model_fields(model: Model, workload: Workload, facts: Facts) -> dict[str, Any]:
    """Field names of TransformerConfig and GPTModelProvider with the values of `model`, in reading order."""
    mixers = [layer.mixer for layer in model.kinds]
    attention = next(one for one in mixers if isinstance(one, GroupedQueryAttention | LatentAttention))
    fields: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "num_attention_heads": attention.heads,
        "seq_length": workload.seq_len,
        "max_position_embeddings": max(model.max_position, workload.seq_len),
        "vocab_size": model.vocab_size,
        "make_vocab_size_divisible_by": workload.vocab_divisor,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "layernorm_epsilon": facts.norm_epsilon,
        "position_embedding_type": "learned_absolute" if model.position_embeddings else "rope",
        "rotary_base": facts.rotary_base,
        "rotary_percent": facts.rotary_percent,
        "attention_dropout": workload.attention_dropout,
        "hidden_dropout": workload.hidden_dropout,
    }
    fields.update(_attention(attention))
    fields.update(_windows(model))
    fields.update(_delta(model))
    fields.update(_feed_forward(model, facts))
    return {name: value for name, value in fields.items() if value is not None}


def _attention(mixer: GroupedQueryAttention | LatentAttention) -> dict[str, Any]:
    if isinstance(mixer, LatentAttention):
        return {
            "multi_latent_attention": True,
            "q_lora_rank": mixer.q_rank,
            "kv_lora_rank": mixer.kv_rank,
            "qk_head_dim": mixer.qk_nope_dim,
            "qk_pos_emb_head_dim": mixer.qk_rope_dim,
            "v_head_dim": mixer.v_head_dim,
            "qk_layernorm": mixer.qk_norm != "none",
        }
    return {
        "num_query_groups": mixer.kv_heads,
        "kv_channels": mixer.head_dim,
        "qk_layernorm": mixer.qk_norm != "none",
        "add_qkv_bias": mixer.qkv_bias,
        "softmax_type": "learnable" if mixer.sinks else None,
        "attention_output_gate": True if mixer.output_gate else None,
    }


def _per_layer(model: Model, kinds: Sequence[bool]) -> tuple[int, ...]:
    return tuple(int(kinds[kind]) for kind in model.pattern)


def _windows(model: Model) -> dict[str, Any]:
    """Sliding windows: keys on the left (the query not counted) and which layers have one."""
    windows = [getattr(layer.mixer, "window", None) for layer in model.kinds]
    widths = {width for width in windows if width is not None}
    if not widths:
        return {}
    if len(widths) > 1:
        raise InputError(f"{model.name} has windows of {sorted(widths)} keys; Megatron knows one width")
    which = _per_layer(model, [width is not None for width in windows])
    return {"window_size": (widths.pop() - 1, 0), "window_attn_skip_freq": None if all(which) else which}


def _delta(model: Model) -> dict[str, Any]:
    delta = next((layer.mixer for layer in model.kinds if isinstance(layer.mixer, DeltaNet)), None)
    if delta is None:
        return {}
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": _per_layer(model, [isinstance(layer.mixer, DeltaNet) for layer in model.kinds]),
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.conv,
    }


def _feed_forward(model: Model, facts: Facts) -> dict[str, Any]:
    parts = [layer.mlp for layer in model.kinds if layer.mlp is not None]
    dense = [one for one in parts if not isinstance(one, ExpertMlp)]
    first = dense[0] if dense else parts[0]
    fields: dict[str, Any] = {
        "ffn_hidden_size": first.ffn,
        "gated_linear_unit": first.gated,
        "activation_func": facts.activation,
        "add_bias_linear": first.bias,
    }
    experts = model.moe
    if experts is None:
        return fields
    which = _per_layer(model, [isinstance(layer.mlp, ExpertMlp) for layer in model.kinds])
    return fields | {
        "num_moe_experts": experts.experts,
        "moe_layer_freq": None if all(which) else which,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_router_topk": experts.topk,
        "moe_shared_expert_intermediate_size": experts.shared_ffn or None,
        "moe_shared_expert_gate": True if experts.shared_gate else None,
        "moe_latent_size": experts.latent,
        "moe_router_num_groups": experts.groups,
        "moe_router_group_topk": experts.group_topk,
        "moe_router_score_function": experts.score,
        "moe_router_enable_expert_bias": True if experts.router_bias else None,
        "moe_router_topk_scaling_factor": facts.routed_scaling,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": facts.aux_loss,
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "moe_router_dtype": "fp32",
    }
