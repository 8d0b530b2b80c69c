# Step 1: a node to try things on. Both commands need --gpus-per-node.
salloc --account=team --nodes=1 --job-name=minimax-m2-64-debug \
  --partition=interactive --gpus-per-node=8 --time=240

# Step 2: a shell in the container on the first node.
srun --nodes=1 --ntasks=1 --gpus-per-node=8 \
  --mpi=pmix \
  --container-image=nvcr.io/nvidia/nemo:25.09 \
  --container-mounts=/lustre/me:/work \
  --no-container-mount-home \
  --container-writable \
  --no-kill --pty bash

# Step 3: in that shell. Secrets are read, not typed into a file.
read -rsp 'HF_TOKEN: ' HF_TOKEN && export HF_TOKEN
export HF_HOME=/work/hf_home
export UV_CACHE_DIR=/work/uv_cache
export NEMO_HOME=/work/cache/nemo
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FWD_LAYERNORM_SM_MARGIN=20
export NVTE_BWD_LAYERNORM_SM_MARGIN=20
export TORCH_NCCL_HIGH_PRIORITY=1
export NCCL_NVLS_ENABLE=0
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_GRAPH_REGISTER=0
export TOKENIZERS_PARALLELISM=False
cd -- /work
uv sync

# The configuration of the plan. The folder is named by its content: no other job changes it.
mkdir -p -- /work/.advisor/CONTENT
cat >/work/.advisor/CONTENT/bridge_config.py.part <<'END_OF_FILE'
"""minimax-m2 on 64 x h100-sxm-80gb: TP2 PP2 VPP1 CP1 EP32 ETP1 DP16 MBS1 GBS256

For Megatron-Bridge 0.6 (megatron-core 0.19); from m2.json, candidate 1.
Environment variables matter as much: advisor export ... --to env
"""

import torch
from megatron.bridge import AutoBridge
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
    ValidationConfig,
)
from megatron.bridge.training.comm_overlap import CommOverlapConfig


def configure(cfg):
    """Set the layout, its overlap and its precision on a ConfigContainer, and return it."""
    # parallel sizes
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.pipeline_model_parallel_layout = None
    cfg.model.num_layers_in_first_pipeline_stage = 33
    cfg.model.num_layers_in_last_pipeline_stage = 29
    cfg.model.account_for_embedding_in_pipeline_split = False
    cfg.model.account_for_loss_in_pipeline_split = False
    cfg.model.pipeline_dtype = torch.bfloat16
    cfg.model.context_parallel_size = 1
    cfg.model.cp_comm_type = None
    cfg.model.expert_model_parallel_size = 32
    cfg.model.expert_tensor_parallel_size = 1
    # batch and sequence
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 256
    cfg.model.seq_length = 4096
    cfg.dataset.seq_length = 4096
    cfg.model.mtp_num_layers = None
    # experts
    cfg.model.moe_token_dispatcher_type = "alltoall"
    cfg.model.moe_flex_dispatcher_backend = None
    cfg.model.moe_shared_expert_overlap = False
    cfg.model.moe_router_dtype = "fp32"
    cfg.model.moe_expert_capacity_factor = None
    cfg.model.moe_pad_expert_input_to_capacity = False
    # recompute and CUDA graphs
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "uniform"
    cfg.model.recompute_num_layers = 1
    cfg.model.recompute_modules = []
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
        tp_comm_overlap=False,
        overlap_p2p_comm=False,
        batch_p2p_comm=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        align_param_gather=False,
        bucket_size=134217728,
        overlap_param_gather_with_optimizer_step=False,
        overlap_moe_expert_parallel_comm=False,
        delay_wgrad_compute=False,
        defer_embedding_wgrad_compute=False,
        wgrad_deferral_limit=-1,
    )
    # resiliency
    from megatron.bridge.training.config import (
        NVRxStragglerDetectionConfig,
    )

    cfg.checkpoint.save = "checkpoints"  # an interval without a directory saves nothing
    cfg.checkpoint.load = "checkpoints"  # a restart goes on where the last save ended
    cfg.checkpoint.save_interval = N  # Young/Daly: N s = N steps of N s for a stall of N s and N h between interruptions
    cfg.checkpoint.ckpt_format = "torch_dist"  # N GB, written in N s, snapshot to host memory in N s; N GB/s per node, Llama N, arXiv:N section N.N: N TB/s sustained for about N,N nodes (N TB/s peak)
    cfg.checkpoint.async_save = True  # stops training for N s instead of N s per save
    cfg.checkpoint.use_persistent_ckpt_worker = True  # asynchronous saves need the persistent worker
    cfg.checkpoint.fully_parallel_save = True  # every data-parallel rank writes its share
    cfg.checkpoint.fully_parallel_load = True  # replicas read every shard once and exchange it
    cfg.checkpoint.ckpt_assume_constant_structure = True  # plans the save once, the model does not change
    cfg.checkpoint.most_recent_k = 3  # a save that was cut off leaves older ones to go back to
    cfg.train.exit_signal_handler = True  # saves and ends when Slurm warns, N s before the time limit (two steps, one save, Slurm's N s)
    cfg.train.exit_signal_handler_for_dataloader = False  # workers end with their rank
    cfg.rerun_state_machine.rerun_mode = "disabled"  # alpha state: NaN checks are used, the re-run workflow is not
    cfg.rerun_state_machine.check_for_nan_in_loss = True  # a NaN ends the job at the step it appears
    cfg.rerun_state_machine.check_for_spiky_loss = False  # spikes are normal early in training
    cfg.dist.distributed_timeout_minutes = 22  # nothing else sees a hang; long enough for a save on rank N

    cfg.nvrx_straggler = NVRxStragglerDetectionConfig(
        enabled=True,  # a step is as slow as its slowest rank
        report_time_interval=N,  # N steps of N s a report
        calc_relative_gpu_perf=True,  # ranks against each other: a slow GPU
        calc_individual_gpu_perf=True,  # a rank against its past: a GPU that became slow
        profiling_interval=N,  # about one profiled step a second at most
        stop_if_detected=False,  # reports only; ending the job does not by itself leave out the slow node
    )
    return cfg


def provider():
    """minimax-m2 as Bridge reads it from the hub."""
    bridge = AutoBridge.from_hf_pretrained("MiniMaxAI/MiniMax-M2")
    return bridge.to_megatron_provider(load_weights=False)


def recipe():
    """A container around the provider: mock data, no tokenizer; learning rate, data and paths are yours to set."""
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=500, lr_decay_iters=None, max_lr=3e-4, min_lr=3e-5
    )
    return ConfigContainer(
        model=provider(),
        train=TrainingConfig(train_iters=1000),
        validation=ValidationConfig(eval_interval=N, eval_iters=10),
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
        logger=LoggerConfig(log_interval=N),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=200064),
        checkpoint=CheckpointConfig(save="checkpoints", load="checkpoints", save_interval=N),
        rng=RNGConfig(seed=1234),
        dist=DistributedInitConfig(),
    )


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(configure(recipe()), forward_step)
END_OF_FILE
mv -f -- /work/.advisor/CONTENT/bridge_config.py.part /work/.advisor/CONTENT/bridge_config.py
uv run python -m torch.distributed.run --nproc_per_node=8 \
  /work/.advisor/CONTENT/bridge_config.py
