"""Kernel rates of one GPU, and memory of real layers beside what advisor expects: torch alone, no advisor needed.

`python probe.py [--out FILE.json] [--self-test]`. What advisor expects lies in expected.json (test_gpu.py writes it).
A layer here is that of Megatron-Core with Transformer Engine in plain torch: the same matrices, flash attention, and
autograd functions that keep what the fused kernels keep. Exit code 1: a layer keeps other bytes than expected.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

HERE = Path(__file__).parent
SAVED_WITHIN, PEAK_WITHIN = 0.03, 0.15
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
GEMMS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (4096, 1280, 8192), (4096, 8192, 1024), (4096, 7168, 8192),
    (4096, 8192, 3584), (1024, 4096, 4096), (256, 4096, 4096), (16384, 6144, 4096),
)  # fmt: skip
ATTENTION = ((4096, 128, 32), (8192, 128, 32), (2048, 128, 32), (4096, 64, 32), (16384, 128, 8))
STREAM_BYTES = 1 << 30


class Device:
    """Where the probe runs, how it times and what it knows of memory; `small` shrinks every shape."""

    def __init__(self, small: bool) -> None:
        self.cuda = torch.cuda.is_available()
        self.name = "cuda" if self.cuda else "cpu"
        self.small = small
        self.repeats = 3 if small else 20

    def sync(self) -> None:
        """Wait for everything that was launched."""
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object]) -> float:
        """Median seconds of a call after a warm-up."""
        for _ in range(2):
            run()
        spent = []
        for _ in range(self.repeats):
            self.sync()
            begin = time.perf_counter()
            run()
            self.sync()
            spent.append(time.perf_counter() - begin)
        return statistics.median(spent)

    def facts(self) -> dict[str, Any]:
        """What has to be equal for two reports to be compared."""
        found: dict[str, Any] = {"device": self.name, "torch": torch.__version__, "cuda": torch.version.cuda}
        if self.cuda:
            card = torch.cuda.get_device_properties(0)
            found |= {"gpu": card.name, "total_bytes": card.total_memory, "capability": f"{card.major}.{card.minor}"}
        return found

    def shrunk(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes, in a self-test at most 128."""
        return tuple(min(size, 128) for size in sizes) if self.small else sizes


def gemms(device: Device) -> Iterator[dict[str, Any]]:
    """Products by shape and precision: TFLOP/s."""
    for name in ("fp32", "tf32", "bf16"):
        if name == "tf32" and not device.cuda:
            continue
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        for sizes in GEMMS:
            m, n, k = device.shrunk(sizes)
            if name == "fp32" and m * n * k > 2**37:
                continue
            a, b = (torch.randn(size, k, device=device.name).to(DTYPES[name]) for size in (m, n))
            seconds = device.seconds(lambda a=a, b=b: linear(a, b))
            yield {"dtype": name, "m": m, "n": n, "k": k, "tflops": 2 * m * n * k / seconds / 1e12}
    if device.cuda and torch.cuda.get_device_capability() >= (8, 9):
        yield from _fp8(device)


def _fp8(device: Device) -> Iterator[dict[str, Any]]:
    one = torch.ones((), device=device.name)
    for sizes in GEMMS:
        m, n, k = device.shrunk(sizes)
        a, b = (torch.randn(size, k, device=device.name).to(torch.float8_e4m3fn) for size in (m, n))

        def run(a: Any = a, b: Any = b) -> object:
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        try:
            seconds = device.seconds(run)
        except RuntimeError as problem:
            print(f"fp8 {m}x{n}x{k}: {str(problem).splitlines()[0]}", file=sys.stderr)
            return
        yield {"dtype": "fp8", "m": m, "n": n, "k": k, "tflops": 2 * m * n * k / seconds / 1e12}


def attention(device: Device) -> Iterator[dict[str, Any]]:
    """Causal attention, forward and backward: TFLOP/s over half of the score matrix."""
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


def streams(device: Device) -> dict[str, float]:
    """GB/s of long copies and sums, and of a norm and a gated activation by the bytes a fused kernel moves."""
    n_bytes = 1 << 16 if device.small else STREAM_BYTES
    a, b = (torch.ones(n_bytes // 2, device=device.name, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    rows = a.view(-1, 4096 if not device.small else 128)
    weight = torch.ones(rows.shape[-1], device=device.name, dtype=torch.bfloat16)
    gate, up = rows.chunk(2, -1)
    return {
        "copy_gbs": 2 * n_bytes / device.seconds(lambda: out.copy_(a)) / 1e9,
        "add_gbs": 3 * n_bytes / device.seconds(lambda: torch.add(a, b, out=out)) / 1e9,
        "rms_norm_gbs": 2 * n_bytes / device.seconds(lambda: rms_norm(rows, weight.shape, weight)) / 1e9,
        "swiglu_gbs": 1.5 * n_bytes / device.seconds(lambda: silu(gate) * up) / 1e9,
    }


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up that keeps its input alone, as Megatron's fused kernel does."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(whole)
        gate, up = whole.chunk(2, -1)
        return silu(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (whole,) = ctx.saved_tensors
        gate, up = whole.chunk(2, -1)
        share = torch.sigmoid(gate)
        slope = share * (1 + gate * (1 - share))
        return torch.cat((gradient * up * slope, gradient * gate * share), -1)


class RmsNorm(torch.autograd.Function):
    """A norm that keeps its input (and its weight) alone, as Transformer Engine's does but for a number per row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return rms_norm(x, weight.shape, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            again = [one.detach().requires_grad_() for one in (x, weight)]
            out = rms_norm(again[0], weight.shape, again[1])
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
        # Each a tensor of its own, as rotary embedding makes them.
        q, k, v = (part.unflatten(-1, (-1, dim)).transpose(1, 2).contiguous() for part in parts)
        del mixed
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=case["heads"] != case["kv_heads"])
        x = x + linear(seen.transpose(1, 2).flatten(2), self.out)
        return x + linear(SwiGlu.apply(linear(RmsNorm.apply(x, self.norm2), self.fc1)), self.fc2)


def kept_bytes(run: Callable[[], Any], own: list[torch.Tensor]) -> int:
    """Bytes of all storages that autograd keeps for the backward pass of `run`, without those of `own`."""
    known = {one.untyped_storage().data_ptr() for one in own}
    kept: dict[int, int] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        out = run()
    del out
    return sum(kept.values())


def memory(device: Device, cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What layers keep and, on a GPU, the peak of a forward and backward pass, beside what advisor expects."""
    for case in cases:
        if case["small"] != device.small:
            continue
        layers = torch.nn.Sequential(*(Layer(case, device.name) for _ in range(case["layers"])))
        main = [torch.zeros_like(one, dtype=torch.float32) for one in layers.parameters()]
        x = torch.randn(
            case["batch"], case["tokens"], case["hidden"], device=device.name, dtype=torch.bfloat16, requires_grad=True
        )
        parameters = sum(one.numel() for one in layers.parameters())
        kept = kept_bytes(lambda layers=layers, x=x: layers(x), list(layers.parameters()))
        wanted = case["kept_bytes"]
        if not device.cuda:
            # Attention on a CPU answers heads first, so the projection keeps a copy of its own.
            wanted += 2 * x.numel() // case["hidden"] * case["heads"] * case["head_dim"] * case["layers"]
        row = {"case": case["name"], "parameters": parameters, "expected_parameters": case["parameters"],
               "kept_bytes": kept, "expected_kept_bytes": wanted}  # fmt: skip
        row["kept_ok"] = parameters == case["parameters"] and abs(kept / wanted - 1) <= SAVED_WITHIN
        if device.cuda:
            peak = _peak(layers, main, x)
            row |= {"peak_bytes": peak, "expected_peak_bytes": case["peak_bytes"],
                    "peak_ok": abs(peak / case["peak_bytes"] - 1) <= PEAK_WITHIN}  # fmt: skip
        del layers, main, x
        yield row


def _peak(layers: torch.nn.Module, main: list[torch.Tensor], x: torch.Tensor) -> int:
    """Allocated bytes at most; gradients go to fp32 at once, as with Megatron's main gradients."""
    for one, whole in zip(layers.parameters(), main, strict=True):

        def add(parameter: torch.Tensor, whole: torch.Tensor = whole) -> None:
            whole.add_(parameter.grad)
            parameter.grad = None

        one.register_post_accumulate_grad_hook(add)
    for _ in range(2):
        x.grad = None
        torch.cuda.reset_peak_memory_stats()
        out = layers(x)
        out.backward(torch.ones_like(out))
        torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def table(report: dict[str, Any]) -> str:
    """The report as lines."""
    lines = [", ".join(f"{name} {value}" for name, value in report["facts"].items()), ""]
    lines += [f"{one['dtype']:>5} {one['m']:6d} x {one['n']:6d} x {one['k']:6d}  {one['tflops']:8.1f} TFLOP/s"
              for one in report["gemm"]]  # fmt: skip
    lines += [f"attention seq {one['seq']:6d} dim {one['dim']:4d}: forward {one['fwd_tflops']:7.1f}, backward "
              f"{one['bwd_tflops']:7.1f} TFLOP/s, backward / forward {one['backward_ratio']:.2f}"
              for one in report["attention"]]  # fmt: skip
    lines += [f"{name:>14} {value:8.0f} GB/s" for name, value in report["streams"].items()]
    for one in report["memory"]:
        for what in ("kept", "peak"):
            if f"{what}_bytes" in one:
                found, wanted = (one[name] / 2**20 for name in (f"{what}_bytes", f"expected_{what}_bytes"))
                verdict = "as expected" if one[f"{what}_ok"] else "DIFFERS"
                lines.append(f"{one['case']}: {what} {found:.1f} MiB, expected {wanted:.1f}: {verdict}")
    return "\n".join([*lines, f"{report['seconds']:.0f} s"])


def main() -> int:
    """Run everything, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"))
    parser.add_argument("--self-test", action="store_true", help="small, also on a CPU")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.self_test:
        print("probe.py: torch sees no GPU; --self-test runs small on the CPU", file=sys.stderr)
        return 3
    begin, device = time.monotonic(), Device(options.self_test)
    cases = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))["cases"]
    rows = list(memory(device, cases))
    report = {
        "schema_version": 1, "facts": device.facts(), "gemm": list(gemms(device)),
        "attention": list(attention(device)), "streams": streams(device), "memory": rows,
        "seconds": time.monotonic() - begin,
    }  # fmt: skip
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(report))
    return 0 if all(row["kept_ok"] and row.get("peak_ok", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
