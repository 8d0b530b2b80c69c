"""What a layer does on a CPU host beside its products, in the operations of megatron-core's local specification.

`passes` times the memory-bound work of a dense layer by size, `overheads` whole layers so small that only calls, hooks
and autograd are left: a dense one, and expert layers of few and of many experts (ML:megatron/core/transformer/
transformer_layer.py, .../moe/{router,moe_utils,experts}.py, .../distributed/param_and_grad_buffer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from advisor.trial.worker.clock import timed

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DEPTH = 8
TOKENS, HIDDEN, HEADS, TOPK = 16, 32, 2, 2


def passes(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Memory-bound work of a dense layer, forward and backward.

    Two norms, two residual sums, rotary embedding of queries and keys, heads brought to the front, a gated
    activation; `DEPTH` layers forward and then backward, so that no cache holds what the backward pass reads.
    """
    for name in job["dtypes"]:
        dtype = DTYPES[name]
        for tokens, hidden, heads, dim, ffn in job["layer"]:
            streams = [torch.randn(tokens, 1, hidden, dtype=dtype, requires_grad=True) for _ in range(3)]
            qkv = torch.randn(tokens, 1, 3 * heads, dim, dtype=dtype, requires_grad=True)
            gated = torch.randn(tokens, 1, 2 * ffn, dtype=dtype, requires_grad=True)
            weight = torch.ones(hidden, dtype=dtype, requires_grad=True)
            given = (streams, qkv, gated, weight, torch.rand(tokens, 1, 1, dim))
            gradients = [torch.ones_like(one) for one in _passes(*given)]

            def both(given: Any = given, gradients: Any = gradients) -> None:
                for outputs in [_passes(*given) for _ in range(DEPTH)]:
                    torch.autograd.backward(outputs, gradients)

            row = {"dtype": name, "tokens": tokens, "hidden": hidden, "heads": heads, "dim": dim, "ffn": ffn}
            yield row | {"both_s": timed(both, job["seconds"]) / DEPTH}


def _passes(
    streams: list[torch.Tensor], qkv: torch.Tensor, gated: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor
) -> list[torch.Tensor]:
    before, attended, down = streams
    after = before + attended
    q, k, v = qkv.chunk(3, 2)
    return [
        *(_norm(one, weight) for one in (before, after)),
        *(one.permute(1, 2, 0, 3).contiguous() for one in (_turned(q, angles), _turned(k, angles), v)),
        _gate(gated),
        after + down,
    ]


def _norm(t: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(t, t.shape[-1:], weight)


def _turned(t: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = t.shape[-1] // 2
    cosine, sine = torch.cos(angles).to(t.dtype), torch.sin(angles).to(t.dtype)
    return t * cosine + torch.cat((-t[..., half:], t[..., :half]), -1) * sine


def _gate(t: torch.Tensor) -> torch.Tensor:
    gate, up = t.chunk(2, -1)
    return torch.nn.functional.silu(gate) * (up + 0.0)


class Linear(torch.autograd.Function):
    """A product whose gradients are two products of their own, as megatron-core's linear layers have it."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Inputs x weight transposed."""
        ctx.save_for_backward(inputs, weight)
        return torch.matmul(inputs, weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients of the inputs and of the weight."""
        inputs, weight = ctx.saved_tensors
        (given,) = gradients
        rows = given.reshape(-1, given.shape[-1])
        return given.matmul(weight), rows.t().matmul(inputs.reshape(-1, inputs.shape[-1]))


def _product(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    kind: Any = Linear  # apply has no types
    out: torch.Tensor = kind.apply(inputs, weight)
    return out


def _weight(outputs: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """A parameter whose gradient is added to an fp32 buffer as soon as it is there, as DDP of megatron-core does."""
    made = torch.randn(outputs, inputs).to(dtype).requires_grad_()
    buffer = torch.zeros(outputs, inputs)

    def add(one: torch.Tensor) -> None:
        if one.grad is not None:
            buffer.add_(one.grad)
        one.grad = None

    hooked: Any = made  # the method has no types
    hooked.register_post_accumulate_grad_hook(add)
    return made


def overheads(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Whole layers of almost no work, forward and backward: a dense one (no experts) and expert layers."""
    for name in job["dtypes"]:
        for experts in job["experts"]:
            layer = _small_layer(experts, DTYPES[name])
            x = torch.randn(TOKENS, 1, HIDDEN).to(DTYPES[name]).requires_grad_()
            gradient = torch.ones_like(x)

            def both(layer: Any = layer, x: torch.Tensor = x, gradient: torch.Tensor = gradient) -> None:
                torch.autograd.backward(layer(x), gradient)

            yield {"dtype": name, "experts": experts, "both_s": timed(both, job["seconds"])}


def _small_layer(experts: int, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    norms = [torch.ones(HIDDEN, dtype=dtype, requires_grad=True) for _ in range(2)]
    heads = [torch.ones(HIDDEN // HEADS, dtype=dtype, requires_grad=True) for _ in range(2)]
    qkv, projection = _weight(3 * HIDDEN, HIDDEN, dtype), _weight(HIDDEN, HIDDEN, dtype)
    router = _weight(experts, HIDDEN, torch.float32)
    mlps = [(_weight(2 * HIDDEN, HIDDEN, dtype), _weight(HIDDEN, HIDDEN, dtype)) for _ in range(max(experts, 1))]
    angles = torch.rand(TOKENS, 1, 1, HIDDEN // HEADS)

    def layer(x: torch.Tensor) -> torch.Tensor:
        mixed = _product(_norm(x, norms[0]), qkv)
        q, k, v = mixed.view(TOKENS, 1, 3 * HEADS, -1).chunk(3, 2)
        q, k = _turned(_norm(q, heads[0]), angles), _turned(_norm(k, heads[1]), angles)
        q, k, v = (one.permute(1, 2, 0, 3) for one in (q, k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        after = x + _product(attended.permute(2, 0, 1, 3).flatten(2), projection)
        inner = _norm(after, norms[1])
        return after + (_experts(inner, router, mlps) if experts else _mlp(inner, *mlps[0]))

    return layer


def _mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, share: torch.Tensor | None = None) -> torch.Tensor:
    inner = _gate(_product(x, up))
    if share is not None:
        inner = (inner * share.unsqueeze(-1)).to(x.dtype)
    return _product(inner, down)


def _experts(x: torch.Tensor, router: torch.Tensor, mlps: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Router, copies in the order of experts, one expert after another, and the sum of their outputs by token."""
    tokens = x.view(-1, x.shape[-1])
    logits = _product(tokens.float(), router)
    scores, top = torch.topk(logits, TOPK, dim=1)
    shares = torch.zeros_like(logits).scatter(1, top, torch.softmax(scores, -1))
    chosen = torch.zeros_like(logits).int().scatter(1, top, 1).bool().T.contiguous()
    counts = chosen.sum(1)
    order = torch.arange(len(tokens)).unsqueeze(0).expand(len(mlps), -1).masked_select(chosen)
    share = shares.T.contiguous().masked_select(chosen)
    copies, share = _sorted(tokens.index_select(0, order), counts), _sorted(share, counts)
    each = counts.tolist()
    parts = zip(mlps, torch.split(copies, each), torch.split(share, each), strict=True)
    outputs = _sorted(torch.cat([_mlp(rows, *weights, weight) for weights, rows, weight in parts]), counts)
    out = torch.zeros_like(tokens).scatter_add_(0, order.unsqueeze(1).expand(-1, tokens.shape[1]), outputs)
    return out.view(x.shape)


def _sorted(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Chunks by expert put together anew, as after an exchange: from the order of ranks into that of experts."""
    chunks = torch.split(rows, counts.tolist())
    return torch.cat([chunks[at] for at in torch.arange(len(counts)).tolist()])
