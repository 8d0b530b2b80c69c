"""Seconds of work that is repeated in the backward pass because its result was not kept."""

from __future__ import annotations

import numpy as np

from advisor.cost.elementwise import ZERO
from advisor.cost.hiding import Exchange
from advisor.cost.kernels import LayerKernels
from advisor.spec.layout import RECOMPUTE_MODULES, Array, Columns
from advisor.spec.model import Model


def whole_layers(model: Model, columns: Columns) -> Array:
    """Share of the layers that are recomputed as a whole."""
    block = np.minimum(columns.full_block * columns.vpp * columns.pp / model.num_layers, 1.0)
    return np.where(columns.full_uniform > 0, 1.0, block)


def recompute_s(model: Model, columns: Columns, kernels: LayerKernels, traffic: dict[str, Exchange]) -> Array:
    """Seconds of recompute of one microbatch of a layer.

    Selective modules repeat their own forward; "moe" also its dispatch. Full recompute repeats the forward of the
    layer with its traffic: of all layers (uniform), or of the first `full_block` layers of every chunk.
    Source: ML:megatron/core/recompute.py and the rules of recompute modules in the design notes.
    """
    selective: Array = ZERO
    for module in RECOMPUTE_MODULES:
        selective = selective + getattr(columns, f"rc_{module}") * kernels.repeats[module]
    # A recomputed expert layer repeats its activation and its shared expert already.
    twice = (
        kernels.repeats["moe_act"] * columns.rc_moe_act + kernels.repeats["shared_experts"] * columns.rc_shared_experts
    )
    selective = selective + columns.rc_moe * (traffic["ep"].forward_exposed - twice)
    repeated = sum((exchange.forward_exposed for name, exchange in traffic.items() if name != "dp"), start=ZERO)
    whole = kernels.forward + repeated
    share = whole_layers(model, columns)
    return np.where(share > 0, share * whole, selective)
