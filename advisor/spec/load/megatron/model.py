"""From Megatron-LM arguments to a `Model`: what each layer is, in which order they come, and the vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from advisor.errors import InputError
from advisor.spec.load.megatron.arguments import Arguments
from advisor.spec.load.megatron.pattern import HybridPattern, hybrid_pattern, layer_list
from advisor.spec.model import (
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Mamba,
    Mixer,
    Model,
    MultiTokenPrediction,
    QkNorm,
    SparseIndexer,
)

GPT2_VOCAB = 50257
_MOST_LAYERS = 10_000
_MAMBA_CONV = 4
_MAMBA_EXPAND = 2


def _indexer(arguments: Arguments) -> SparseIndexer | None:
    """The sparse-attention indexer when `--experimental-attention-variant dsa` asks for one."""
    if arguments.get("experimental_attention_variant") != "dsa":
        return None
    return SparseIndexer(
        heads=arguments.count("dsa_indexer_n_heads"),
        head_dim=arguments.count("dsa_indexer_head_dim"),
        topk=arguments.count("dsa_indexer_topk"),
    )


def _head_dim(arguments: Arguments, hidden: int, heads: int) -> int:
    if arguments.get("kv_channels") is not None:
        return arguments.count("kv_channels")
    if hidden % heads:
        arguments.problem("num_attention_heads", f"is {heads}: it does not divide hidden-size {hidden}")
    return max(1, hidden // heads)


def _grouped(arguments: Arguments, window: int | None) -> GroupedQueryAttention:
    hidden, heads = arguments.count("hidden_size"), arguments.count("num_attention_heads")
    kv_heads = arguments.count("num_query_groups") if arguments.switch("group_query_attention") else heads
    if heads % kv_heads:
        arguments.problem("num_query_groups", f"is {kv_heads}: it does not divide num-attention-heads {heads}")
    width = _head_dim(arguments, hidden, heads)
    bias = arguments.switch("add_bias_linear")
    qk_norm: QkNorm = "head" if arguments.switch("qk_layernorm") else "none"
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        v_head_dim=width,
        qkv_bias=bias or arguments.switch("add_qkv_bias"),
        out_bias=bias,
        qk_norm=qk_norm,
        output_gate=arguments.switch("attention_output_gate"),
        window=window,
        sinks=arguments.get("softmax_type") == "learnable",
        indexer=_indexer(arguments),
    )


def _attention(arguments: Arguments, window: int | None = None) -> Mixer:
    """Softmax attention of a layer, latent or grouped-query."""
    if not arguments.switch("multi_latent_attention"):
        return _grouped(arguments, window)
    if arguments.switch("group_query_attention"):
        arguments.problem("group_query_attention", "does not go with --multi-latent-attention")
    q_rank = arguments.get("q_lora_rank")
    return LatentAttention(
        heads=arguments.count("num_attention_heads"),
        q_rank=None if q_rank is None else arguments.count("q_lora_rank"),
        kv_rank=arguments.count("kv_lora_rank"),
        qk_nope_dim=arguments.count("qk_head_dim"),
        qk_rope_dim=arguments.count("qk_pos_emb_head_dim"),
        v_head_dim=arguments.count("v_head_dim"),
        qk_norm="full" if arguments.switch("qk_layernorm") else "none",
        indexer=_indexer(arguments),
    )


def _delta_net(arguments: Arguments) -> DeltaNet:
    return DeltaNet(
        key_heads=arguments.count("linear_num_key_heads"),
        value_heads=arguments.count("linear_num_value_heads"),
        key_dim=arguments.count("linear_key_head_dim"),
        value_dim=arguments.count("linear_value_head_dim"),
        conv=arguments.count("linear_conv_kernel_dim"),
    )


def _mamba(arguments: Arguments) -> Mamba:
    """Mamba-2 mixer; without `--mamba-num-heads` the inner width is twice the hidden size."""
    head_dim = arguments.count("mamba_head_dim")
    inner = _MAMBA_EXPAND * arguments.count("hidden_size")
    heads = max(1, inner // head_dim)
    return Mamba(
        heads=arguments.count("mamba_num_heads", fallback=heads) if arguments.given("mamba_num_heads") else heads,
        head_dim=head_dim,
        state=arguments.count("mamba_state_dim"),
        groups=arguments.count("mamba_num_groups"),
        conv=_MAMBA_CONV,
    )


def _ffn(arguments: Arguments) -> int:
    """Dense FFN width; Megatron's default is 4 h, with SwiGLU 8/3 h rounded down to 64 (arguments.py)."""
    if arguments.given("ffn_hidden_size"):
        return arguments.count("ffn_hidden_size")
    hidden = arguments.count("hidden_size")
    return max(1, 8 * hidden // 3 // 64 * 64) if arguments.switch("swiglu") else 4 * hidden


def _gated(arguments: Arguments) -> bool:
    if arguments.switch("swiglu") and (arguments.switch("squared_relu") or arguments.switch("quick_geglu")):
        arguments.problem("swiglu", "does not go with --squared-relu or --quick-geglu")
    return arguments.switch("swiglu") or arguments.switch("quick_geglu")


def _dense(arguments: Arguments) -> DenseMlp:
    return DenseMlp(ffn=_ffn(arguments), gated=_gated(arguments), bias=arguments.switch("add_bias_linear"))


def _experts(arguments: Arguments) -> ExpertMlp:
    """The mixture of experts of a layer."""
    experts, topk = arguments.count("num_experts"), arguments.count("moe_router_topk")
    if topk > experts:
        arguments.problem("moe_router_topk", f"is {topk}: there are only {experts} experts")
    groups, group_topk = arguments.get("moe_router_num_groups"), arguments.get("moe_router_group_topk")
    if groups is not None and experts % arguments.count("moe_router_num_groups"):
        arguments.problem("moe_router_num_groups", f"is {groups}: it does not divide num-experts {experts}")
    latent = arguments.get("moe_latent_size")
    bias = arguments.switch("add_bias_linear")
    score: Literal["softmax", "sigmoid", "sqrtsoftplus"] = arguments.get("moe_router_score_function")
    return ExpertMlp(
        experts=experts,
        topk=topk,
        ffn=arguments.count("moe_ffn_hidden_size", fallback=_ffn(arguments)),
        gated=_gated(arguments),
        bias=bias,
        shared_ffn=arguments.count("moe_shared_expert_intermediate_size", low=0, fallback=0),
        shared_gate=arguments.switch("moe_shared_expert_gate"),
        latent=None if latent is None else arguments.count("moe_latent_size"),
        groups=groups if group_topk is not None and groups != 1 else None,
        group_topk=group_topk if groups not in (None, 1) else None,
        score=score,
        router_bias=arguments.switch("moe_router_enable_expert_bias"),
        router_linear_bias=bias,
    )


def _window(arguments: Arguments) -> int | None:
    """Keys a query sees under `--window-size left,right` (the query itself included)."""
    text = arguments.get("window_size")
    if text is None:
        return None
    numbers = re.findall(r"-?\d+", str(text))
    if len(numbers) != 2 or len(text) > 40:
        arguments.problem("window_size", f"is {str(text)[:40]!r}: two numbers are needed, for example 127,0")
        return None
    left = int(numbers[0])
    return None if left < 0 else left + 1


def _flags_per_layer(arguments: Arguments, dest: str, layers: int) -> list[int]:
    try:
        return layer_list(str(arguments.get(dest)), layers)
    except ValueError as error:
        arguments.problem(dest, f"is {str(arguments.get(dest))[:60]!r}: {error}")
        return [0] * layers


def _windowed(arguments: Arguments, layers: int, window: int | None) -> list[int]:
    """1 for layers with the window. A frequency N leaves every Nth layer with full attention."""
    skip = arguments.get("window_attn_skip_freq")
    if window is None or skip is None:
        return [int(window is not None)] * layers
    if re.fullmatch(r"[1-9]\d{0,5}", str(skip)):
        return [int((layer + 1) % int(skip) != 0) for layer in range(layers)]
    return _flags_per_layer(arguments, "window_attn_skip_freq", layers)


def _linear(arguments: Arguments, layers: int) -> list[int]:
    """1 for layers whose mixer is a gated delta net. A frequency N keeps softmax attention on every Nth layer."""
    if arguments.get("experimental_attention_variant") != "gated_delta_net":
        return [0] * layers
    freq = arguments.get("linear_attention_freq")
    if freq is None:
        arguments.problem("linear_attention_freq", "is needed with --experimental-attention-variant gated_delta_net")
        return [0] * layers
    if re.fullmatch(r"[1-9]\d{0,5}", str(freq)):
        return [int((layer + 1) % int(freq) != 0) for layer in range(layers)]
    return _flags_per_layer(arguments, "linear_attention_freq", layers)


def _transformer(arguments: Arguments) -> tuple[list[Layer], MultiTokenPrediction | None, list[Layer]]:
    """Decoder layers of a GPT model, the prediction modules, and the distinct kinds."""
    stated = "num_layers" if arguments.given("num_layers") else "encoder_num_layers"
    layers = arguments.count(stated if arguments.given(stated) else "num_layers")
    if layers > _MOST_LAYERS:
        arguments.problem(stated, f"is {layers}: more than {_MOST_LAYERS}")
        layers = _MOST_LAYERS
    window = _window(arguments)
    windowed, linear = _windowed(arguments, layers, window), _linear(arguments, layers)
    moe = [0] * layers
    if arguments.get("num_experts") is not None:
        moe = _flags_per_layer(arguments, "moe_layer_freq", layers)
    elif arguments.given("moe_ffn_hidden_size"):
        arguments.problem("moe_ffn_hidden_size", "is given without --num-experts")
    attention = {flag: _attention(arguments, window if flag else None) for flag in set(windowed)}
    parts: dict[int, FeedForward] = {flag: _experts(arguments) if flag else _dense(arguments) for flag in set(moe)}
    delta = _delta_net(arguments) if any(linear) else None
    out = []
    for is_linear, is_windowed, is_moe in zip(linear, windowed, moe, strict=True):
        mixer: Mixer = delta if is_linear and delta is not None else attention[is_windowed]
        out.append(Layer(mixer=mixer, mlp=parts[is_moe]))
    kinds = list(dict.fromkeys(out))
    depth = arguments.count("mtp_num_layers", low=0, fallback=0)
    if depth == 0:
        return out, None, kinds
    repeated = arguments.switch("mtp_use_repeated_layer")
    return out, MultiTokenPrediction(depth=depth, layers=(kinds.index(out[-1]),), repeated=repeated), kinds


def read_hybrid_pattern(arguments: Arguments) -> HybridPattern | None:
    """The hybrid layer pattern under its present or its old name, or None for a GPT model."""
    new, old = arguments.get("hybrid_layer_pattern"), arguments.get("hybrid_override_pattern")
    if new is None and old is None:
        return None
    text = str(new if new is not None else old)
    module, depth = arguments.get("mtp_hybrid_override_pattern"), arguments.get("mtp_num_layers")
    if module is not None and depth and "/" not in text:
        text += "/" + "/".join([str(module)] * min(int(depth), 100))
    return hybrid_pattern(text)


def _hybrid(
    arguments: Arguments, pattern: HybridPattern
) -> tuple[list[Layer], MultiTokenPrediction | None, list[Layer]]:
    """Sub-layers of a hybrid model: one mixer or one feed-forward part with one norm each."""
    arguments.read.add("num_layers")
    made: dict[str, Layer] = {}
    for symbol in dict.fromkeys(pattern.layers + pattern.module):
        mixer: Mixer | None = None
        mlp: FeedForward | None = None
        if symbol == "M":
            mixer = _mamba(arguments)
        elif symbol == "G":
            mixer = _delta_net(arguments)
        elif symbol in "+D":
            arguments.values["multi_latent_attention"] = True
            mixer = _attention(arguments)
        elif symbol == "*":
            mixer = _attention(arguments, _window(arguments))
        elif symbol == "-":
            mlp = _dense(arguments)
        else:
            mlp = _experts(arguments)
        made[symbol] = Layer(mixer=mixer, mlp=mlp, norms=1)
    kinds = list(dict.fromkeys(made.values()))
    out = [made[symbol] for symbol in pattern.layers]
    arguments.read.add("mtp_num_layers")
    if pattern.depth == 0:
        return out, None, kinds
    inside = tuple(kinds.index(made[symbol]) for symbol in pattern.module)
    repeated = arguments.switch("mtp_use_repeated_layer")
    return out, MultiTokenPrediction(depth=pattern.depth, layers=inside, repeated=repeated), kinds


def _vocabulary(arguments: Arguments, hint: int | None, missing: list[str]) -> int:
    """Unpadded vocabulary: stated, else the caller's hint, else assumed and reported as missing."""
    for dest in ("padded_vocab_size", "vocab_size"):
        if arguments.get(dest) is not None:
            return arguments.count(dest) + arguments.count("vocab_extra_ids", low=0)
    missing.append("vocab_size")
    if hint is not None:
        return hint
    arguments.warn(
        "vocabulary",
        f"the vocabulary is set by the tokenizer and not stated; {GPT2_VOCAB} (GPT-2) is assumed",
        "add --vocab-size N",
    )
    return GPT2_VOCAB


def sequence_length(arguments: Arguments) -> int:
    """Tokens of a sequence, under either of Megatron's names."""
    encoder = "encoder_seq_length"
    return arguments.count(encoder if arguments.given(encoder) else "seq_length")


def _longest(arguments: Arguments) -> int:
    """Longest position; Megatron wants it stated, the sequence length goes on where it is not."""
    longest, seq_len = arguments.count("max_position_embeddings", fallback=0), sequence_length(arguments)
    if 0 < longest < seq_len:
        arguments.problem("max_position_embeddings", f"is {longest}: the sequence has {seq_len} tokens")
    return longest or seq_len


def _positions(arguments: Arguments) -> int:
    """Length of the learned position table; 0 with rotary or without positions."""
    kind = arguments.get("position_embedding_type")
    if arguments.switch("use_rotary_position_embeddings") or not arguments.switch("add_position_embedding"):
        kind = "rope"
    return _longest(arguments) if kind == "learned_absolute" else 0


def read_model(arguments: Arguments, name: str, vocab_size: int | None, missing: list[str]) -> Model | None:
    """The model that the arguments describe; None when a pattern in them cannot be read (noted as a problem)."""
    try:
        pattern = read_hybrid_pattern(arguments)
    except InputError as error:
        arguments.problems.append(error.message)
        return None
    found = _transformer(arguments) if pattern is None else _hybrid(arguments, pattern)
    layers, mtp, kinds = found
    if arguments.given("heterogeneous_layers_config_path"):
        arguments.warn(
            "heterogeneous", "the file of --heterogeneous-layers-config-path is not read: layers taken as equal"
        )
    return Model(
        name=name,
        family="megatron-hybrid" if pattern is not None else "megatron-gpt",
        hidden=arguments.count("hidden_size"),
        vocab_size=_vocabulary(arguments, vocab_size, missing),
        kinds=tuple(kinds),
        pattern=tuple(kinds.index(layer) for layer in layers),
        tied_embeddings=not arguments.switch("untie_embeddings_and_output_weights"),
        norm="rms" if arguments.get("normalization") == "RMSNorm" else "layer",
        norm_bias=arguments.get("normalization") != "RMSNorm",
        position_embeddings=_positions(arguments),
        mtp=mtp,
        max_position=_longest(arguments),
    )


def pattern_segments(arguments: Arguments) -> Sequence[int]:
    """Layer counts between the `|` of a hybrid pattern; empty when there is none."""
    try:
        pattern = read_hybrid_pattern(arguments)
    except InputError:
        return ()
    return () if pattern is None or len(pattern.segments) == 1 else pattern.segments
