"""Families that mix attention with a recurrence: Nemotron-H (Mamba-2) and Qwen3-Next / Qwen 3.5 (gated delta-net)."""

from __future__ import annotations

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
)
from advisor.spec.model import DeltaNet, FeedForward, Layer, Mamba, Model

SYMBOL_OF_TYPE = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def _pattern(c: Config, types_key: str, pattern_key: str, default: str) -> str:
    """Layer symbols: M mixer, * attention, - dense, E experts; from a pattern string or a list of type names."""
    if c.has(pattern_key):
        return c.text(pattern_key, default="M")
    names = c.names(types_key)
    if names is None:
        return default
    return "".join(SYMBOL_OF_TYPE.get(name, "?") for name in names)


def _mamba(c: Config) -> Mamba:
    return Mamba(
        heads=c.size("mamba_num_heads"),
        head_dim=c.size("mamba_head_dim"),
        state=c.size("ssm_state_size"),
        groups=c.size("n_groups", default=8),
        conv=c.size("conv_kernel", default=4),
        chunk=c.size("chunk_size", default=128),
        conv_bias=c.flag("use_conv_bias", default=True),
        proj_bias=c.flag("mamba_proj_bias", default=False),
    )


def _nemotron_experts(c: Config) -> FeedForward:
    width = c.size("moe_intermediate_size")
    shared = c.size("moe_shared_expert_intermediate_size", default=width, least=0)
    return experts(
        c,
        ffn=width,
        shared_ffn=shared * c.size("n_shared_experts", default=1, least=0),
        score="sigmoid",
        router_bias=True,
        gated=False,
        latent_width=c.optional_size("moe_latent_size"),
    )


def nemotron_h(c: Config) -> Model:
    """Nemotron-H and Nemotron 3: one sub-layer a layer, in the order of a pattern of M, *, - and E."""
    pattern = _pattern(c, "layers_block_type", "hybrid_override_pattern", "")
    modules = depth(c)
    mtp_pattern = _pattern(c, "mtp_layers_block_type", "mtp_hybrid_override_pattern", "*E") if modules else ""
    if not pattern:
        c.missing.append("'hybrid_override_pattern' or 'layers_block_type'")
    if len(pattern) > MOST_LAYERS:
        c.problem(f"the layer pattern has {len(pattern)} symbols; at most {MOST_LAYERS} can be planned")
    if c.has("num_hidden_layers") and pattern and num_layers(c) != len(pattern):
        c.problem(f"'num_hidden_layers' is {num_layers(c)}, the layer pattern has {len(pattern)} symbols")
    makers = {
        "M": lambda: Layer(_mamba(c), None, norms=1),
        "*": lambda: Layer(grouped_query(c, head_dim=128), None, norms=1),
        "-": lambda: Layer(None, dense(c, gated=False), norms=1),
        "E": lambda: Layer(None, _nemotron_experts(c), norms=1),
    }
    unknown = sorted(set(pattern + mtp_pattern) - set(makers))
    if unknown:
        c.problem(f"the layer pattern holds {''.join(unknown)!r}; known symbols are {''.join(makers)}")
    made = {symbol: makers[symbol]() for symbol in dict.fromkeys(pattern + mtp_pattern) if symbol in makers}
    layers = [made[symbol] for symbol in pattern[:MOST_LAYERS] if symbol in made]
    mtp_layers = tuple(made[symbol] for symbol in mtp_pattern if symbol in made)
    return assemble(c, layers, Frame(mtp_depth=modules, mtp_layers=mtp_layers))


def _delta_net(c: Config) -> DeltaNet:
    return DeltaNet(
        key_heads=c.size("linear_num_key_heads"),
        value_heads=c.size("linear_num_value_heads"),
        key_dim=c.size("linear_key_head_dim"),
        value_dim=c.size("linear_value_head_dim"),
        conv=c.size("linear_conv_kernel_dim", default=4),
    )


def _delta_hybrid(c: Config, mlp: FeedForward) -> Model:
    """Gated delta-net layers with full attention at an interval, both followed by `mlp`."""
    attention = grouped_query(
        c,
        qk_norm=head_norm(c, default=True),
        head_dim=256,
        output_gate=c.flag("attn_output_gate", default=True),
    )
    full, linear = Layer(attention, mlp), Layer(_delta_net(c), mlp)
    interval = c.size("full_attention_interval", default=4)
    layers = [full if one else linear for one in full_attention(c, lambda i: (i + 1) % interval == 0)]
    return assemble(c, layers, Frame(mtp_depth=depth(c), mtp_layers=(full,)))


def qwen3_next(c: Config) -> Model:
    """Qwen3-Next and Qwen 3.5 MoE: experts with a gated shared one in every layer."""
    mlp = experts(
        c,
        ffn=c.size("moe_intermediate_size"),
        shared_ffn=c.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _delta_hybrid(c, mlp)


def qwen3_5(c: Config) -> Model:
    """Qwen 3.5 dense."""
    return _delta_hybrid(c, dense(c))


FAMILIES = {
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_next,
}
