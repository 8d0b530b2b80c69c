"""Lets megatron-core 0.16.1 build models and process groups on a machine without a GPU.

Importing this module changes nothing. `prepare()` patches the few places where megatron-core reaches for CUDA or for
Transformer Engine while it constructs modules; `fake_world()` opens process groups of any size inside one process.

What is patched, and why it does not change parameter counts:

- `torch.cuda.current_device()` answers "meta": tensors get a shape and no memory. `Tensor.cuda()` changes nothing and
  streams are nothing.
- `WrappedTorchNorm` refuses sequence parallelism; it is replaced by the same torch norms without the refusal.
- `DotProductAttention` does not take the `k_channels` and `v_channels` of latent attention, and refuses context
  parallelism; the first are swallowed, the second is hidden from it (it has no weights that depend on either).
- `multi_latent_attention.HAVE_TE` is true although Transformer Engine is absent, and breaks an isinstance check.
- The random-state tracker needs CUDA; modules are built without initialisation instead, so it is never entered.

`DuplicatedLinear` stands for Transformer Engine's linear with parallel_mode "duplicated": GPU jobs use it for the
down-projections of latent attention, while the local layer specification splits them over tensor parallelism. It is
registered as `TELinear`, so that megatron-core itself asks it for parallel_mode "duplicated".
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch


class DuplicatedLinear(torch.nn.Module):
    """A linear whose weight is whole on every rank; takes and ignores Megatron's other constructor arguments."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))


@functools.cache
def prepare() -> None:
    """Patch megatron-core for this process (once)."""
    warnings.filterwarnings("ignore", module="megatron")
    torch.cuda.current_device = lambda: "meta"
    torch.cuda.Stream = lambda *_, **__: None
    torch.Tensor.cuda = lambda self, *_, **__: self

    from megatron.core.transformer import dot_product_attention, multi_latent_attention, torch_norm

    def norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: object) -> torch.nn.Module:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        return kind(hidden_size, eps=eps)

    torch_norm.WrappedTorchNorm.__new__ = norm
    multi_latent_attention.HAVE_TE = False
    multi_latent_attention.TELinear = DuplicatedLinear

    build = dot_product_attention.DotProductAttention.__init__

    def lenient(self: Any, config: Any, *args: Any, k_channels: int = 0, v_channels: int = 0, **more: Any) -> None:
        config = copy.copy(config)
        config.context_parallel_size = 1
        build(self, config, *args, **more)

    dot_product_attention.DotProductAttention.__init__ = lenient


@contextlib.contextmanager
def fake_world(rank: int, world: int, **sizes: Any) -> Iterator[Any]:
    """Process groups of `world` ranks as rank `rank` sees them, torn down at the end; yields `parallel_state`.

    `sizes` are keyword arguments of `initialize_model_parallel`; its errors pass through. Nothing communicates.
    """
    prepare()
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
        yield parallel_state
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
