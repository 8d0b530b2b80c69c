#!/usr/bin/env bash
#SBATCH --job-name=minimax-m2-64
#SBATCH --account=team
#SBATCH --partition=batch
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
#SBATCH --output=/lustre/me/logs/minimax-m2-64_%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@N
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
# 8 nodes for 64 GPUs; the smallest world is PP x lcm(TP x CP, EP x ETP) = 64 GPUs
# bridge_config.py comes from the plan and trains on mock data: a PROGRAM after -- trains on yours
set -euo pipefail

# Secrets come from the environment of sbatch; they stand in no file.
: "${HF_TOKEN:?export HF_TOKEN before sbatch}"
export HF_TOKEN

# Seen by all nodes: the container's own caches are not.
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

# Addresses by node list and job id; ADVISOR_MASTER_ADDR serves hosts that do not resolve.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${ADVISOR_MASTER_ADDR:-${hosts[0]}}"
export MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"

readonly attempt="${SLURM_RESTART_COUNT:-0}"
readonly log=/lustre/me/logs/minimax-m2-64_"${SLURM_JOB_ID}.log"
readonly workdir=/work
readonly checkpoints=/lustre/me/checkpoints
flags=(
  --mpi=pmix
  --container-image=nvcr.io/nvidia/nemo:25.09
  --container-mounts=/lustre/me:/work
  --no-container-mount-home
  --container-writable
)
launcher=(
  uv
  run
  python
)
program=(
  /work/.advisor/CONTENT/bridge_config.py
)

# The configuration of the plan. The folder is named by its content: no other job changes it.
mkdir -p -- /lustre/me/.advisor/CONTENT
cat >/lustre/me/.advisor/CONTENT/bridge_config.py.part <<'END_OF_FILE'
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

    cfg.checkpoint.save = "/work/checkpoints"  # an interval without a directory saves nothing
    cfg.checkpoint.load = "/work/checkpoints"  # a restart goes on where the last save ended
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
mv -f -- /lustre/me/.advisor/CONTENT/bridge_config.py.part /lustre/me/.advisor/CONTENT/bridge_config.py

# Lines of the log that show a step, and how many there were before this attempt.
steps() { grep -acE 'iteration[[:space:]]+[0-9]+' "$log" 2>/dev/null || true; }
steps_before="$(steps)"
steps_before="${steps_before:-0}"
log_before="$(wc -c 2>/dev/null <"$log" || echo 0)"

# An old run of the same folder would be resumed without a word.
if (( attempt == 0 )) && [[ -n "$workdir" && -e "$workdir/nemo_experiments" ]]; then
  mv -- "$workdir/nemo_experiments" "$workdir/nemo_experiments.before_${SLURM_JOB_ID}"
fi
if (( attempt > 0 )) && [[ ! -e "$checkpoints/latest_checkpointed_iteration.txt" ]]; then
  echo "advisor: attempt $attempt finds no checkpoint in $checkpoints and starts from step 0" >&2
fi

# Phase 1: one process fills the shared caches, so that phase 2 finds everything there.
srun --nodes=1 --ntasks=1 --ntasks-per-node=1 "${flags[@]}" bash -c '
  set -euo pipefail
  mkdir -p "$HF_HOME" "$UV_CACHE_DIR" "$NEMO_HOME"
  if [[ -n "$1" ]]; then cd -- "$1"; fi
  uv sync
' sync "$workdir"

# Slurm warns this script N s before the time limit; the ranks get TERM, save and end.
warned=0
trap 'warned=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# Phase 2: all nodes. Single quotes: the variables are those of the task, not of this script.
srun --kill-on-bad-exit=1 "${flags[@]}" bash -c '
  set -euo pipefail
  if [[ -n "$1" ]]; then cd -- "$1"; fi
  launcher_words="$2"
  shift 2
  # For programs that know torchrun only; Megatron-Bridge would read SLURM_* itself.
  export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_RANK="$SLURM_LOCALID"
  export LOCAL_WORLD_SIZE=8
  numa="$(( SLURM_LOCALID / 4 ))"
  if command -v numactl >/dev/null; then
    exec numactl --cpunodebind="$numa" --membind="$numa" "$@"
  fi
  echo "advisor: no numactl here, rank $SLURM_PROCID is not bound to NUMA node $numa" >&2
  exec "$@"
' task "$workdir" "${#launcher[@]}" "${launcher[@]}" "${program[@]}" &
step=$!
status=0
wait "$step" || status=$?
while (( status > 128 )) && kill -0 "$step" 2>/dev/null; do  # a trap ends wait, not the step
  status=0
  wait "$step" || status=$?
done
steps_done="$(( $(steps) - steps_before ))"

echo "======================================"
echo "Attempt $attempt ended with $status after $SECONDS s. Losses:"
echo "======================================"
grep -aE 'iteration[[:space:]]+[0-9]+' "$log" 2>/dev/null | grep -aiE 'lm loss|reduced_train_loss' | tail -n 25 || true

# What now? A run that ended well before anybody warned it is done. Others go on from their checkpoint.
ended_with() { tail -c "+$(( log_before + 1 ))" "$log" 2>/dev/null | grep -aqE "[Ee]xit(ed with exit )?code:? *$1([^0-9]|$)"; }
if (( status == 0 && warned == 0 )); then
  exit 0
elif ended_with 17; then
  echo "advisor: exit code 17, the re-run machine found wrong results: look at the node before going on" >&2
  exit 17
elif (( status != 0 && steps_done <= 0 )); then
  echo "advisor: no step was done in this attempt; a requeue would fail alike" >&2
  exit "$status"
elif (( attempt < 3 )); then
  echo "advisor: requeue $(( attempt + 1 )) of 3" >&2
  scontrol requeue "$SLURM_JOB_ID"
  sleep 60
fi
exit "$status"
