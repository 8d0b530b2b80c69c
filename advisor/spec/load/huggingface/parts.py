"""Parts that most families share: attention, feed-forward, and the assembly of layers into a `Model`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from advisor.spec.load.huggingface.config import MOST_LAYERS, Config
from advisor.spec.model import (
    DenseMlp,
    ExpertMlp,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MultiTokenPrediction,
    QkNorm,
    SparseIndexer,
)

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the layers; see the fields of `Model` with the same names."""

    tied: bool = False
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    head_bias: bool = False
    position_embeddings: int = 0
    mtp_depth: int = 0
    mtp_layers: tuple[Layer, ...] = ()
    hyper_connections: int = 1


def num_layers(c: Config) -> int:
    """Number of decoder layers."""
    return c.size("num_hidden_layers", "n_layer", "num_layers", most=MOST_LAYERS)


def grouped_query(
    c: Config,
    *,
    qkv_bias: bool | None = None,
    out_bias: bool | None = None,
    qk_norm: QkNorm = "none",
    head_dim: int | None = None,
    output_gate: bool = False,
    window: int | None = None,
    sinks: bool = False,
) -> GroupedQueryAttention:
    """Attention under the key names of Llama. A bias of None is read from `attention_bias` (default false)."""
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    kv_heads = c.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        c.problem(f"'num_attention_heads' {heads} is no multiple of 'num_key_value_heads' {kv_heads}")
    if head_dim is None and not c.has("head_dim") and hidden % heads:
        c.problem(f"'hidden_size' {hidden} is no multiple of 'num_attention_heads' {heads} and 'head_dim' is missing")
    dim = c.size("head_dim", default=head_dim or max(hidden // heads, 1))
    attention_bias = c.flag("attention_bias", default=False)
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        v_head_dim=dim,
        qkv_bias=attention_bias if qkv_bias is None else qkv_bias,
        out_bias=c.flag("attention_out_bias", default=attention_bias if out_bias is None else out_bias),
        qk_norm=qk_norm,
        output_gate=output_gate,
        window=window,
        sinks=sinks,
    )


def head_norm(c: Config, *, default: bool) -> QkNorm:
    """Query and key norm per head, if `use_qk_norm` (or the model type, `default`) says so."""
    return "head" if c.flag("use_qk_norm", "qk_norm", default=default) else "none"


def latent(c: Config, indexer: SparseIndexer | None = None) -> LatentAttention:
    """Multi-head latent attention under the key names of DeepSeek."""
    return LatentAttention(
        heads=c.size("num_attention_heads"),
        q_rank=c.optional_size("q_lora_rank"),
        kv_rank=c.size("kv_lora_rank"),
        qk_nope_dim=c.size("qk_nope_head_dim"),
        qk_rope_dim=c.size("qk_rope_head_dim"),
        v_head_dim=c.size("v_head_dim"),
        indexer=indexer,
    )


def dense(c: Config, *, key: str = "intermediate_size", gated: bool = True, bias: bool = False) -> DenseMlp:
    """A dense feed-forward part of width `key`."""
    return DenseMlp(ffn=c.size(key), gated=c.flag("mlp_gated", default=gated), bias=c.flag("mlp_bias", default=bias))


def experts(
    c: Config,
    *,
    ffn: int,
    shared_ffn: int = 0,
    score: Score = "softmax",
    router_bias: bool = False,
    gated: bool = True,
    bias: bool = False,
    shared_gate: bool = False,
    router_linear_bias: bool = False,
    latent_width: int | None = None,
) -> ExpertMlp:
    """Routed experts under any of the usual key names; widths are given by the family."""
    count = c.size("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", most=2**16)
    topk = c.size("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k")
    if topk > count:
        c.problem(f"{topk} experts per token of {count}")
    groups, group_topk = c.optional_size("n_group"), c.optional_size("topk_group")
    limited = groups is not None and groups > 1
    return ExpertMlp(
        experts=count,
        topk=topk,
        ffn=ffn,
        gated=gated,
        bias=bias,
        shared_ffn=shared_ffn,
        shared_gate=shared_gate,
        latent=latent_width,
        groups=groups if limited else None,
        group_topk=group_topk if limited else None,
        score=cast(Score, c.choice("scoring_func", ("softmax", "sigmoid", "sqrtsoftplus"), default=score)),
        router_bias=router_bias,
        router_linear_bias=router_linear_bias,
    )


def sparse_after(c: Config, first: Layer, rest: Layer, *, leading: int = 0) -> list[Layer]:
    """`first` for the dense layers and `rest` for the sparse ones.

    Which is which stands, in this order, in `mlp_layer_types`, in `moe_layers_enum` (the sparse ones), in a listed
    `moe_layer_freq` (0/1), or in `first_k_dense_replace` (default `leading`) with an interval `moe_layer_freq`.
    """
    count = num_layers(c)
    types, chosen = c.names("mlp_layer_types"), c.sizes("moe_layers_enum", most=MOST_LAYERS)
    freq = c.sizes("moe_layer_freq", most=1) if isinstance(c.values.get("moe_layer_freq"), list) else None
    if types is not None:
        is_sparse = [kind != "dense" for kind in types]
    elif chosen is not None:
        is_sparse = [i in chosen for i in range(count)]
    elif freq is not None:
        is_sparse = [flag == 1 for flag in freq]
    else:
        start = c.size("first_k_dense_replace", default=leading, least=0)
        interval = c.size("moe_layer_freq", default=1)
        is_sparse = [i >= start and i % interval == 0 for i in range(count)]
    if len(is_sparse) != count:
        c.problem(f"sparse layers are listed for {len(is_sparse)} layers, 'num_hidden_layers' is {count}")
    return [rest if one else first for one in is_sparse]


def full_attention(c: Config, otherwise: Callable[[int], bool]) -> list[bool]:
    """Which layers attend to everything: those that `layer_types` names so, or those that `otherwise` picks."""
    types, count = c.names("layer_types"), num_layers(c)
    if types is None:
        return [otherwise(i) for i in range(count)]
    if len(types) != count:
        c.problem(f"'layer_types' names {len(types)} layers, 'num_hidden_layers' is {count}")
    return [kind == "full_attention" for kind in types]


def depth(c: Config) -> int:
    """Number of multi-token prediction modules that the configuration names."""
    return c.size("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0, most=64)


def assemble(c: Config, layers: Sequence[Layer], frame: Frame) -> Model:
    """The model of `layers` in their order; kinds are numbered by first appearance.

    Prediction modules are built like the last decoder layer unless the frame names their layers.
    """
    ordered = [*layers]
    mtp_layers = frame.mtp_layers or tuple(ordered[-1:])
    kinds = tuple(dict.fromkeys([*ordered, *(mtp_layers if frame.mtp_depth else ())]))
    number = {layer: i for i, layer in enumerate(kinds)}
    mtp = None
    if frame.mtp_depth:
        mtp = MultiTokenPrediction(depth=frame.mtp_depth, layers=tuple(number[layer] for layer in mtp_layers))
    return Model(
        name=c.text("_name", default=c.where),
        family=c.text("model_type", default=""),
        hidden=c.size("hidden_size"),
        vocab_size=c.size("vocab_size"),
        kinds=kinds,
        pattern=tuple(number[layer] for layer in ordered),
        tied_embeddings=c.flag("tie_word_embeddings", default=frame.tied),
        norm=frame.norm,
        norm_bias=frame.norm_bias,
        position_embeddings=frame.position_embeddings,
        head_bias=frame.head_bias,
        mtp=mtp,
        hyper_connections=frame.hyper_connections,
        max_position=c.size("max_position_embeddings", "max_seq_len", default=0, least=0, most=2**40),
        source=c.lines("_source"),
        notes=c.lines("_notes"),
    )
