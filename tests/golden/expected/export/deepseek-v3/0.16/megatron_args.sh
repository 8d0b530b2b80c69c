#!/usr/bin/env bash
# deepseek-v3 on 1024 x gb200-186gb: TP1 PP4 VPP4 CP1 EP64 ETP1 DP256 MBS1 GBS8192
# Megatron-LM flags for megatron-core 0.16; from deepseek-v3.json, candidate 1
#
#   source megatron_args.sh
#   torchrun ... pretrain_gpt.py "${MEGATRON_ARGS[@]}" <data, tokenizer, learning rate, checkpoints>
#
# Environment variables matter as much as flags: advisor export ... --to env

MEGATRON_ARGS=(
  # model
  --num-layers 61
  --hidden-size 7168
  --num-attention-heads 128
  --seq-length 4096
  --max-position-embeddings 163840
  --vocab-size 129280
  --make-vocab-size-divisible-by 128
  --normalization RMSNorm
  --position-embedding-type rope
  --rotary-base 10000
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --multi-latent-attention
  --q-lora-rank 1536
  --kv-lora-rank 512
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --v-head-dim 128
  --qk-layernorm
  --ffn-hidden-size 18432
  --num-experts 256
  --moe-layer-freq '([0]*3+[1]*58)'
  --moe-ffn-hidden-size 2048
  --moe-router-topk 8
  --moe-shared-expert-intermediate-size 2048
  --moe-router-num-groups 8
  --moe-router-group-topk 4
  --moe-router-score-function sigmoid
  --moe-router-enable-expert-bias
  --moe-router-topk-scaling-factor 2.5
  --moe-router-load-balancing-type aux_loss
  --moe-grouped-gemm
  --moe-permute-fusion
  --moe-router-dtype fp32
  --untie-embeddings-and-output-weights
  --disable-bias-linear
  --swiglu
  --mtp-num-layers 1
  # parallel sizes
  --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 4
  --pipeline-model-parallel-layout 'Et*4|(t*4|)*6t*5|(t*4|)*3t*5|(t*4|)*2t*3m|L'
  --context-parallel-size 1
  --expert-model-parallel-size 64
  --expert-tensor-parallel-size 1
  # batch
  --micro-batch-size 1
  --global-batch-size 8192
  # precision and optimizer
  --bf16
  --fp8-format e4m3
  --fp8-recipe mxfp8
  --use-distributed-optimizer
  --use-precision-aware-optimizer
  --exp-avg-dtype bf16
  --exp-avg-sq-dtype bf16
  --main-params-dtype fp32
  --cross-entropy-loss-fusion
  --cross-entropy-fusion-impl native
  # communication overlap
  --overlap-grad-reduce
  --overlap-param-gather
  --ddp-bucket-size 134217728
  # experts
  --moe-token-dispatcher-type flex
  --moe-flex-dispatcher-backend hybridep
  # recompute and CUDA graphs
  --recompute-granularity selective
  --recompute-modules mla_up_proj
  --cuda-graph-impl transformer_engine
  --cuda-graph-scope attn moe_router moe_preprocess
  --te-rng-tracker
  # checkpoints
  --ckpt-format torch_dist
)
