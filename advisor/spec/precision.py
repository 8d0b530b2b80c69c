"""Number formats of a training run: what the GEMMs run in and what is stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """How a run computes and stores.

    `gemm` is the key of the GPU's dense peak; `param_bytes` the size of a stored weight element; `input_bytes` the size
    of a linear layer's saved input; `gather_bytes` the size of an element in the data-parallel parameter gather;
    `weight_cache_bytes` the size of the cached quantised copies of a linear weight when weights are stored in bf16.
    Source: TransformerEngine recipes; MXFP8 gathers parameters in bf16 (Megatron param_and_grad_buffer.py).
    """

    name: str
    gemm: str
    param_bytes: float
    input_bytes: float
    gather_bytes: float
    weight_cache_bytes: float
    quantised: bool

    @property
    def activation_bytes(self) -> float:
        """Size of an element that passes between layers or ranks: that of a stored weight, in every format."""
        return float(self.param_bytes)


_BLOCK = 1 + 1 / 32
PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", "tf32", 4, 4, 4, 0, False),
        Precision("fp16", "fp16", 2, 2, 2, 0, False),
        Precision("bf16", "bf16", 2, 2, 2, 0, False),
        Precision("fp8-delayed", "fp8", 2, 1, 2, 2, True),
        Precision("fp8-current", "fp8", 2, 1, 2, 2, True),
        Precision("fp8-blockwise", "fp8", 2, 1, 2, 2, True),
        Precision("mxfp8", "mxfp8", 2, _BLOCK, 2, 2 * _BLOCK, True),
        Precision("nvfp4", "nvfp4", 2, 0.5 + 1 / 16, 2, 2 * (0.5 + 1 / 16), True),
    )
}
ALIASES = {
    "fp8": "fp8-current",
    "fp8cs": "fp8-current",
    "fp8mx": "mxfp8",
    "fp8ds": "fp8-delayed",
    "fp8sc": "fp8-blockwise",
}
