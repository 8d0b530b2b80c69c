#!/usr/bin/env bash
#SBATCH --job-name=minimax-m2-64
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=1-00:00:00
#SBATCH --output=/lustre/me/logs/minimax-m2-64_%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
# 8 nodes for 64 GPUs; the smallest world is PP x lcm(TP x CP, EP x ETP) = 64 GPUs
set -euo pipefail

# Secrets come from the environment of sbatch; they stand in no file.
: "${WANDB_API_KEY:?export WANDB_API_KEY before sbatch}"
export WANDB_API_KEY

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
  -m
  torch.distributed.run
  --nproc_per_node=8
)
program=(
  pretrain_gpt.py
  --num-layers
  62
  --num-layers
  62
  --hidden-size
  3072
  --num-attention-heads
  48
  --seq-length
  4096
  --max-position-embeddings
  196608
  --vocab-size
  200064
  --make-vocab-size-divisible-by
  128
  --normalization
  RMSNorm
  --norm-epsilon
  1e-06
  --position-embedding-type
  rope
  --rotary-base
  5000000
  --rotary-percent
  0.5
  --attention-dropout
  0.0
  --hidden-dropout
  0.0
  --kv-channels
  128
  --qk-layernorm
  --ffn-hidden-size
  1536
  --num-experts
  256
  --moe-ffn-hidden-size
  1536
  --moe-router-topk
  8
  --moe-router-score-function
  sigmoid
  --moe-router-enable-expert-bias
  --moe-router-load-balancing-type
  aux_loss
  --moe-aux-loss-coeff
  0.001
  --moe-grouped-gemm
  --moe-permute-fusion
  --moe-router-dtype
  fp32
  --group-query-attention
  --num-query-groups
  8
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --swiglu
  --tensor-model-parallel-size
  2
  --sequence-parallel
  --pipeline-model-parallel-size
  2
  --decoder-first-pipeline-num-layers
  33
  --decoder-last-pipeline-num-layers
  29
  --context-parallel-size
  1
  --expert-model-parallel-size
  32
  --expert-tensor-parallel-size
  1
  --micro-batch-size
  1
  --global-batch-size
  256
  --bf16
  --use-distributed-optimizer
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl
  native
  --overlap-grad-reduce
  --overlap-param-gather
  --ddp-bucket-size
  134217728
  --no-overlap-p2p-communication
  --moe-token-dispatcher-type
  alltoall
  --recompute-granularity
  full
  --recompute-method
  uniform
  --recompute-num-layers
  1
  --ckpt-format
  torch_dist
  --save
  /work/checkpoints
  --load
  /work/checkpoints
  --save-interval
  N
  --ckpt-format
  torch_dist
  --async-save
  --use-persistent-ckpt-worker
  --ckpt-fully-parallel-load
  --ckpt-assume-constant-structure
  --exit-signal-handler
  --rerun-mode
  disabled
  --distributed-timeout-minutes
  N
  --exit-duration-in-mins
  1431
)

# Lines of the log that show a step, and how many there were before this attempt.
steps() { grep -acE 'iteration[[:space:]]+[0-9]+' "$log" 2>/dev/null || true; }
steps_before="$(steps)"
steps_before="${steps_before:-0}"
log_before="$(wc -c 2>/dev/null <"$log" || echo 0)"
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

# Phase 2: all nodes. Single quotes: the variables are those of the task, not of this script.
srun --kill-on-bad-exit=1 "${flags[@]}" bash -c '
  set -euo pipefail
  if [[ -n "$1" ]]; then cd -- "$1"; fi
  launcher_words="$2"
  shift 2
  exec "${@:1:launcher_words}" --nnodes="$SLURM_JOB_NUM_NODES" --node_rank="$SLURM_NODEID" \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "${@:launcher_words + 1}"
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
if (( status == 0 && SECONDS < N )); then
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
