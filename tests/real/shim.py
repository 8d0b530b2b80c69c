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
- The random-state tracker needs CUDA; modules are built without initialisation, and Mamba gets one that does nothing.
- The gated norm of mamba-ssm is replaced by a module with the same weight; availability flags are set, and
  the one module that imports triton at import time (in-place tensor operations of inference) is a mock.

`DuplicatedLinear` stands for Transformer Engine's linear with parallel_mode "duplicated": GPU jobs use it for the
down-projections of latent attention, while the local layer specification splits them over tensor parallelism. It is
registered as `TELinear`, so that megatron-core itself asks it for parallel_mode "duplicated".
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import torch


class DuplicatedLinear(torch.nn.Module):
    """A linear whose weight is whole on every rank; takes and ignores Megatron's other constructor arguments."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))


class GatedNorm(torch.nn.Module):
    """Stands for the fused gated norm of mamba-ssm: one weight of the width it is given."""

    def __init__(self, width: int, *, dtype: torch.dtype, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(width, dtype=dtype))


class NoRandomState:
    """Stands for the random-state tracker, which needs CUDA."""

    def fork(self, *_: object) -> contextlib.AbstractContextManager[None]:
        """Nothing to switch."""
        return contextlib.nullcontext()


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
    _stand_in_for_kernels()


def _stand_in_for_kernels() -> None:
    """Let modules be constructed whose kernels (mamba-ssm, flash-linear-attention) are not installed."""
    sys.modules.setdefault("megatron.core.inference.contexts.attention_context.triton.tensor_ops", MagicMock())
    from megatron.core.ssm import gated_delta_net, mamba_context_parallel, mamba_mixer
    from megatron.core.transformer.moe import moe_layer

    mamba_mixer.HAVE_MAMBA_SSM = mamba_mixer.HAVE_EINOPS = mamba_context_parallel.HAVE_EINOPS = True
    mamba_mixer.ExtendedRMSNorm = GatedNorm
    mamba_mixer.get_cuda_rng_tracker = NoRandomState
    gated_delta_net.HAVE_FLA = True
    gated_delta_net.get_cuda_rng_tracker = NoRandomState
    moe_layer.HAVE_TE = True
    moe_layer.TELinear = DuplicatedLinear


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
