"""Edits of `advisor improve` in Megatron-LM scripts, as Megatron-LM 0.19 itself parses, validates and lays them out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.search.request import Request
from advisor.search.single import Choice
from advisor.spec.layout import Knobs
from tests.real.held import broken, promised
from tests.real.improve_edits import GPUS, all_edits, launched, read
from tests.real.test_megatron_export import SOURCE

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SOURCE, reason="MEGATRON_SOURCE does not name the sources of megatron-core 0.19"),
]
COMMON = (
    "--bf16 --swiglu --disable-bias-linear --micro-batch-size 1 --global-batch-size 512 --seq-length 4096"
    " --max-position-embeddings 4096 --normalization RMSNorm --position-embedding-type rope --attention-backend auto"
    " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --no-gradient-accumulation-fusion"
    " --untie-embeddings-and-output-weights --lr 3e-4 --train-iters 100 --mock-data --tokenizer-type NullTokenizer"
    " --eval-iters 0"
)
LLAMA = "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
JOBS = {
    "dense": f"{LLAMA} --num-query-groups 8 --vocab-size 128256 --tensor-model-parallel-size 2 --sequence-parallel"
    " --pipeline-model-parallel-size 2",
    "experts": f"{LLAMA} --num-query-groups 8 --vocab-size 32000 --num-experts 8 --moe-router-topk 2"
    " --moe-ffn-hidden-size 14336 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-router-dtype fp32"
    " --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 8"
    " --expert-tensor-parallel-size 1",
    "latent": "--num-layers 28 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16"
    " --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"
    " --qk-layernorm --vocab-size 102400 --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408"
    " --moe-shared-expert-intermediate-size 2816 --moe-layer-freq '([0]+[1]*27)' --moe-grouped-gemm"
    " --moe-token-dispatcher-type alltoall --moe-router-dtype fp32 --expert-model-parallel-size 8"
    " --expert-tensor-parallel-size 1",
    "fsdp": f"{LLAMA} --num-query-groups 8 --vocab-size 128256 --use-megatron-fsdp --data-parallel-sharding-strategy"
    " optim_grads_params --ckpt-format fsdp_dtensor",
}
"""Flags of Megatron-LM: dense, experts, latent attention, sharded."""


def text_of(name: str) -> str:
    """A launch script; Megatron-FSDP refuses a single hardware queue."""
    queues = 8 if name == "fsdp" else 1
    return (
        f"#!/bin/bash\nset -eu\nexport CUDA_DEVICE_MAX_CONNECTIONS={queues}\nexport NVTE_CPU_OFFLOAD_V1=1\n"
        f"torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py {JOBS[name]} {COMMON}\n"
    )


def started(texts: list[str]) -> list[dict[str, Any]]:
    """What Megatron-LM makes of every script, in one process of its own."""
    jobs = []
    for text in texts:
        flags, environment = launched(text)
        jobs.append({"gpus": GPUS, "flags": flags, "environment": environment})
    program = Path(__file__).with_name("validate_flags.py")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], input=json.dumps(jobs), capture_output=True, text=True,
        check=True, env={**os.environ, "MEGATRON_SOURCE": SOURCE},
    )  # fmt: skip
    answers: list[dict[str, Any]] = json.loads(ran.stdout.split("ANSWERS")[1])
    return [{name: tuple(one) if isinstance(one, list) else one for name, one in row.items()} for row in answers]


def wrong(request: Request, choice: Choice, held: Knobs, found: dict[str, Any]) -> dict[str, Any]:
    """What does not hold of a promise, the grid of ranks included; or who refused."""
    if "error" in found:
        return found
    said = promised(request, choice, held) | ({"edp": choice.layout.edp} if request.model.is_moe else {})
    return broken(said, found)


@pytest.mark.parametrize("name", JOBS)
def test_every_edit_is_taken_and_resolves_to_its_promise(name: str, tmp_path: Path) -> None:
    subject = read(tmp_path / "train.sh", text_of(name), "0.19")
    changes = [one for one in all_edits(subject) if not one.risks]
    today, *after = started([text_of(name), *(one.text for one in changes)])
    assert wrong(subject.request, subject.asked, subject.effective, today) == {}
    found = {one.name: wrong(one.request, one.choice, one.held, row) for one, row in zip(changes, after, strict=True)}
    assert {name: row for name, row in found.items() if row} == {}
    assert len(changes) > 30
