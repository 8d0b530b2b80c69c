"""Dense families: Llama, Qwen, Mistral, Gemma 3, Nemotron-4 and Megatron's own GPT."""

from __future__ import annotations

import dataclasses

from advisor.spec.load.huggingface.config import Config
from advisor.spec.load.huggingface.parts import (
    Frame,
    assemble,
    dense,
    full_attention,
    grouped_query,
    head_norm,
    num_layers,
)
from advisor.spec.model import GroupedQueryAttention, Layer, Model


def llama(c: Config) -> Model:
    """Llama 1 to 3: grouped-query attention and SwiGLU, nothing else."""
    layer = Layer(grouped_query(c), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


def mistral(c: Config) -> Model:
    """Mistral, Phi-3: Llama's shape, perhaps with a sliding window in every layer."""
    layer = Layer(grouped_query(c, window=c.optional_size("sliding_window")), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


def qwen2(c: Config) -> Model:
    """Qwen 2 and 2.5: biases on query, key and value only."""
    layer = Layer(grouped_query(c, qkv_bias=c.flag("qkv_bias", default=True), out_bias=False), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


def qwen3(c: Config) -> Model:
    """Qwen 3: query and key norm per head, no bias; heads of 128 whatever the hidden size."""
    layer = Layer(grouped_query(c, qk_norm=head_norm(c, default=True), head_dim=128), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}


def gemma(c: Config) -> Model:
    """Gemma 1: heads of 256 and tied embeddings."""
    layer = Layer(grouped_query(c, head_dim=256), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame(tied=True))


def gemma2(c: Config) -> Model:
    """Gemma 2: four norms a layer, every second layer with a sliding window."""
    return _gemma_windows(c, grouped_query(c, head_dim=256), every=2)


def gemma3(c: Config) -> Model:
    """Gemma 3: four norms a layer, every sixth layer with full attention, the others with a sliding window.

    Published files of the multimodal models leave out what equals the class defaults (transformers 5.24.0, gemma3).
    """
    c.values = {**GEMMA3_DEFAULTS, **c.values}
    every = c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _gemma_windows(c, grouped_query(c, qk_norm=head_norm(c, default=True), head_dim=256), every)


def _gemma_windows(c: Config, attention: GroupedQueryAttention, every: int) -> Model:
    mlp, norms = dense(c), 4 if c.flag("sandwich_norm", default=True) else 2
    local = Layer(dataclasses.replace(attention, window=c.size("sliding_window", default=4096)), mlp, norms)
    full = Layer(attention, mlp, norms)
    layers = [full if one else local for one in full_attention(c, lambda i: (i + 1) % every == 0)]
    return assemble(c, layers, Frame(tied=True))


def nemotron(c: Config) -> Model:
    """Nemotron-4: squared ReLU without gate, layer norms with bias."""
    layer = Layer(grouped_query(c), dense(c, gated=False))
    return assemble(c, [layer] * num_layers(c), Frame(norm="layer", norm_bias=c.flag("norm_bias", default=True)))


def megatron_gpt(c: Config) -> Model:
    """Megatron's GPT: biases everywhere, layer norms, learned positions, tied embeddings."""
    bias = c.flag("linear_bias", "attention_bias", default=True)
    attention = grouped_query(c, qkv_bias=bias, out_bias=bias)
    layer = Layer(attention, dense(c, gated=False, bias=bias))
    learned = c.text("position_embedding_type", "position_embedding", default="learned_absolute")
    positions = c.size("max_position_embeddings", default=2048, most=2**24) if learned.startswith("learned") else 0
    norm_bias = c.flag("norm_bias", default=True)
    frame = Frame(tied=True, norm="layer", norm_bias=norm_bias, position_embeddings=positions)
    return assemble(c, [layer] * num_layers(c), frame)


FAMILIES = {
    "llama": llama,
    "mistral": mistral,
    "phi3": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "nemotron": nemotron,
    "megatron_gpt": megatron_gpt,
    "gpt2-megatron": megatron_gpt,
}
