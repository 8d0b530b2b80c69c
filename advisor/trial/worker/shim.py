"""Lets megatron-core run train steps without a GPU (gloo) and without Transformer Engine.

Nothing changes on import. `without_cuda()` and `without_transformer_engine()` patch this process once, before the model
is built. What is patched and why:

| what megatron-core does | what happens here |
|---|---|
| makes tensors with device="cuda", calls Tensor.cuda() and torch.cuda.current_device() | the CPU is meant |
| puts work and tensors on streams, waits for events, marks nvtx ranges | one stream that has nothing to wait for |
| keeps CUDA random states per parallel group | none are kept: dropout is 0 in a trial, weights come from one CPU seed |
| tells parameter kinds apart by "torch.cuda.FloatTensor" | Tensor.type() answers with that name |
| all_to_all_single with split sizes as tensors, which gloo does not take | sizes become lists of int |
| WrappedTorchNorm refuses sequence parallelism | torch's norm, its weights marked for the sequence-parallel reduction |
| DotProductAttention builds the scores and knows no widths of its own for keys and values | torch's fused attention |
| latent attention takes Transformer Engine for present | it is told that it is absent |
| Megatron-FSDP makes its device mesh and its buffers on "cuda" | they are made on the CPU |
| the router calls te_general_gemm, which 0.16 leaves undefined | the name exists and is None |

Sliding windows and attention sinks are not applied by the attention that stands in; context parallelism needs
Transformer Engine and is refused by the job (advisor/trial/job.py).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch

_FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange", "zeros_like", "empty_like", "ones_like")


class NoStream:
    """Stands for streams and events: whatever it is asked to do is done already."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record_event(self, *_: object) -> NoStream:
        """An event that has happened."""
        return self

    def nothing(self, *_: object, **__: object) -> None:
        """Nothing to do."""

    wait_stream = wait_event = synchronize = record = wait = nothing


@contextlib.contextmanager
def _nowhere(*_: object, **__: object) -> Iterator[None]:
    yield


def _on_cpu(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)

    return made


@functools.cache
def without_cuda() -> None:
    """Let the CPU stand for the GPU in this process; megatron-core and torch's compiler are imported before."""
    import torch._dynamo

    importlib.import_module("megatron.core.models.gpt")
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    stream = NoStream()
    told = {
        "current_device": lambda: "cpu",
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "Stream": NoStream,
        "Event": NoStream,
        "stream": _nowhere,
        "synchronize": stream.nothing,
        "get_rng_state": lambda *_, **__: torch.zeros(1, dtype=torch.uint8),
        "set_rng_state": stream.nothing,
    }
    for name, value in told.items():
        setattr(torch.cuda, name, value)
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, stream.nothing)
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    tensor.record_stream = lambda self, *_: None
    kind = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = kind(self, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    tensor.type = type_name
    exchange = torch.distributed.all_to_all_single

    def all_to_all_single(output: Any, given: Any, to: Any = None, of: Any = None, *args: Any, **kwargs: Any) -> Any:
        to, of = kwargs.pop("output_split_sizes", to), kwargs.pop("input_split_sizes", of)
        return exchange(output, given, _counts(to), _counts(of), *args, **kwargs)

    setattr(torch.distributed, "all_to_all_single", all_to_all_single)  # noqa: B010 - a plain assignment is a type error
    _without_random_states()


def _counts(sizes: Any) -> list[int] | None:
    return None if sizes is None else [int(size) for size in sizes]


def _without_random_states() -> None:
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = _nowhere
    random._get_cuda_rng_state = lambda *_, **__: torch.zeros(1, dtype=torch.uint8)
    random._set_cuda_rng_state = lambda *_, **__: None


class _TorchOfCpu:
    """The module torch for a caller that names only GPUs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, name: object, *more: Any) -> torch.device:
        """The CPU for every GPU."""
        return torch.device("cpu") if str(name).startswith("cuda") else torch.device(name, *more)  # type: ignore[call-overload]


@functools.cache
def fsdp_without_cuda() -> None:
    """Let the CPU stand for the GPU in Megatron-FSDP, after `without_cuda`."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter
    from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp

    mesh = mcore_fsdp_adapter.DeviceMesh

    class MeshOfCpu:
        @staticmethod
        def from_group(*args: Any, **kwargs: Any) -> Any:
            return mesh.from_group(*args, **{**kwargs, "device_type": "cpu"})

    megatron_fsdp.torch = _TorchOfCpu()
    mcore_fsdp_adapter.DeviceMesh = MeshOfCpu


@functools.cache
def without_transformer_engine() -> None:
    """Let the local layer specification carry sequence parallelism, latent attention and experts."""
    from megatron.core.transformer import multi_latent_attention, torch_norm
    from megatron.core.transformer.moe import moe_utils

    multi_latent_attention.HAVE_TE = False
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None

    def norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: object) -> torch.nn.Module:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        made = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return made

    torch_norm.WrappedTorchNorm.__new__ = norm
    _fused_attention()


def _fused_attention() -> None:
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    build = DotProductAttention.__init__

    def lenient(self: Any, config: Any, *args: Any, **more: Any) -> None:
        more.pop("k_channels", None)
        more.pop("v_channels", None)
        build(self, config, *args, **more)

    def forward(
        self: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        """Causal attention of (tokens, batch, heads, width) tensors; answers (tokens, batch, heads x width)."""
        q, k, v = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.permute(2, 0, 1, 3).flatten(2)

    DotProductAttention.__init__ = lenient
    DotProductAttention.forward = forward
