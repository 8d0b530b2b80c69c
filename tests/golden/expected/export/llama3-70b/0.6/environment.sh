#!/usr/bin/env bash
# llama3-70b on 64 x h100-sxm-80gb: TP4 PP4 VPP5 CP2 EP1 ETP1 DP2 MBS1 GBS128
# Environment of every rank; from llama3-70b.json, candidate 1
# A variable that is already set wins over Bridge's own env_vars; credentials do not belong here.

# TP or CP above 1 before Blackwell: one queue keeps communication in front of the GEMM it overlaps (23 of 23); Megatron-LM refuses anything else
export CUDA_DEVICE_MAX_CONNECTIONS=1
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
# large activations between stages (49: Llama 70B and 405B)
export NCCL_P2P_NET_CHUNKSIZE=2097152
# forked data loaders (launcher)
export TOKENIZERS_PARALLELISM=False
