#!/bin/bash
# Llama-3-8B on 8 nodes of 8 H100
export CUDA_DEVICE_MAX_CONNECTIONS=32
TP=4
PP=2
MODEL_ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
  --position-embedding-type rope --vocab-size 128256 --transformer-impl transformer_engine
)
TRAIN_ARGS="--micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4 --train-iters 1000 --use-distributed-optimizer --overlap-grad-reduce"
torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py "${MODEL_ARGS[@]}" $TRAIN_ARGS \
  --tensor-model-parallel-size $TP --sequence-parallel --pipeline-model-parallel-size $PP \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --mock-data --tokenizer-type NullTokenizer
