"""minimax-m2 on 64 x h100-sxm-80gb: TP2 PP4 VPP16 CP1 EP16 ETP1 DP8 MBS2 GBS512

For Megatron-Bridge 0.3 (megatron-core 0.16); from minimax-m2.json, candidate 1.
Environment variables matter as much: advisor export ... --to env
The model norms queries and keys over all heads at once, Megatron's qk_layernorm norms each head: memory and
speed are the same, weights of the published checkpoint do not load.
"""

import torch
import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    RNGConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.comm_overlap import CommOverlapConfig


def configure(cfg):
    """Set the layout, its overlap and its precision on a ConfigContainer, and return it."""
    # parallel sizes
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 16
    cfg.model.pipeline_model_parallel_layout = None
    cfg.model.num_layers_in_first_pipeline_stage = None
    cfg.model.num_layers_in_last_pipeline_stage = None
    cfg.model.account_for_embedding_in_pipeline_split = True
    cfg.model.account_for_loss_in_pipeline_split = True
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.context_parallel_size = 1
    cfg.model.cp_comm_type = None
    cfg.model.expert_model_parallel_size = 16
    cfg.model.expert_tensor_parallel_size = 1
    # batch and sequence
    cfg.train.micro_batch_size = 2
    cfg.train.global_batch_size = 512
    cfg.model.seq_length = 4096
    cfg.dataset.sequence_length = 4096
    cfg.model.mtp_num_layers = None
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
    cfg.model.recompute_modules = ["moe_act"]
    cfg.model.cuda_graph_impl = "none"
    # data parallelism and optimizer
    cfg.ddp.use_distributed_optimizer = True
    cfg.optimizer.use_distributed_optimizer = True
    cfg.optimizer.optimizer = "adam"
    cfg.ddp.num_distributed_optimizer_instances = 1
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.main_grads_dtype = torch.float32
    cfg.optimizer.main_params_dtype = torch.float32
    cfg.optimizer.exp_avg_dtype = torch.float32
    cfg.optimizer.exp_avg_sq_dtype = torch.float32
    cfg.optimizer.optimizer_cpu_offload = True
    cfg.optimizer.optimizer_offload_fraction = 1.0
    cfg.optimizer.overlap_cpu_optimizer_d2h_h2d = True
    # checkpoints
    cfg.checkpoint.ckpt_format = "torch_dist"
    cfg.checkpoint.fully_parallel_save = True
    # precision: the same fields of cfg.ddp and cfg.model are overwritten from here
    cfg.mixed_precision = "bf16_mixed"
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
        overlap_moe_expert_parallel_comm=True,
        delay_wgrad_compute=True,
        defer_embedding_wgrad_compute=False,
        wgrad_deferral_limit=-1,
    )
    return cfg


def provider():
    """minimax-m2 by the generic provider."""
    return GPTModelProvider(
        num_layers=62,
        hidden_size=3072,
        num_attention_heads=48,
        seq_length=4096,
        vocab_size=200064,
        make_vocab_size_divisible_by=128,
        share_embeddings_and_output_weights=False,
        normalization="RMSNorm",
        layernorm_epsilon=1e-06,
        position_embedding_type="rope",
        rotary_base=5000000,
        rotary_percent=0.5,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        num_query_groups=8,
        kv_channels=128,
        qk_layernorm=True,
        add_qkv_bias=False,
        ffn_hidden_size=1536,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        num_moe_experts=256,
        moe_ffn_hidden_size=1536,
        moe_router_topk=8,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.001,
        moe_grouped_gemm=True,
        moe_permute_fusion=True,
        moe_router_dtype="fp32",
        should_pad_vocab=True,
    )


def recipe():
    """A container around the provider: mock data, no tokenizer; learning rate, data and paths are yours to set."""
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=500, lr_decay_iters=None, max_lr=3e-4, min_lr=3e-5
    )
    return ConfigContainer(
        model=provider(),
        train=TrainingConfig(train_iters=1000, eval_interval=500, eval_iters=10),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=DistributedDataParallelConfig(check_for_nan_in_grad=True, use_distributed_optimizer=True),
        dataset=MockGPTDatasetConfig(
            random_seed=1234,
            reset_attention_mask=False,
            reset_position_ids=False,
            eod_mask_loss=False,
            seq_length=4096,
            num_dataset_builder_threads=1,
            data_sharding=True,
            dataloader_type="single",
            skip_getting_attention_mask_from_dataset=True,
        ),
        logger=LoggerConfig(log_interval=10),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=200064),
        checkpoint=CheckpointConfig(save="checkpoints", load="checkpoints", save_interval=500),
        rng=RNGConfig(seed=1234),
        dist=DistributedInitConfig(),
    )


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(configure(recipe()), forward_step)
