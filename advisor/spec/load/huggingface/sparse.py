"""Mixture-of-experts families with grouped-query attention."""

from __future__ import annotations

import dataclasses

from advisor.spec.load.huggingface.config import MOST_LAYERS, Config
from advisor.spec.load.huggingface.parts import (
    Frame,
    assemble,
    dense,
    depth,
    experts,
    full_attention,
    grouped_query,
    head_norm,
    num_layers,
    sparse_after,
)
from advisor.spec.model import FeedForward, GroupedQueryAttention, Layer, Model


def mixtral(c: Config) -> Model:
    """Mixtral: every layer sparse, experts of the full width."""
    layer = Layer(
        grouped_query(c, window=c.optional_size("sliding_window")), experts(c, ffn=c.size("intermediate_size"))
    )
    return assemble(c, [layer] * num_layers(c), Frame())


def grok(c: Config) -> Model:
    """Grok-1: Mixtral's shape with four norms a layer."""
    norms = 4 if c.flag("sandwich_norm", default=True) else 2
    layer = Layer(grouped_query(c), experts(c, ffn=c.size("intermediate_size")), norms)
    return assemble(c, [layer] * num_layers(c), Frame(tied=True))


def _by_step(c: Config, attention: GroupedQueryAttention, sparse: FeedForward) -> list[Layer]:
    """Sparse every `decoder_sparse_step` layers, dense where `mlp_only_layers` says so."""
    step = c.size("decoder_sparse_step", default=1)
    only_dense = set(c.sizes("mlp_only_layers") or ())
    layers = range(num_layers(c))
    is_dense = [i in only_dense or (i + 1) % step != 0 for i in layers]
    plain = Layer(attention, dense(c)) if any(is_dense) else None
    return [plain if plain is not None and one else Layer(attention, sparse) for one in is_dense]


def qwen2_moe(c: Config) -> Model:
    """Qwen 2 MoE: a gated shared expert beside the routed ones."""
    attention = grouped_query(c, qkv_bias=c.flag("qkv_bias", default=True), out_bias=False)
    sparse = experts(
        c,
        ffn=c.size("moe_intermediate_size"),
        shared_ffn=c.size("shared_expert_intermediate_size", default=0, least=0),
        shared_gate=c.has("shared_expert_intermediate_size"),
    )
    return assemble(c, _by_step(c, attention, sparse), Frame())


def qwen3_moe(c: Config) -> Model:
    """Qwen 3 MoE: no shared expert, query and key norm per head."""
    attention = grouped_query(c, qk_norm=head_norm(c, default=True))
    return assemble(c, _by_step(c, attention, experts(c, ffn=c.size("moe_intermediate_size"))), Frame())


def olmoe(c: Config) -> Model:
    """OLMoE: query and key norm over the whole projection."""
    has_norm = c.flag("use_qk_norm", default=True)
    attention = grouped_query(c, qk_norm="full" if has_norm else "none")
    layer = Layer(attention, experts(c, ffn=c.size("intermediate_size")))
    return assemble(c, [layer] * num_layers(c), Frame())


def phimoe(c: Config) -> Model:
    """Phi-3.5-MoE: biases in attention and output head, layer norms with bias."""
    layer = Layer(grouped_query(c), experts(c, ffn=c.size("intermediate_size")))
    frame = Frame(
        norm="layer", norm_bias=c.flag("norm_bias", default=True), head_bias=c.flag("lm_head_bias", default=False)
    )
    return assemble(c, [layer] * num_layers(c), frame)


def dbrx(c: Config) -> Model:
    """DBRX: layer norms without bias. Its own nested key names are understood too."""
    attention, ffn = c.nested("attn_config"), c.nested("ffn_config")
    renamed = {
        "hidden_size": c.values.get("d_model"),
        "num_hidden_layers": c.values.get("n_layers"),
        "num_attention_heads": c.values.get("n_heads"),
        "max_position_embeddings": c.values.get("max_seq_len"),
        "num_key_value_heads": attention.values.get("kv_n_heads"),
        "intermediate_size": ffn.values.get("ffn_hidden_size"),
        "num_experts": ffn.values.get("moe_num_experts"),
        "num_experts_per_tok": ffn.values.get("moe_top_k"),
    }
    c.values = {**{key: value for key, value in renamed.items() if value is not None}, **c.values}
    layer = Layer(grouped_query(c), experts(c, ffn=c.size("intermediate_size")))
    frame = Frame(norm="layer", norm_bias=c.flag("norm_bias", default=False))
    return assemble(c, [layer] * num_layers(c), frame)


def gpt_oss(c: Config) -> Model:
    """gpt-oss: biases everywhere, attention sinks, every second layer with a sliding window."""
    bias = c.flag("attention_bias", default=True)
    attention = grouped_query(
        c, qkv_bias=bias, out_bias=bias, head_dim=64, sinks=c.flag("attention_sinks", default=True)
    )
    moe_bias = c.flag("moe_bias", default=True)
    sparse = experts(c, ffn=c.size("intermediate_size"), bias=moe_bias, router_linear_bias=moe_bias)
    full = Layer(attention, sparse)
    local = Layer(dataclasses.replace(attention, window=c.size("sliding_window", default=128)), sparse)
    layers = [full if one else local for one in full_attention(c, lambda i: i % 2 == 1)]
    return assemble(c, layers, Frame())


def glm4_moe(c: Config) -> Model:
    """GLM-4.5: leading dense layers, shared expert, bias on query, key and value only."""
    attention = grouped_query(c, out_bias=False, qk_norm=head_norm(c, default=False), head_dim=128)
    width = c.size("moe_intermediate_size")
    shared = width * c.size("n_shared_experts", default=1, least=0)
    sparse = experts(c, ffn=width, shared_ffn=shared, score="sigmoid", router_bias=True)
    layers = sparse_after(c, Layer(attention, dense(c)), Layer(attention, sparse), leading=1)
    return assemble(c, layers, Frame(mtp_depth=depth(c)))


def ernie(c: Config) -> Model:
    """ERNIE 4.5: sparse layers between two indices, at an interval."""
    bias = c.flag("use_bias", default=False)
    attention = grouped_query(c, qkv_bias=bias or None, out_bias=bias or None)
    width = c.size("moe_intermediate_size")
    shared = width * c.size("moe_num_shared_experts", default=2, least=0)
    sparse = experts(c, ffn=width, shared_ffn=shared, router_bias=c.flag("moe_use_aux_free", default=False))
    count = num_layers(c)
    start = c.size("moe_layer_start_index", default=1, least=0)
    end = c.size("moe_layer_end_index", default=-1, least=-1)
    end, interval = (count - 1 if end == -1 else end), c.size("moe_layer_interval", default=1)
    dense_layer, sparse_layer = Layer(attention, dense(c, bias=bias)), Layer(attention, sparse)
    is_sparse = [start <= i <= end and (i + 1) % interval == 0 for i in range(count)]
    return assemble(c, [sparse_layer if one else dense_layer for one in is_sparse], Frame(tied=True))


def minimax_m2(c: Config) -> Model:
    """MiniMax-M2: query and key norm over the whole projection, no shared expert."""
    has_norm = c.flag("use_qk_norm", default=True)
    attention = grouped_query(c, qk_norm="full" if has_norm else "none", head_dim=128)
    sparse = experts(
        c,
        ffn=c.size("intermediate_size"),
        shared_ffn=c.size("shared_intermediate_size", default=0, least=0),
        score="sigmoid",
        router_bias=c.flag("use_routing_bias", default=True),
    )
    modules = c.size("num_mtp_modules", default=0, least=0, most=64) if c.flag("use_mtp", default=False) else 0
    return assemble(c, [Layer(attention, sparse)] * num_layers(c), Frame(mtp_depth=modules))


def minimax_m3(c: Config) -> Model:
    """MiniMax-M3 (text): leading dense layers, shared expert, query and key norm per head; indexer not counted."""
    attention = grouped_query(c, qk_norm=head_norm(c, default=True), head_dim=128)
    width = c.size("moe_intermediate_size", "intermediate_size")
    shared = c.size("shared_intermediate_size", default=width) * c.size("n_shared_experts", default=1, least=0)
    bias = c.flag("use_routing_bias", default=True)
    sparse = experts(c, ffn=width, shared_ffn=shared, score="sigmoid", router_bias=bias)
    first = Layer(attention, dense(c, key="dense_intermediate_size"))
    return assemble(c, sparse_after(c, first, Layer(attention, sparse)), Frame(mtp_depth=depth(c)))


def llama4(c: Config) -> Model:
    """Llama 4 (text): dense and sparse layers interleaved, one shared expert of the routed width."""
    attention = grouped_query(c)
    width, step = c.size("intermediate_size"), c.size("interleave_moe_layer_step", default=1)
    sparse = Layer(attention, experts(c, ffn=width, shared_ffn=width, score="sigmoid"))
    plain = Layer(attention, dense(c, key="intermediate_size_mlp"))
    chosen = c.sizes("moe_layers", most=MOST_LAYERS)
    is_sparse = [i in chosen if chosen else (i + 1) % step == 0 for i in range(num_layers(c))]
    return assemble(c, [sparse if one else plain for one in is_sparse], Frame())


def hunyuan(c: Config) -> Model:
    """Hunyuan-Large: cross-layer attention shares keys and values of every `cla_share_factor` layers."""
    attention = grouped_query(c, qk_norm=head_norm(c, default=True))
    width = c.size("moe_intermediate_size", "intermediate_size")
    shared = width * c.size("num_shared_expert", "num_shared_experts", default=1, least=0)
    sparse = experts(c, ffn=width, shared_ffn=shared if c.flag("use_mixed_mlp_moe", default=True) else 0)
    own = Layer(attention, sparse)
    borrowed = Layer(dataclasses.replace(attention, shares_kv=True), sparse)
    factor = c.size("cla_share_factor", default=2) if c.flag("use_cla", default=False) else 1
    return assemble(c, [borrowed if i % factor else own for i in range(num_layers(c))], Frame())


def bailing(c: Config) -> Model:
    """Ling (Bailing MoE): leading dense layers, shared experts, query and key norm per head."""
    attention = grouped_query(c, qk_norm=head_norm(c, default=True))
    width = c.size("moe_intermediate_size")
    shared = width * c.size("num_shared_experts", "n_shared_experts", default=1, least=0)
    sparse = experts(c, ffn=width, shared_ffn=shared, score="sigmoid", router_bias=True)
    return assemble(c, sparse_after(c, Layer(attention, dense(c)), Layer(attention, sparse)), Frame(mtp_depth=depth(c)))


def step3(c: Config) -> Model:
    """Step-3: multi-matrix factorisation attention (low-rank query, one key-value head), listed sparse layers."""
    base = grouped_query(c)
    groups = c.size("num_attention_groups", "num_key_value_heads", default=1)
    attention = dataclasses.replace(base, kv_heads=groups, query_rank=c.size("share_q_dim"))
    sparse = experts(c, ffn=c.size("moe_intermediate_size"), shared_ffn=c.size("share_expert_dim", default=0, least=0))
    layers = sparse_after(c, Layer(attention, dense(c)), Layer(attention, sparse), leading=1)
    return assemble(c, layers, Frame())


def step3p7(c: Config) -> Model:
    """Step-3.7: leading dense layers, shared expert, query and key norm per head."""
    attention = grouped_query(c, qk_norm=head_norm(c, default=True))
    width = c.size("moe_intermediate_size")
    shared = c.size("share_expert_dim", default=width, least=0)
    sparse = experts(c, ffn=width, shared_ffn=shared, score="sigmoid", router_bias=True)
    layers = sparse_after(c, Layer(attention, dense(c)), Layer(attention, sparse), leading=3)
    return assemble(c, layers, Frame(mtp_depth=depth(c)))


FAMILIES = {
    "mixtral": mixtral,
    "grok-1": grok,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "olmoe": olmoe,
    "phimoe": phimoe,
    "dbrx": dbrx,
    "gpt_oss": gpt_oss,
    "glm4_moe": glm4_moe,
    "ernie4_5_moe": ernie,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
    "llama4_text": llama4,
    "hunyuan": hunyuan,
    "hunyuan_v1_moe": hunyuan,
    "bailing_moe": bailing,
    "bailing_moe_v2": bailing,
    "step3_text": step3,
    "step3p5": step3p7,
    "step3p7": step3p7,
}
