"""llama3-70b on 64 x h100-sxm-80gb: TP4 PP4 VPP5 CP2 EP1 ETP1 DP2 MBS1 GBS128

For Megatron-Bridge 0.6 (megatron-core 0.19); from llama3-70b.json, candidate 1.
Environment variables matter as much: advisor export ... --to env
"""

import torch
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig, userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192


def configure(cfg):
    """Set the layout, its overlap and its precision on a ConfigContainer, and return it."""
    # parallel sizes
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.pipeline_model_parallel_layout = "Et*4|(t*4|)*17t*5|t*3L"
    cfg.model.num_layers_in_first_pipeline_stage = None
    cfg.model.num_layers_in_last_pipeline_stage = None
    cfg.model.account_for_embedding_in_pipeline_split = False
    cfg.model.account_for_loss_in_pipeline_split = False
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.context_parallel_size = 2
    cfg.model.cp_comm_type = "p2p"
    cfg.model.expert_model_parallel_size = 1
    # batch and sequence
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 128
    cfg.model.seq_length = 8192
    cfg.dataset.seq_length = 8192
    cfg.model.mtp_num_layers = None
    # recompute and CUDA graphs
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_method = None
    cfg.model.recompute_num_layers = None
    cfg.model.recompute_modules = ["core_attn"]
    cfg.model.cuda_graph_impl = "none"
    cfg.model.cuda_graph_scope = None
    # data parallelism and optimizer
    cfg.ddp.use_distributed_optimizer = True
    cfg.optimizer.use_distributed_optimizer = True
    cfg.optimizer.optimizer = "adam"
    cfg.ddp.num_distributed_optimizer_instances = 1
    cfg.optimizer.use_precision_aware_optimizer = False
    cfg.optimizer.main_grads_dtype = torch.float32
    cfg.optimizer.main_params_dtype = torch.float32
    cfg.optimizer.exp_avg_dtype = torch.float32
    cfg.optimizer.exp_avg_sq_dtype = torch.float32
    cfg.optimizer.optimizer_cpu_offload = False
    # checkpoints
    cfg.checkpoint.ckpt_format = "torch_dist"
    cfg.checkpoint.fully_parallel_save = True
    # precision: the same fields of cfg.ddp and cfg.model are overwritten from here
    cfg.mixed_precision = "bf16_mixed"
    # overlap: values given here win over those of cfg.model and cfg.ddp; bucket_size counts parameters
    cfg.comm_overlap = CommOverlapConfig(
        tp_comm_overlap=True,
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
        tp_comm_overlap_cfg=userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192,  # same architecture, format and hidden size; differs in cp 1 (here 2)
    )
    return cfg


def recipe():
    """Bridge's own recipe of the model, with mock data until cfg.dataset says otherwise."""
    return llama3_70b_pretrain_config()


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(configure(recipe()), forward_step)
