"""Real layers in plain torch, what they keep for their backward pass, and the peak of both passes.

A layer is that of Megatron-Core with Transformer Engine: the same matrices, flash attention, and autograd functions
that keep what the fused kernels keep.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from device import Device, SkippedError
from kernels import rms_norm
from torch.nn.functional import linear, scaled_dot_product_attention, silu

SAVED_WITHIN, PEAK_WITHIN = 0.03, 0.15
# Of what is free: the peak of a layer that the allocator can still place.
FITS = 0.9


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up that keeps its input alone, as Megatron's fused kernel does, and makes no other tensors."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(whole)
        gate, up = whole.chunk(2, -1)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (whole,) = ctx.saved_tensors
        gate, up = whole.chunk(2, -1)
        found = torch.empty_like(whole)
        of_gate, of_up = found.chunk(2, -1)
        torch.mul(gradient, up, out=of_gate)
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        of_up.copy_(gate)
        silu(of_up, inplace=True).mul_(gradient)
        return found


class RmsNorm(torch.autograd.Function):
    """A norm that keeps its input (and its weight) alone, as Transformer Engine's does but for a number per row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return rms_norm(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            again = [one.detach().requires_grad_() for one in (x, weight)]
            out = rms_norm(again[0], again[1])
        found: tuple[torch.Tensor, torch.Tensor] = torch.autograd.grad(out, again, gradient)
        return found


class Layer(torch.nn.Module):
    """A dense layer in bf16: norm, fused query-key-value projection, flash attention, projection, norm, SwiGLU."""

    def __init__(self, case: dict[str, Any], device: str) -> None:
        super().__init__()
        self.case = case
        hidden, dim = case["hidden"], case["head_dim"]
        queries, keys = case["heads"] * dim, case["kv_heads"] * dim
        sizes = {"qkv": (queries + 2 * keys, hidden), "out": (hidden, queries),
                 "fc1": (2 * case["ffn"], hidden), "fc2": (hidden, case["ffn"])}  # fmt: skip
        for name, size in sizes.items():
            weight = torch.randn(size, device=device, dtype=torch.bfloat16) * 0.02
            setattr(self, name, torch.nn.Parameter(weight))
        for name in ("norm1", "norm2"):
            setattr(self, name, torch.nn.Parameter(torch.ones(hidden, device=device, dtype=torch.bfloat16)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, hidden) to the same."""
        case, dim = self.case, self.case["head_dim"]
        mixed = linear(RmsNorm.apply(x, self.norm1), self.qkv)
        parts = mixed.split([n * dim for n in (case["heads"], case["kv_heads"], case["kv_heads"])], -1)
        # Each a tensor of its own, as rotary embedding makes them, and tokens first in memory: attention answers in
        # the order of its queries, and the projection then reads its answer without a copy.
        q, k, v = (part.contiguous().unflatten(-1, (-1, dim)).transpose(1, 2) for part in parts)
        del mixed, parts
        grouped = {"enable_gqa": True} if case["heads"] != case["kv_heads"] else {}
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        x = x + linear(seen.transpose(1, 2).flatten(2), self.out)
        return x + linear(SwiGlu.apply(linear(RmsNorm.apply(x, self.norm2), self.fc1)), self.fc2)


def kept_bytes(layers: torch.nn.Module, x: torch.Tensor) -> int:
    """Bytes of all storages that autograd keeps for the backward pass, without those of parameters."""
    known = {one.untyped_storage().data_ptr() for one in layers.parameters()}
    kept: dict[int, int] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        out = layers(x)
    del out
    return sum(kept.values())


def memory(device: Device, cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What layers keep and, on a GPU, the peak of a forward and backward pass, beside what advisor expects.

    A case that does not fit is a row with the reason. SkippedError without flash attention, or grouped queries in it.
    """
    device.require_flash()
    if "enable_gqa" not in str(scaled_dot_product_attention.__doc__):
        raise SkippedError(f"attention of torch {torch.__version__} knows no grouped queries")
    for case in cases:
        if case["small"] != device.small:
            continue
        gc.collect()
        if device.cuda:
            torch.cuda.empty_cache()
        wanted, free = (size / 2**30 for size in (case["peak_bytes"], device.free_bytes()))
        if wanted > FITS * free:
            why = f"its peak of {wanted:.1f} GiB does not fit in {free:.1f} GiB"
            yield {"case": case["name"], "left_out": why}
        else:
            yield _case(device, case)


def _case(device: Device, case: dict[str, Any]) -> dict[str, Any]:
    before = torch.cuda.memory_allocated() if device.cuda else 0
    layers = torch.nn.Sequential(*(Layer(case, device.name) for _ in range(case["layers"])))
    shape = (case["batch"], case["tokens"], case["hidden"])
    x = torch.randn(shape, device=device.name, dtype=torch.bfloat16, requires_grad=True)
    parameters = sum(one.numel() for one in layers.parameters())
    kept, wanted = kept_bytes(layers, x), case["kept_bytes"]
    row = {"case": case["name"], "parameters": parameters, "expected_parameters": case["parameters"],
           "kept_bytes": kept, "expected_kept_bytes": wanted}  # fmt: skip
    row["kept_ok"] = parameters == case["parameters"] and abs(kept / wanted - 1) <= SAVED_WITHIN
    if device.cuda:
        peak = _peak(layers, x) - before
        row |= {"peak_bytes": peak, "expected_peak_bytes": case["peak_bytes"],
                "peak_ok": abs(peak / case["peak_bytes"] - 1) <= PEAK_WITHIN}  # fmt: skip
    return row


def _peak(layers: torch.nn.Module, x: torch.Tensor) -> int:
    """Allocated bytes at most, in the second of two rounds."""
    both_passes(layers, x, torch.cuda.reset_peak_memory_stats)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def both_passes(layers: torch.nn.Module, x: torch.Tensor, before: Callable[[], object]) -> None:
    """Two forward and backward passes; gradients go to fp32 at once, as with Megatron's main gradients."""
    for one in layers.parameters():
        whole = torch.zeros_like(one, dtype=torch.float32)

        def add(parameter: torch.Tensor, whole: torch.Tensor = whole) -> None:
            whole.add_(parameter.grad)
            parameter.grad = None

        one.register_post_accumulate_grad_hook(add)
    for _ in range(2):
        x.grad = None
        before()
        out = layers(x)
        out.backward(torch.ones_like(out))
        del out
