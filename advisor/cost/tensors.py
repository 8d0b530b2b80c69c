"""What a rank sees of a microbatch: token counts, divisors and bytes per element, and lists of saved tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.spec.layout import Array, Columns
from advisor.spec.workload import Workload

Tensors = dict[tuple[str, ...], Array]
"""Bytes by the recompute modules that drop them; the empty tuple is always kept.

In a table that offloads modules a name "@<module>" says with whose inputs the tensor goes to the host.
"""
AWAY = "@"


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """One microbatch on one rank.

    `tokens` is the context-parallel share of the sequence; `owned` the tokens a rank holds outside tensor-parallel
    regions (tokens / tp with sequence parallelism). `element` is bytes of an activation, `linear_input` bytes of
    the input that a linear layer saves. `offloading` says that some entry of the table offloads modules.
    """

    tokens: Array
    owned: Array
    tp: Array
    etp: Array
    sp: Array
    element: float
    linear_input: float
    quantised: bool
    offloading: bool = False

    def goes(self, module: str) -> tuple[str, ...]:
        """The mark of a tensor that goes to the host with the inputs of `module`; none where nothing is offloaded."""
        return (AWAY + module,) if self.offloading else ()


def local(workload: Workload, columns: Columns) -> Local:
    """Token counts of every row and the element sizes of the workload's precision."""
    tokens = workload.seq_len * columns.mbs / columns.cp
    precision = workload.precision
    return Local(
        tokens=tokens,
        owned=tokens / np.where(columns.sp, columns.tp, 1),
        tp=columns.tp,
        etp=columns.etp,
        sp=columns.sp & (columns.tp > 1),
        element=precision.activation_bytes,
        linear_input=float(precision.input_bytes),
        quantised=precision.quantised,
        offloading=bool(np.any(columns.offload_modules)),
    )


def add(tensors: Tensors, modules: tuple[str, ...], size: Array) -> None:
    """Add `size` bytes to what the recompute modules `modules` drop."""
    tensors[modules] = tensors[modules] + size if modules in tensors else size
