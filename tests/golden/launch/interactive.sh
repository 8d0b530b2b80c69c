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
uv run python -m torch.distributed.run --nproc_per_node=8 \
  train.py
