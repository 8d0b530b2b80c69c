#!/usr/bin/env bash
#SBATCH --job-name=minimax-m2-64
#SBATCH --nodes=9
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
#SBATCH --output=/lustre/me/logs/minimax-m2-64_%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --no-kill
# 8 nodes for 64 GPUs; the smallest world is PP x lcm(TP x CP, EP x ETP) = 64 GPUs
# 1 spare node beside them
set -euo pipefail

# Seen by all nodes: the container's own caches are not.
export HF_HOME=/lustre/me/hf_home
export UV_CACHE_DIR=/lustre/me/uv_cache
export NEMO_HOME=/lustre/me/cache/nemo

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FWD_LAYERNORM_SM_MARGIN=20
export NVTE_BWD_LAYERNORM_SM_MARGIN=20
export TORCH_NCCL_HIGH_PRIORITY=1
export NCCL_NVLS_ENABLE=0
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_GRAPH_REGISTER=0
export TOKENIZERS_PARALLELISM=False
export TORCH_CPP_LOG_LEVEL=error
export TORCH_NCCL_RETHROW_CUDA_ERRORS=0

# Addresses by node list and job id; ADVISOR_MASTER_ADDR serves hosts that do not resolve.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${ADVISOR_MASTER_ADDR:-${hosts[0]}}"
export MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"

readonly attempt="${SLURM_RESTART_COUNT:-0}"
readonly log=/lustre/me/logs/minimax-m2-64_"${SLURM_JOB_ID}.log"
readonly workdir=/lustre/me
flags=(
)
launcher=(
  python
)
program=(
  my_train.py
  model.tensor_model_parallel_size=2
  model.sequence_parallel=true
  model.pipeline_model_parallel_size=2
  model.virtual_pipeline_model_parallel_size=null
  model.pipeline_model_parallel_layout=null
  model.num_layers_in_first_pipeline_stage=33
  model.num_layers_in_last_pipeline_stage=29
  model.account_for_embedding_in_pipeline_split=false
  model.account_for_loss_in_pipeline_split=false
  model.pipeline_dtype=torch.bfloat16
  model.context_parallel_size=1
  model.cp_comm_type=null
  model.expert_model_parallel_size=32
  model.expert_tensor_parallel_size=1
  train.micro_batch_size=1
  train.global_batch_size=256
  model.seq_length=4096
  dataset.seq_length=4096
  model.mtp_num_layers=null
  model.moe_token_dispatcher_type=alltoall
  model.moe_flex_dispatcher_backend=null
  model.moe_shared_expert_overlap=false
  model.moe_router_dtype=fp32
  model.moe_expert_capacity_factor=null
  model.moe_pad_expert_input_to_capacity=false
  model.recompute_granularity=full
  model.recompute_method=uniform
  model.recompute_num_layers=1
  'model.recompute_modules=[]'
  model.cuda_graph_impl=none
  model.cuda_graph_scope=null
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  optimizer.optimizer=adam
  ddp.num_distributed_optimizer_instances=1
  optimizer.use_precision_aware_optimizer=false
  optimizer.main_grads_dtype=torch.float32
  optimizer.main_params_dtype=torch.float32
  optimizer.exp_avg_dtype=torch.float32
  optimizer.exp_avg_sq_dtype=torch.float32
  optimizer.optimizer_cpu_offload=false
  checkpoint.ckpt_format=torch_dist
  checkpoint.fully_parallel_save=true
  ++mixed_precision=null
  ++mixed_precision=bf16_mixed
  ++comm_overlap=null
  '++comm_overlap={_target_:megatron.bridge.training.comm_overlap.CommOverlapConfig,tp_comm_overlap:false,overlap_p2p_comm:false,batch_p2p_comm:true,overlap_grad_reduce:true,overlap_param_gather:true,align_param_gather:false,bucket_size:134217728,overlap_param_gather_with_optimizer_step:false,overlap_moe_expert_parallel_comm:false,delay_wgrad_compute:false,defer_embedding_wgrad_compute:false,wgrad_deferral_limit:-1,tp_comm_overlap_cfg:null}'
  checkpoint.save=checkpoints
  checkpoint.load=checkpoints
  checkpoint.save_interval=N
  checkpoint.ckpt_format=torch_dist
  checkpoint.async_save=true
  checkpoint.use_persistent_ckpt_worker=true
  checkpoint.fully_parallel_save=true
  checkpoint.fully_parallel_load=true
  checkpoint.ckpt_assume_constant_structure=true
  checkpoint.most_recent_k=3
  train.exit_signal_handler=false
  rerun_state_machine.rerun_mode=disabled
  rerun_state_machine.check_for_nan_in_loss=true
  rerun_state_machine.check_for_spiky_loss=false
  dist.distributed_timeout_minutes=N
  '++nvrx_straggler={_target_:megatron.bridge.training.config.NVRxStragglerDetectionConfig,enabled:true,report_time_interval:N,calc_relative_gpu_perf:true,calc_individual_gpu_perf:true,profiling_interval:N,stop_if_detected:false}'
  '++inprocess_restart={_target_:megatron.bridge.training.config.InProcessRestartConfig,enabled:true,soft_timeout:N,hard_timeout:N,barrier_timeout:N,completion_timeout:N,heartbeat_interval:N,heartbeat_timeout:N,granularity:node,active_world_size:64}'
)

# Lines of the log that show a step, and how many there were before this attempt.
steps() { grep -acE 'iteration[[:space:]]+[0-9]+' "$log" 2>/dev/null || true; }
steps_before="$(steps)"
steps_before="${steps_before:-0}"
log_before="$(wc -c 2>/dev/null <"$log" || echo 0)"

# All nodes. Single quotes: the variables are those of the task, not of this script.
srun --kill-on-bad-exit=0 --no-kill "${flags[@]}" bash -c '
  set -euo pipefail
  if [[ -n "$1" ]]; then cd -- "$1"; fi
  launcher_words="$2"
  shift 2
  # For programs that know torchrun only; Megatron-Bridge would read SLURM_* itself.
  export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_RANK="$SLURM_LOCALID"
  export LOCAL_WORLD_SIZE=8
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
if (( status == 0 )); then
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
