"""What is trained: sequence, batch, number format, optimizer, loss, routing - all that is the same for every layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from advisor.spec.precision import PRECISIONS, Precision

if TYPE_CHECKING:
    from advisor.spec.layout import Array
    from advisor.spec.router import RouterStats

Mode = Literal["train", "inference", "weights"]
Task = Literal["pretrain", "sft"]
Routing = Literal["balanced", "dropless", "token-drop"]
OptimizerName = Literal["adam", "sgd", "muon"]


@dataclass(frozen=True, slots=True)
class Workload:
    """One training (or serving) job, without its layout.

    `router_skew` is tokens on the fullest expert-parallel rank over the mean (1 = balanced); measured loads of `router`
    take its place, as a column. `capacity_factor` bounds it under token drop. `fp8_params` stores and gathers quantised
    weights. `attention_impl` "unfused" keeps the score matrix; `cross_entropy_fused` saves passes over the logits, not
    memory; `loss_impl` "gathered" gathers the logits over tensor ranks before a plain torch cross entropy (stacks other
    than Megatron), "in_place" writes their gradient over them (that of Transformer Engine). `grouped_gemm` runs all
    local experts in one kernel (False: one after another); `expert_activation_fused` applies their activation and the
    routing weight in one, which saves an intermediate.
    `vocab_divisor` is Megatron's make_vocab_size_divisible_by. `batch` and `context` describe requests in inference
    mode.
    `softmax_fused` scales, masks and normalises unfused attention scores in one kernel (False: a torch operation each).
    `tp_async` runs tensor-parallel gathers and scatters of the backward pass beside weight gradients (Megatron does).
    `mtp_depth` overrides the number of prediction modules (None = none are trained unless the model is asked for them).
    `bucket_size` is parameters per bucket of data-parallel traffic, None what the framework takes by itself.
    `connections` is the number of hardware queues that the environment asks for (CUDA_DEVICE_MAX_CONNECTIONS), None
    what a layout needs. `ep_domain` is how many neighbouring ranks HybridEP is told to reach by NVLink, None those that
    it can.
    """

    seq_len: int = 4096
    precision: Precision = PRECISIONS["bf16"]
    mode: Mode = "train"
    task: Task = "pretrain"
    routing: Routing = "balanced"
    router_skew: float | Array = 1.0
    router: RouterStats | None = None
    capacity_factor: float | None = None
    pad_to_capacity: bool = False
    optimizer: OptimizerName = "adam"
    fp8_params: bool = False
    attention_impl: Literal["fused", "unfused"] = "fused"
    norm_impl: Literal["fused", "unfused"] = "fused"
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    cross_entropy_fused: bool = True
    loss_impl: Literal["vocab_parallel", "gathered", "in_place"] = "vocab_parallel"
    grad_accumulation_fused: bool = True
    router_fp32: bool = True
    grouped_gemm: bool = True
    expert_activation_fused: bool = True
    vocab_divisor: int = 128
    mtp_depth: int = 0
    tp_async: bool = True
    bucket_size: int | None = None
    connections: int | None = None
    ep_domain: int | None = None
    softmax_fused: bool = True
    batch: int | None = None
    context: int | None = None
    software: str = ""
