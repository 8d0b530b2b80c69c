"""Mixers and expert layers that no ready GPT specification holds, built alone: rank counts with difference 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("megatron.core")

from advisor.cost.params import layer_params
from advisor.spec.layout import Columns, Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.model import DeltaNet, ExpertMlp, GroupedQueryAttention, LatentAttention, Layer, Mamba, Model
from advisor.spec.split import PipelineSplit
from tests.real.shim import DuplicatedLinear, fake_world

pytestmark = pytest.mark.real


def columns(tp: int, ep: int = 1, etp: int = 1) -> Columns:
    split = PipelineSplit(1, 1, (1,))
    edp = tp // (ep * etp) or 1
    return table([Layout(tp, 1, 1, 1, ep, etp, 1, edp, 1, 1, tp > 1, split)], [Knobs()])


def built(make: Callable[[Any, Any], Any], tp: int, ep: int = 1, etp: int = 1, **settings: Any) -> int:
    """Parameters of the module that `make(config, process groups)` builds on rank 0 of `tp` ranks."""
    import torch

    sizes = {"tensor_model_parallel_size": tp, "expert_model_parallel_size": ep, "expert_tensor_parallel_size": etp}
    with fake_world(0, max(tp, ep * etp), **sizes), torch.device("meta"):
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

        kind = MLATransformerConfig if "kv_lora_rank" in settings else TransformerConfig
        config = kind(
            **sizes,
            **settings,
            num_layers=1,
            normalization="RMSNorm",
            add_bias_linear=False,
            sequence_parallel=tp > 1,
            params_dtype=torch.bfloat16,
            perform_initialization=False,
            init_model_with_meta_device=True,
        )
        module = make(config, ProcessGroupCollection.use_mpu_process_groups())
    return sum(parameter.numel() for parameter in module.parameters())


def expected(model: Model, layer: Layer, tp: int, ep: int = 1, etp: int = 1) -> int:
    params = layer_params(layer, model, columns(tp, ep, etp))
    return int((params.dense + params.expert)[0])


def mixer_of(model: Model, kind: type) -> Any:
    return next(layer.mixer for layer in model.kinds if isinstance(layer.mixer, kind))


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("name", ["nemotron-h-8b", "nemotron-h-56b", "nemotron-3-super-120b-a12b"])
def test_mamba(name, tp):
    model = load_model(name)
    mixer = mixer_of(model, Mamba)

    def make(config: Any, groups: Any) -> Any:
        from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

        parts = MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
        return MambaMixer(config, parts, model.hidden, d_conv=mixer.conv, pg_collection=groups)

    found = built(
        make,
        tp,
        hidden_size=model.hidden,
        num_attention_heads=32,
        mamba_num_heads=mixer.heads,
        mamba_head_dim=mixer.head_dim,
        mamba_state_dim=mixer.state,
        mamba_num_groups=mixer.groups,
    )
    assert found == expected(model, Layer(mixer, None, norms=0), tp)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "qwen3.5-27b"])
def test_delta_net(name, tp):
    model = load_model(name)
    mixer = mixer_of(model, DeltaNet)

    def make(config: Any, groups: Any) -> Any:
        from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.torch_norm import WrappedTorchNorm

        parts = GatedDeltaNetSubmodules(ColumnParallelLinear, WrappedTorchNorm, RowParallelLinear)
        return GatedDeltaNet(config, parts, layer_number=1, pg_collection=groups)

    found = built(
        make,
        tp,
        hidden_size=model.hidden,
        num_attention_heads=32,
        linear_num_key_heads=mixer.key_heads,
        linear_num_value_heads=mixer.value_heads,
        linear_key_head_dim=mixer.key_dim,
        linear_value_head_dim=mixer.value_dim,
        linear_conv_kernel_dim=mixer.conv,
    )
    assert found == expected(model, Layer(mixer, None, norms=0), tp)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "qwen3.5-27b"])
def test_attention_with_output_gate(name, tp):
    model = load_model(name)
    mixer = mixer_of(model, GroupedQueryAttention)

    def make(config: Any, groups: Any) -> Any:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer.spec_utils import build_module

        spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm").submodules.self_attention
        return build_module(spec, config=config, layer_number=1, pg_collection=groups)

    found = built(
        make,
        tp,
        hidden_size=model.hidden,
        num_attention_heads=mixer.heads,
        num_query_groups=mixer.kv_heads,
        kv_channels=mixer.head_dim,
        qk_layernorm=True,
        attention_output_gate=True,
    )
    assert found == expected(model, Layer(mixer, None, norms=0), tp)


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_sparse_indexer(name, tp):
    model = load_model(name)
    mixer = mixer_of(model, LatentAttention)
    assert mixer.indexer is not None

    def make(config: Any, groups: Any) -> Any:
        from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexer, DSAIndexerSubmodules
        from megatron.core.transformer.torch_norm import WrappedTorchNorm

        parts = DSAIndexerSubmodules(DuplicatedLinear, DuplicatedLinear, WrappedTorchNorm, DuplicatedLinear)
        return DSAIndexer(config, parts, pg_collection=groups)

    found = built(
        make,
        tp,
        hidden_size=model.hidden,
        num_attention_heads=mixer.heads,
        q_lora_rank=mixer.q_rank,
        kv_lora_rank=mixer.kv_rank,
        dsa_indexer_n_heads=mixer.indexer.heads,
        dsa_indexer_head_dim=mixer.indexer.head_dim,
        dsa_indexer_topk=mixer.indexer.topk,
    )
    without = Layer(LatentAttention(**{**_fields(mixer), "indexer": None}), None, norms=0)
    whole = expected(model, Layer(mixer, None, norms=0), tp) - expected(model, without, tp)
    assert found == whole


def _fields(mixer: LatentAttention) -> dict[str, Any]:
    return {name: getattr(mixer, name) for name in mixer.__dataclass_fields__}


@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (2, 4, 1), (4, 2, 2), (8, 32, 1)])
@pytest.mark.parametrize(
    "name", ["nemotron-3-super-120b-a12b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "qwen2-57b-a14b"]
)
def test_expert_layers(name, tp, ep, etp):
    """Latent experts, shared experts with a gate, experts without a gate matrix."""
    model = load_model(name)
    mlp = model.moe
    assert isinstance(mlp, ExpertMlp)
    if (tp, ep, etp) == (1, 1, 1) and mlp.experts > 128:
        pytest.skip("hundreds of experts on one rank take long to build and show nothing new")

    def make(config: Any, groups: Any) -> Any:
        from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
        from megatron.core.transformer.spec_utils import build_module

        spec = get_moe_module_spec(use_te=False, num_experts=mlp.experts, moe_grouped_gemm=False)
        return build_module(spec, config=config, layer_number=1, pg_collection=groups)

    found = built(
        make,
        tp,
        ep,
        etp,
        hidden_size=model.hidden,
        num_attention_heads=32,
        num_moe_experts=mlp.experts,
        moe_router_topk=mlp.topk,
        moe_ffn_hidden_size=mlp.ffn,
        moe_shared_expert_intermediate_size=mlp.shared_ffn or None,
        moe_shared_expert_gate=mlp.shared_gate,
        moe_latent_size=mlp.latent,
        gated_linear_unit=mlp.gated,
        moe_token_dispatcher_type="alltoall",
    )
    assert found == expected(model, Layer(None, mlp, norms=0), tp, ep, etp)
