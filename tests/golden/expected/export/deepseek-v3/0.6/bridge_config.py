"""deepseek-v3 on 1024 x gb200-186gb: TP1 PP4 VPP4 CP1 EP64 ETP1 DP256 MBS1 GBS8192

For Megatron-Bridge 0.6 (megatron-core 0.19); from deepseek-v3.json, candidate 1.
Environment variables matter as much: advisor export ... --to env
"""

import torch
from megatron.bridge.recipes.deepseek import deepseek_v3_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.mixed_precision import get_mixed_precision_config


def configure(cfg):
    """Set the layout, its overlap and its precision on a ConfigContainer, and return it."""
    # parallel sizes
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.sequence_parallel = False
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_layout = "Et*4|(t*4|)*6t*5|(t*4|)*3t*5|(t*4|)*2t*3m|L"
    cfg.model.num_layers_in_first_pipeline_stage = None
    cfg.model.num_layers_in_last_pipeline_stage = None
    cfg.model.account_for_embedding_in_pipeline_split = False
    cfg.model.account_for_loss_in_pipeline_split = False
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.context_parallel_size = 1
    cfg.model.cp_comm_type = None
    cfg.model.expert_model_parallel_size = 64
    cfg.model.expert_tensor_parallel_size = 1
    # batch and sequence
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 8192
    cfg.model.seq_length = 4096
    cfg.dataset.seq_length = 4096
    cfg.model.mtp_num_layers = 1
    # experts
    cfg.model.moe_token_dispatcher_type = "flex"
    cfg.model.moe_flex_dispatcher_backend = "hybridep"
    cfg.model.moe_shared_expert_overlap = False
    cfg.model.moe_router_dtype = "fp32"
    cfg.model.moe_expert_capacity_factor = None
    cfg.model.moe_pad_expert_input_to_capacity = False
    # recompute and CUDA graphs
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_method = None
    cfg.model.recompute_num_layers = None
    cfg.model.recompute_modules = ["mla_up_proj"]
    cfg.model.cuda_graph_impl = "transformer_engine"
    cfg.model.cuda_graph_modules = ["attn", "moe_router", "moe_preprocess"]
    cfg.model.use_te_rng_tracker = True
    cfg.rng.te_rng_tracker = True
    cfg.model.cuda_graph_scope = None
    # data parallelism and optimizer
    cfg.ddp.use_distributed_optimizer = True
    cfg.optimizer.use_distributed_optimizer = True
    cfg.optimizer.optimizer = "adam"
    cfg.ddp.num_distributed_optimizer_instances = 1
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.main_grads_dtype = torch.float32
    cfg.optimizer.main_params_dtype = torch.float32
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.optimizer.exp_avg_sq_dtype = torch.bfloat16
    cfg.optimizer.optimizer_cpu_offload = False
    # checkpoints
    cfg.checkpoint.ckpt_format = "torch_dist"
    cfg.checkpoint.fully_parallel_save = True
    # precision: the same fields of cfg.ddp and cfg.model are overwritten from here
    cfg.mixed_precision = get_mixed_precision_config("bf16_with_mxfp8_mixed")
    cfg.mixed_precision.fp8_param_gather = False
    cfg.mixed_precision.reuse_grad_buf_for_mxfp8_param_ag = False
    # overlap: values given here win over those of cfg.model and cfg.ddp; bucket_size counts parameters
    cfg.comm_overlap = CommOverlapConfig(
        tp_comm_overlap=False,
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        align_param_gather=True,
        bucket_size=134217728,
        overlap_param_gather_with_optimizer_step=False,
        overlap_moe_expert_parallel_comm=False,
        delay_wgrad_compute=False,
        defer_embedding_wgrad_compute=False,
        wgrad_deferral_limit=-1,
    )
    return cfg


def recipe():
    """Bridge's own recipe of the model, with mock data until cfg.dataset says otherwise."""
    return deepseek_v3_pretrain_config()


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(configure(recipe()), forward_step)
