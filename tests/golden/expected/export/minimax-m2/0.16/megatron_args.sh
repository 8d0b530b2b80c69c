#!/usr/bin/env bash
# minimax-m2 on 64 x h100-sxm-80gb: TP2 PP4 VPP16 CP1 EP16 ETP1 DP8 MBS2 GBS512
# Megatron-LM flags for megatron-core 0.16; from minimax-m2.json, candidate 1
#
#   source megatron_args.sh
#   torchrun ... pretrain_gpt.py "${MEGATRON_ARGS[@]}" <data, tokenizer, learning rate, checkpoints>
#
# Environment variables matter as much as flags: advisor export ... --to env
# The model norms queries and keys over all heads at once, Megatron's qk_layernorm norms each head: memory and speed are the same, weights of the published checkpoint do not load.

MEGATRON_ARGS=(
  # model
  --num-layers 62
  --hidden-size 3072
  --num-attention-heads 48
  --seq-length 4096
  --max-position-embeddings 196608
  --vocab-size 200064
  --make-vocab-size-divisible-by 128
  --normalization RMSNorm
  --norm-epsilon 1e-06
  --position-embedding-type rope
  --rotary-base 5000000
  --rotary-percent 0.5
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --kv-channels 128
  --qk-layernorm
  --ffn-hidden-size 1536
  --num-experts 256
  --moe-ffn-hidden-size 1536
  --moe-router-topk 8
  --moe-router-score-function sigmoid
  --moe-router-enable-expert-bias
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 0.001
  --moe-grouped-gemm
  --moe-permute-fusion
  --moe-router-dtype fp32
  --group-query-attention
  --num-query-groups 8
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --swiglu
  # parallel sizes
  --tensor-model-parallel-size 2
  --sequence-parallel
  --pipeline-model-parallel-size 4
  --num-virtual-stages-per-pipeline-rank 16
  --account-for-embedding-in-pipeline-split
  --account-for-loss-in-pipeline-split
  --context-parallel-size 1
  --expert-model-parallel-size 16
  --expert-tensor-parallel-size 1
  # batch
  --micro-batch-size 2
  --global-batch-size 512
  # precision and optimizer
  --bf16
  --use-distributed-optimizer
  --use-precision-aware-optimizer
  --optimizer-cpu-offload
  --optimizer-offload-fraction 1.0
  --overlap-cpu-optimizer-d2h-h2d
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl native
  # communication overlap
  --overlap-grad-reduce
  --overlap-param-gather
  --ddp-bucket-size 134217728
  # experts
  --moe-token-dispatcher-type flex
  --moe-flex-dispatcher-backend hybridep
  --overlap-moe-expert-parallel-comm
  --delay-wgrad-compute
  # recompute and CUDA graphs
  --recompute-granularity selective
  --recompute-modules moe_act
  # checkpoints
  --ckpt-format torch_dist
)
