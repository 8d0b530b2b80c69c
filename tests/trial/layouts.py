"""Tiny models and estimates of one layout each: what trials of the tests run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import advisor

DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
MOE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 64,
    "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1,
    "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
MODELS = {"dense": DENSE, "deep": DENSE | {"num_hidden_layers": 8}, "moe": MOE, "latent": LATENT}


def write_model(folder: Path, name: str) -> Path:
    """The configuration file of a tiny model."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(MODELS[name]))
    return path


def write_estimate(folder: Path, model: str, gpus: int, **layout: Any) -> Path:
    """An estimate record of one layout of a tiny model, as `advisor estimate --out` writes it."""
    options = {"seq_len": 32, "gbs": 8, "cuda_graph": "none", **layout}
    found = advisor.estimate(model=str(write_model(folder, model)), gpus=gpus, **options)
    words = "-".join([model, str(gpus), *(f"{name}{Path(str(value)).name}" for name, value in layout.items())])
    path = folder / f"estimate-{words}.json"
    path.write_text(json.dumps(found.to_dict()))
    return path


def write_plan(folder: Path, model: str, gpus: int, **options: Any) -> Path:
    """A plan record of a tiny model."""
    settings = {"seq_len": 32, "gbs": 8, "top": 5, "fix": "cuda_graph=none,fsdp=none", **options}
    found = advisor.plan(model=str(write_model(folder, model)), gpus=gpus, **settings)
    path = folder / f"plan-{model}-{gpus}.json"
    path.write_text(json.dumps(found.to_dict()))
    return path
