#!/usr/bin/env bash
#SBATCH --job-name=minimax-m2-64
#SBATCH --nodes=9
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
#SBATCH --output=/lustre/me/logs/minimax-m2-64_%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@N
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --no-kill
# 8 nodes for 64 GPUs; the smallest world is PP x lcm(TP x CP, EP x ETP) = 64 GPUs
# 1 spare node beside them
# the first node holds the rendezvous store: losing it ends the attempt, spare nodes or not
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

# Addresses by node list and job id; ADVISOR_MASTER_ADDR serves hosts that do not resolve.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${ADVISOR_MASTER_ADDR:-${hosts[0]}}"
export MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"

readonly attempt="${SLURM_RESTART_COUNT:-0}"
readonly log=/lustre/me/logs/minimax-m2-64_"${SLURM_JOB_ID}.log"
readonly workdir=/lustre/me
readonly checkpoints=/lustre/me/ckpt
flags=(
)
launcher=(
  ft_launcher
  --rdzv_backend=c10d
  --nproc-per-node=8
  --max-restarts=3
  --ft-rank_section_timeouts=setup:N,step:N,checkpointing:N
  --ft-rank_out_of_section_timeout=N
)
program=(
  train.py
)

# Lines of the log that show a step, and how many there were before this attempt.
steps() { grep -acE 'iteration[[:space:]]+[0-9]+' "$log" 2>/dev/null || true; }
steps_before="$(steps)"
steps_before="${steps_before:-0}"
log_before="$(wc -c 2>/dev/null <"$log" || echo 0)"
if (( attempt > 0 )) && [[ ! -e "$checkpoints/latest_checkpointed_iteration.txt" ]]; then
  echo "advisor: attempt $attempt finds no checkpoint in $checkpoints and starts from step 0" >&2
fi

# Slurm warns this script N s before the time limit; the ranks get TERM, save and end.
warned=0
trap 'warned=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# All nodes. Single quotes: the variables are those of the task, not of this script.
srun --kill-on-bad-exit=0 --no-kill "${flags[@]}" bash -c '
  set -euo pipefail
  if [[ -n "$1" ]]; then cd -- "$1"; fi
  launcher_words="$2"
  shift 2
  export GROUP_RANK="$SLURM_NODEID"
  exec "${@:1:launcher_words}" --nnodes=8 --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" "${@:launcher_words + 1}"
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
