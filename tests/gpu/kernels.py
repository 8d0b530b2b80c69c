"""Rates of kernels by shape: products, attention, and what is bound by memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from device import Device, SkippedError
from torch.nn.functional import linear, scaled_dot_product_attention, silu

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
GEMMS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (4096, 1280, 8192), (4096, 8192, 1024), (4096, 7168, 8192),
    (4096, 8192, 3584), (1024, 4096, 4096), (256, 4096, 4096), (16384, 6144, 4096),
)  # fmt: skip
ATTENTION = ((4096, 128, 32), (8192, 128, 32), (2048, 128, 32), (4096, 64, 32), (16384, 128, 8))
STREAM_BYTES = 1 << 30
LARGEST_FP32 = 2**37


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's own, its definition where torch is older than 2.4."""
    if hasattr(torch.nn.functional, "rms_norm"):
        return torch.nn.functional.rms_norm(x, weight.shape, weight)
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps)
    return (x.float() * scale).to(x.dtype) * weight


def gemms(device: Device) -> Iterator[dict[str, Any]]:
    """Products by shape and precision: TFLOP/s."""
    for name in ("bf16", "tf32", "fp32"):
        if name == "tf32" and not device.cuda:
            continue
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        for sizes in GEMMS:
            m, n, k = device.shrunk(sizes)
            if name == "fp32" and m * n * k > LARGEST_FP32:
                continue
            a, b = (torch.randn(size, k, device=device.name).to(DTYPES[name]) for size in (m, n))
            yield _row(name, (m, n, k), device.seconds(lambda a=a, b=b: linear(a, b)))


def fp8_gemms(device: Device) -> Iterator[dict[str, Any]]:
    """Products in fp8 with one scale per operand; SkippedError where torch or the device has none."""
    if device.cuda and torch.cuda.get_device_capability() < (8, 9):
        raise SkippedError(f"compute capability {torch.cuda.get_device_capability()} has no fp8")
    if not hasattr(torch, "float8_e4m3fn") or not hasattr(torch, "_scaled_mm"):
        raise SkippedError(f"torch {torch.__version__} has no fp8 product")
    one = torch.ones((), device=device.name)
    for sizes in GEMMS:
        m, n, k = device.shrunk(sizes)
        a, b = (torch.randn(size, k, device=device.name).to(torch.float8_e4m3fn) for size in (m, n))

        def run(a: Any = a, b: Any = b) -> object:
            return torch._scaled_mm(
                a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=device.cuda
            )

        yield _row("fp8", (m, n, k), device.seconds(run))


def _row(dtype: str, sizes: tuple[int, ...], seconds: float) -> dict[str, Any]:
    m, n, k = sizes
    return {"dtype": dtype, "m": m, "n": n, "k": k, "tflops": 2 * m * n * k / seconds / 1e12}


def attention(device: Device) -> Iterator[dict[str, Any]]:
    """Causal attention, forward and backward: TFLOP/s over half of the score matrix."""
    device.require_flash()
    for sizes in ATTENTION:
        seq, dim, heads = device.shrunk(sizes)
        shape = (1, heads, seq, dim)
        q, k, v = (
            torch.randn(shape, device=device.name, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )  # fmt: skip
        gradient = torch.ones(shape, device=device.name, dtype=torch.bfloat16)

        def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
            return scaled_dot_product_attention(q, k, v, is_causal=True)

        def both(forward: Any = forward, gradient: Any = gradient) -> None:
            torch.autograd.backward(forward(), gradient)

        once, twice = device.seconds(forward), device.seconds(both)
        flops = 2.0 * heads * seq * seq * dim
        yield {"seq": seq, "dim": dim, "heads": heads, "fwd_tflops": flops / once / 1e12,
               "bwd_tflops": 2.5 * flops / max(twice - once, 1e-9) / 1e12,
               "backward_ratio": (twice - once) / once}  # fmt: skip


def streams(device: Device) -> Iterator[dict[str, Any]]:
    """GB/s of long copies and sums, and of a norm and a gated activation by the bytes a fused kernel moves."""
    n_bytes = 1 << 16 if device.small else STREAM_BYTES
    a, b = (torch.ones(n_bytes // 2, device=device.name, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    rows = a.view(-1, 4096 if not device.small else 128)
    weight = torch.ones(rows.shape[-1], device=device.name, dtype=torch.bfloat16)
    gate, up = rows.chunk(2, -1)
    for name, moved, run in (
        ("copy", 2.0, lambda: out.copy_(a)),
        ("add", 3.0, lambda: torch.add(a, b, out=out)),
        ("rms_norm", 2.0, lambda: rms_norm(rows, weight)),
        ("swiglu", 1.5, lambda: silu(gate) * up),
    ):
        yield {"name": name, "gbs": moved * n_bytes / device.seconds(run) / 1e9}
