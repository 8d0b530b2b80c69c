#!/usr/bin/env bash
# minimax-m2 on 64 x h100-sxm-80gb: TP2 PP4 VPP16 CP1 EP16 ETP1 DP8 MBS2 GBS512
# Environment of every rank; from minimax-m2.json, candidate 1
# A variable that is already set wins over Bridge's own env_vars; credentials do not belong here.

# expert overlap wants queues of its own; TP or CP alone would want 1
export CUDA_DEVICE_MAX_CONNECTIONS=32
# leaves SMs to communication beside LayerNorm (417 of 430)
export NVTE_FWD_LAYERNORM_SM_MARGIN=20
# leaves SMs to communication beside LayerNorm (417 of 430)
export NVTE_BWD_LAYERNORM_SM_MARGIN=20
# communication streams go first (all)
export TORCH_NCCL_HIGH_PRIORITY=1
# NVLS buffers take memory; on only with nccl_ub (all but 16)
export NCCL_NVLS_ENABLE=0
# frees buffers of collectives without waiting for the allocator
export TORCH_NCCL_AVOID_RECORD_STREAMS=1
# less fragmentation; not with nccl_ub (400 of 430)
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
# needed with expandable segments (400 of 400)
export NCCL_GRAPH_REGISTER=0
# HybridEP takes the NVLink domain from here, not from the hardware
export NVLINK_DOMAIN_SIZE=8
# NVLink ends at the node
export USE_MNNVL=0
# the smaller of EP and the NVLink domain; a wrong one is slow, sometimes wrong
export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8
# chunk of the combine (64 in 4 recipes on H100)
export NUM_OF_TOKENS_PER_CHUNK_COMBINE_API=128
# forked data loaders (launcher)
export TOKENIZERS_PARALLELISM=False
