#!/usr/bin/env bash
# llama3-70b on 64 x h100-sxm-80gb: TP4 PP4 VPP5 CP2 EP1 ETP1 DP2 MBS1 GBS128
# Megatron-LM flags for megatron-core 0.19; from llama3-70b.json, candidate 1
#
#   source megatron_args.sh
#   torchrun ... pretrain_gpt.py "${MEGATRON_ARGS[@]}" <data, tokenizer, learning rate, checkpoints>
#
# Environment variables matter as much as flags: advisor export ... --to env

MEGATRON_ARGS=(
  # model
  --num-layers 80
  --hidden-size 8192
  --num-attention-heads 64
  --seq-length 8192
  --max-position-embeddings 8192
  --vocab-size 128256
  --make-vocab-size-divisible-by 128
  --normalization RMSNorm
  --position-embedding-type rope
  --rotary-base 500000
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --kv-channels 128
  --ffn-hidden-size 28672
  --group-query-attention
  --num-query-groups 8
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --swiglu
  # parallel sizes
  --tensor-model-parallel-size 4
  --sequence-parallel
  --pipeline-model-parallel-size 4
  --pipeline-model-parallel-layout 'Et*4|(t*4|)*17t*5|t*3L'
  --context-parallel-size 2
  --cp-comm-type p2p
  # batch
  --micro-batch-size 1
  --global-batch-size 128
  # precision and optimizer
  --bf16
  --use-distributed-optimizer
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl native
  # communication overlap
  --overlap-grad-reduce
  --overlap-param-gather
  --ddp-bucket-size 134217728
  --tp-comm-overlap
  --tp-comm-overlap-cfg tp_comm_overlap.yaml
  # recompute and CUDA graphs
  --recompute-granularity selective
  --recompute-modules core_attn
  # checkpoints
  --ckpt-format torch_dist
)
