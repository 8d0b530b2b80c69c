"""Families with latent or compressed attention: DeepSeek V2 to V4, Kimi K2, GLM-5."""

from __future__ import annotations

import dataclasses

from advisor.spec.load.huggingface.config import MOST_LAYERS, Config
from advisor.spec.load.huggingface.parts import Frame, assemble, dense, depth, experts, latent, num_layers, sparse_after
from advisor.spec.model import CompressedAttention, ExpertMlp, Layer, Model, SparseIndexer


def indexer(c: Config) -> SparseIndexer:
    """Lightning indexer of DeepSeek sparse attention."""
    return SparseIndexer(heads=c.size("index_n_heads"), head_dim=c.size("index_head_dim"), topk=c.size("index_topk"))


def _shared_and_routed(c: Config, *, v3: bool) -> ExpertMlp:
    width = c.size("moe_intermediate_size")
    shared = width * c.size("n_shared_experts", default=0, least=0)
    return experts(c, ffn=width, shared_ffn=shared, score="sigmoid" if v3 else "softmax", router_bias=v3)


def _deepseek(c: Config, *, v3: bool, sparse_attention: bool = False) -> Model:
    attention = latent(c, indexer(c) if sparse_attention else None)
    sparse = Layer(attention, _shared_and_routed(c, v3=v3))
    layers = sparse_after(c, Layer(attention, dense(c)), sparse, leading=3 if v3 else 0)
    return assemble(c, layers, Frame(mtp_depth=depth(c)))


def deepseek_v2(c: Config) -> Model:
    """DeepSeek V2: softmax routing without a bias."""
    return _deepseek(c, v3=False)


def deepseek_v3(c: Config) -> Model:
    """DeepSeek V3, Kimi K2: sigmoid routing with a balancing bias."""
    return _deepseek(c, v3=True)


def deepseek_v32(c: Config) -> Model:
    """DeepSeek V3.2 and GLM-5: V3 with a lightning indexer in every layer."""
    return _deepseek(c, v3=True, sparse_attention=True)


RATIO_OF_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def _ratios(c: Config) -> list[int]:
    """Compression ratio of each layer: named types, listed ratios, or V4's default interleaving."""
    count, names, listed = num_layers(c), c.names("layer_types"), c.sizes("compress_ratios", most=2**16)
    if names:
        ratios = [RATIO_OF_TYPE.get(name, -1) for name in names]
        if -1 in ratios:
            c.problem(f"'layer_types' may hold {', '.join(RATIO_OF_TYPE)}")
    elif listed:
        ratios = list(listed)
    else:
        ratios = [128] * min(count, 2) + [4 if i % 2 else 128 for i in range(max(count - 2, 0))]
    if len(ratios) < count:
        c.problem(f"'compress_ratios' or 'layer_types' names {len(ratios)} layers, 'num_hidden_layers' is {count}")
    return ratios[:count]


def deepseek_v4(c: Config) -> Model:
    """DeepSeek V4: compressed sparse attention, hyper-connections, hash-routed first layers."""
    base = CompressedAttention(
        heads=c.size("num_attention_heads"),
        head_dim=c.size("head_dim", default=512),
        q_rank=c.size("q_lora_rank"),
        o_rank=c.size("o_lora_rank"),
        o_groups=c.size("o_groups"),
        rope_dim=c.size("qk_rope_head_dim", default=64),
        window=c.size("sliding_window", default=128),
        ratio=0,
    )
    width = c.size("moe_intermediate_size")
    shared = width * c.size("n_shared_experts", default=1, least=0)
    routed = experts(c, ffn=width, shared_ffn=shared, score="sqrtsoftplus", router_bias=True)
    hashed = dataclasses.replace(routed, router_bias=False, hash_routed=True)
    hash_layers = c.size("num_hash_layers", default=3, least=0, most=MOST_LAYERS)
    types = c.names("mlp_layer_types")
    is_hashed = [i < hash_layers if types is None else types[i : i + 1] == ("hash_moe",) for i in range(num_layers(c))]
    layers = []
    for i, ratio in enumerate(_ratios(c)):
        # Only the lightly compressed layers pick keys with an indexer (transformers 5.24.0, deepseek_v4).
        attention = dataclasses.replace(base, ratio=ratio, indexer=indexer(c) if 0 < ratio < 128 else None)
        layers.append(Layer(attention, hashed if is_hashed[i] else routed))
    return assemble(c, layers, Frame(mtp_depth=depth(c), hyper_connections=c.size("hc_mult", default=4, most=64)))


FAMILIES = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": deepseek_v32,
    "deepseek_v4": deepseek_v4,
}
