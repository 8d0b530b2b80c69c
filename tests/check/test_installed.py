"""Rules that the installed Megatron-Core can be asked: its classes refuse exactly what the check calls a stop."""

from __future__ import annotations

import random
import warnings

import pytest

from advisor.check import check

pytestmark = pytest.mark.real

LATER = {
    # Refused by the group builder, the schedule, a layer or a kernel, not by the configuration class.
    "expert-grid-divides-world", "world-divides-model-grid", "moe-tp-needs-sp", "sequence-divides-by-tp",
    "ffn-divides-by-tp", "expert-ffn-divides-by-etp", "topk-within-experts", "cp-a2a-heads", "deepep-needs-ep",
    "variable-lengths-vs-batched-p2p", "p2p-overlap-xor-batch", "experts-divide-by-ep", "interleave-needs-pp",
    "a2a-p2p-needs-hierarchy", "hierarchy-multiplies-to-cp", "te-cross-entropy-refused", "graph-with-varying-lengths",
    "flex-backend-runs-on-gpu", "ncclep-needs-flex", "fine-offload-needs-te",
    # Bridge's own checks.
    "p2p-overlap-asked-without-vpp", "local-graph-scope",
}  # fmt: skip
BASE = {"num_layers": 8, "hidden_size": 256, "num_attention_heads": 8, "bf16": True, "attention_dropout": 0.0,
        "hidden_dropout": 0.0, "add_bias_linear": False, "bias_activation_fusion": False}  # fmt: skip
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 128, "moe_grouped_gemm": True, "moe_router_topk": 2,
           "moe_token_dispatcher_type": "alltoall"}  # fmt: skip
POOL: list[dict[str, object]] = [
    {"tensor_model_parallel_size": 2}, {"tensor_model_parallel_size": 3}, {"tensor_model_parallel_size": 4},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True}, {"sequence_parallel": True},
    {"num_query_groups": 2}, {"num_query_groups": 3}, {"fp16": True},
    {"recompute_granularity": "full"}, {"recompute_granularity": "full", "recompute_method": "uniform"},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"recompute_granularity": "selective"}, {"recompute_granularity": "selective", "recompute_num_layers": 1},
    {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
    {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"]},
    {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    {"recompute_granularity": "selective", "recompute_modules": ["attention"]},
    {"recompute_granularity": "partly"}, {"recompute_method": "rowwise", "recompute_granularity": "full"},
    {"distribute_saved_activations": True}, {"cpu_offloading": True, "cpu_offloading_num_layers": 2},
    {"cpu_offloading": True, "cpu_offloading_num_layers": 8},
    {"num_layers_in_first_pipeline_stage": 1}, {"num_layers_in_last_pipeline_stage": 2},
    {"account_for_embedding_in_pipeline_split": True}, {"context_parallel_size": 2, "cp_comm_type": ["p2p", "a2a"]},
    {"moe_ffn_hidden_size": 64}, {"expert_model_parallel_size": 2}, {"fp8": "hybrid", "fp4": "e2m1"},
    {"fp8": "hybrid", "first_last_layers_bf16": True, "fp8_recipe": "delayed"},
    {"defer_embedding_wgrad_compute": True}, {"delay_wgrad_compute": True},
    {"apply_query_key_layer_scaling": True}, {"num_moe_experts": 0},
]  # fmt: skip
MORE: list[dict[str, object]] = [
    {"expert_model_parallel_size": 2}, {"expert_tensor_parallel_size": 2, "add_bias_linear": True},
    {"moe_router_topk": 1}, {"moe_router_topk": 1, "moe_router_pre_softmax": True},
    {"moe_router_enable_expert_bias": True},
    {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"},
    {"moe_router_group_topk": 2}, {"moe_router_group_topk": 2, "moe_router_num_groups": 3},
    {"moe_router_group_topk": 2, "moe_router_num_groups": 2}, {"moe_pad_expert_input_to_capacity": True},
    {"moe_expert_capacity_factor": 1.0},
    {"moe_expert_capacity_factor": 1.0, "moe_router_load_balancing_type": "sinkhorn"},
    {"moe_shared_expert_intermediate_size": 64, "moe_shared_expert_overlap": True},
    {"moe_shared_expert_intermediate_size": 64, "moe_shared_expert_overlap": True,
     "moe_token_dispatcher_type": "allgather"},
    {"recompute_granularity": "selective", "recompute_modules": ["shared_experts"]},
    {"moe_token_dispatcher_type": "allgather", "variable_seq_lengths": True},
    {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
    {"moe_enable_deepep": True}, {"moe_router_padding_for_quantization": True},
    {"overlap_moe_expert_parallel_comm": True},
    {"overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 2},
    {"overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 2, "mtp_num_layers": 2},
    {"overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 2, "delay_wgrad_compute": True},
]  # fmt: skip


def refusal(kwargs):
    """What TransformerConfig says; None if it takes the values."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TransformerConfig(**kwargs)
    except (ValueError, AssertionError) as error:
        return str(error) or "refused"
    return None


def stops(kwargs, tmp_path):
    """Rules that stop the same values written as a Python file."""
    words = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
    path = tmp_path / "config.py"
    path.write_text(f"config = TransformerConfig({words})\n", encoding="utf-8")
    return {one.rule for one in check([path]).findings if one.severity == "stop"}


def jobs():
    rng = random.Random(20261129)
    single = [BASE | one for one in POOL] + [BASE | EXPERTS | one for one in MORE]
    mixed = []
    for _ in range(400):
        moe = rng.random() < 0.5
        kwargs = dict(BASE | EXPERTS if moe else BASE)
        for one in rng.sample(POOL + (MORE * 2 if moe else []), rng.choice([1, 2, 3])):
            kwargs |= one
        mixed.append(kwargs)
    # Two ends of a pipeline of one stage: 0.16 divides by a negative number of stages and lets it through.
    mixed = [one for one in mixed if not {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"}
             <= set(one)]  # fmt: skip
    return single + mixed


def test_transformer_config_agrees(tmp_path):
    missed, invented, refused = [], [], 0
    for kwargs in jobs():
        said, found = refusal(kwargs), stops(kwargs, tmp_path)
        changed = {name: value for name, value in kwargs.items() if BASE.get(name) != value}
        refused += said is not None
        if said is not None and not found:
            missed.append((said[:120], changed))
        if said is None and found - LATER:
            invented.append((sorted(found - LATER), changed))
    assert refused > 150
    assert not missed, missed
    assert not invented, invented


def test_optimizer_and_ddp_agree(tmp_path):
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig

    for kind, made, kwargs in (
        ("OptimizerConfig", OptimizerConfig, {"use_precision_aware_optimizer": True, "optimizer": "sgd"}),
        ("DistributedDataParallelConfig", DistributedDataParallelConfig, {"reuse_grad_buf_for_mxfp8_param_ag": True}),
    ):
        with pytest.raises((AssertionError, ValueError)):
            made(**kwargs)
        path = tmp_path / "x.py"
        path.write_text(f"x = {kind}({', '.join(f'{n}={v!r}' for n, v in kwargs.items())})\n", encoding="utf-8")
        if kind == "OptimizerConfig":
            assert check([path]).verdict == "stop"
