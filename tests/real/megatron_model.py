"""Builds real megatron-core models of a planned layout, one rank at a time, without memory for the weights."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch

from advisor.spec.model import ExpertMlp, GroupedQueryAttention, LatentAttention, Model
from tests.real.shim import DuplicatedLinear, fake_world


@dataclass(frozen=True)
class Build:
    """One rank of one layout as Megatron is asked for it. `pipeline` holds extra TransformerConfig arguments."""

    rank: int
    world: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    mtp_depth: int = 0
    vocab: int | None = None
    duplicated: bool = True
    pipeline: dict[str, Any] = field(default_factory=dict)


def arguments(model: Model) -> dict[str, Any]:
    """Constructor arguments of TransformerConfig (or its latent-attention kind) that describe `model`."""
    first = model.kinds[model.pattern[0]]
    mixer = first.mixer
    assert isinstance(mixer, GroupedQueryAttention | LatentAttention), "no Megatron GPT specification for this mixer"
    dense = next((kind.mlp for kind in model.kinds if kind.mlp and not isinstance(kind.mlp, ExpertMlp)), None)
    any_mlp = dense or model.moe
    assert any_mlp is not None
    out: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "num_attention_heads": mixer.heads,
        "ffn_hidden_size": any_mlp.ffn,
        "gated_linear_unit": any_mlp.gated,
        "add_bias_linear": any_mlp.bias,
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
        "qk_layernorm": mixer.qk_norm != "none",
    }
    if isinstance(mixer, LatentAttention):
        out |= {
            "q_lora_rank": mixer.q_rank,
            "kv_lora_rank": mixer.kv_rank,
            "qk_head_dim": mixer.qk_nope_dim,
            "qk_pos_emb_head_dim": mixer.qk_rope_dim,
            "v_head_dim": mixer.v_head_dim,
        }
    else:
        out |= {
            "num_query_groups": mixer.kv_heads,
            "kv_channels": mixer.head_dim,
            "add_qkv_bias": mixer.qkv_bias,
            "softmax_type": "learnable" if mixer.sinks else "vanilla",
        }
    moe = model.moe
    if moe is not None:
        out |= {
            "num_moe_experts": moe.experts,
            "moe_router_topk": moe.topk,
            "moe_ffn_hidden_size": moe.ffn,
            "moe_shared_expert_intermediate_size": moe.shared_ffn or None,
            "moe_shared_expert_gate": moe.shared_gate,
            "moe_router_enable_expert_bias": moe.router_bias,
            "moe_router_score_function": moe.score,
            "moe_layer_freq": [int(isinstance(model.kinds[kind].mlp, ExpertMlp)) for kind in model.pattern],
            "moe_token_dispatcher_type": "alltoall",
        }
    return out


def transformer_config(model: Model, build: Build) -> Any:
    """The TransformerConfig of `model` under the layout of `build`."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if model.has_mla else TransformerConfig
    return kind(
        **arguments(model),
        **build.pipeline,
        tensor_model_parallel_size=build.tp,
        pipeline_model_parallel_size=build.pp,
        virtual_pipeline_model_parallel_size=build.vpp if build.vpp > 1 else None,
        context_parallel_size=build.cp,
        expert_model_parallel_size=build.ep,
        expert_tensor_parallel_size=build.etp,
        sequence_parallel=build.tp > 1,
        mtp_num_layers=build.mtp_depth or None,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        perform_initialization=False,
        init_model_with_meta_device=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def _layer_specs(config: Any) -> list[Any]:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_layer_specs

    return get_gpt_decoder_layer_specs(config, use_transformer_engine=False, normalization=config.normalization)


def _duplicate_down_projections(specs: list[Any]) -> None:
    """Give latent attention the whole down-projections that the Transformer Engine specification has."""
    for spec in specs:
        attention = spec.submodules.self_attention.submodules
        attention.linear_q_down_proj = DuplicatedLinear
        attention.linear_kv_down_proj = DuplicatedLinear


def _chunk(model: Model, build: Build, config: Any, parallel_state: Any, vp_stage: int | None) -> torch.nn.Module:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec

    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    last = _layer_specs(config)[-1]
    if model.has_mla and build.duplicated:
        _duplicate_down_projections([*block.layer_specs, last])
    mtp = None
    if build.mtp_depth:
        mtp = get_gpt_mtp_block_spec(config, last, use_transformer_engine=False, vp_stage=vp_stage)
    where = {"ignore_virtual": False, "vp_stage": vp_stage}
    with torch.device("meta"):
        return GPTModel(
            config=config,
            transformer_layer_spec=block,
            vocab_size=build.vocab or model.vocab_size,
            max_sequence_length=model.position_embeddings or 4096,
            pre_process=parallel_state.is_pipeline_first_stage(**where),
            post_process=parallel_state.is_pipeline_last_stage(**where),
            share_embeddings_and_output_weights=model.tied_embeddings,
            position_embedding_type="learned_absolute" if model.position_embeddings else "rope",
            mtp_block_spec=mtp,
            vp_stage=vp_stage,
        )


def _world(build: Build) -> contextlib.AbstractContextManager[Any]:
    sizes = {
        "tensor_model_parallel_size": build.tp,
        "pipeline_model_parallel_size": build.pp,
        "virtual_pipeline_model_parallel_size": build.vpp if build.vpp > 1 else None,
        "context_parallel_size": build.cp,
        "expert_model_parallel_size": build.ep,
        "expert_tensor_parallel_size": build.etp,
    }
    return fake_world(build.rank, build.world, **sizes)


def count(model: Model, build: Build) -> tuple[int, int]:
    """Parameters that rank `build.rank` really allocates: (all that are no routed experts, routed experts).

    Sums all virtual chunks of the rank. Routed experts are those below a module named `experts`.
    """
    dense = expert = 0
    with _world(build) as parallel_state:
        config = transformer_config(model, build)
        for vp_stage in range(build.vpp) if build.vpp > 1 else (None,):
            chunk = _chunk(model, build, config, parallel_state, vp_stage)
            for name, parameter in chunk.named_parameters():
                if ".experts." in name:
                    expert += parameter.numel()
                else:
                    dense += parameter.numel()
    return dense, expert


def bucket_counts(model: Model, build: Build, size: int | None) -> list[tuple[int, int]]:
    """Buckets into which megatron-core's DDP cuts each chunk of a rank: (all that are no routed experts, experts)."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    wanted = DistributedDataParallelConfig(
        bucket_size=size, overlap_grad_reduce=True, overlap_param_gather=True, use_distributed_optimizer=True
    )
    with _world(build) as parallel_state:
        config = transformer_config(model, build)
        found = []
        for stage in range(build.vpp):
            chunk = _chunk(model, build, config, parallel_state, stage if build.vpp > 1 else None)
            wrapped = DistributedDataParallel(config, wanted, chunk, disable_bucketing=stage > 0)
            buffers = (wrapped.buffers, wrapped.expert_parallel_buffers)
            found.append(tuple(sum(len(one.buckets) for one in kind) for kind in buffers))
    return found
