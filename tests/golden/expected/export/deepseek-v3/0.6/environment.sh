#!/usr/bin/env bash
# deepseek-v3 on 1024 x gb200-186gb: TP1 PP4 VPP4 CP1 EP64 ETP1 DP256 MBS1 GBS8192
# Environment of every rank; from deepseek-v3.json, candidate 1
# A variable that is already set wins over Bridge's own env_vars; credentials do not belong here.

# SM100 or newer: streams need no order enforced by one queue (372 of 372)
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
export NVLINK_DOMAIN_SIZE=72
# NVLink reaches across nodes
export USE_MNNVL=1
# the smaller of EP and the NVLink domain; a wrong one is slow, sometimes wrong
export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=64
# chunk of the combine (64 in 4 recipes on H100)
export NUM_OF_TOKENS_PER_CHUNK_COMBINE_API=128
# GPUDirect through the CPU of GB systems (launcher)
export NCCL_NET_GDR_LEVEL=PHB
# GPUDirect over the chip-to-chip link (launcher)
export NCCL_NET_GDR_C2C=1
# DeepSeek recipes (42)
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
# forked data loaders (launcher)
export TOKENIZERS_PARALLELISM=False
