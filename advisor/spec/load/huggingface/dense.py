"""Dense families: Llama, Qwen, Mistral, Gemma 3, Nemotron-4 and Megatron's own GPT."""

from __future__ import annotations

import dataclasses

from advisor.spec.load.huggingface.config import Config
from advisor.spec.load.huggingface.parts import Frame, assemble, dense, grouped_query, head_norm, num_layers
from advisor.spec.model import Layer, Model


def llama(c: Config) -> Model:
    """Llama 1 to 3, Mistral: grouped-query attention and SwiGLU, nothing else."""
    layer = Layer(grouped_query(c), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


def qwen2(c: Config) -> Model:
    """Qwen 2 and 2.5: biases on query, key and value only."""
    layer = Layer(grouped_query(c, qkv_bias=c.flag("qkv_bias", default=True), out_bias=False), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


def qwen3(c: Config) -> Model:
    """Qwen 3: query and key norm per head, no bias; heads of 128 whatever the hidden size."""
    layer = Layer(grouped_query(c, qk_norm=head_norm(c, default=True), head_dim=128), dense(c))
    return assemble(c, [layer] * num_layers(c), Frame())


def gemma3(c: Config) -> Model:
    """Gemma 3: four norms a layer, every sixth layer with full attention, the others with a sliding window."""
    attention = grouped_query(c, qk_norm=head_norm(c, default=True), head_dim=256)
    window = c.size("sliding_window", default=4096)
    every = c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    mlp, norms = dense(c), 4 if c.flag("sandwich_norm", default=True) else 2
    full = Layer(attention, mlp, norms)
    local = Layer(dataclasses.replace(attention, window=window), mlp, norms)
    types = c.names("layer_types")
    is_full = [kind == "full_attention" for kind in types] if types else []
    if not is_full:
        is_full = [(i + 1) % every == 0 for i in range(num_layers(c))]
    elif len(is_full) != num_layers(c):
        c.problem(f"'layer_types' names {len(is_full)} layers, 'num_hidden_layers' is {num_layers(c)}")
    return assemble(c, [full if one else local for one in is_full], Frame(tied=True))


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
    "mistral": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma3_text": gemma3,
    "nemotron": nemotron,
    "megatron_gpt": megatron_gpt,
    "gpt2-megatron": megatron_gpt,
}
