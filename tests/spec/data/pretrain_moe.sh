#!/bin/bash
# A launch script as people write them: arrays, defaults, continued lines, quotes, arithmetic, data paths.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0
GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=2
PP=${PP:-4}
CHECKPOINT_PATH=$1

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # GPUs of one node
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR:-"localhost"}
)

MODEL_ARGS="
    --num-layers 32 --hidden-size 4096 \
    --ffn-hidden-size=14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --seq-length 4096 --max-position-embeddings 32768 \
    --position-embedding-type rope --normalization RMSNorm --swiglu \
    --untie-embeddings-and-output-weights --disable-bias-linear
"
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-layer-freq '([1]*16+[0]*16)'   # half of the layers
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
)
MOE_ARGS+=(--expert-model-parallel-size $((TP * 4)))

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    $MODEL_ARGS \
    "${MOE_ARGS[@]}" \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size "$PP" \
    --expert-tensor-parallel-size 1 --sequence-parallel \
    --micro-batch-size 1 --global-batch-size 256 --bf16 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity selective --recompute-modules core_attn moe_act \
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER_MODEL} \
    --data-path $DATA_PATH --split 99,1,0 \
    --lr 1e-4 --train-iters 500000 2>&1 | tee log.txt
