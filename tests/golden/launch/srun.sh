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
  train.py
  'checkpoint.save='"'"'/work/checkpoints'"'"''
  'checkpoint.load='"'"'/work/checkpoints'"'"''
  checkpoint.save_interval=N
  checkpoint.ckpt_format=torch_dist
  checkpoint.async_save=true
  checkpoint.use_persistent_ckpt_worker=true
  checkpoint.fully_parallel_save=true
  checkpoint.fully_parallel_load=true
  checkpoint.ckpt_assume_constant_structure=true
  checkpoint.most_recent_k=3
  train.exit_signal_handler=true
  train.exit_signal_handler_for_dataloader=false
  rerun_state_machine.rerun_mode=disabled
  rerun_state_machine.check_for_nan_in_loss=true
  rerun_state_machine.check_for_spiky_loss=false
  dist.distributed_timeout_minutes=N
  '++nvrx_straggler={_target_:megatron.bridge.training.config.NVRxStragglerDetectionConfig,enabled:true,report_time_interval:N,calc_relative_gpu_perf:true,calc_individual_gpu_perf:true,profiling_interval:N,stop_if_detected:false}'
)

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
