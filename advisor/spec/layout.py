"""A layout and its knobs: as one row of plain values, and as columns for the cost functions.

`Layout` and `Knobs` are what people write and read. `Columns` is what formulae take: the same names, each a numpy
array. In a search the layout fields have shape (rows,) and every knob has its own leading axis, so that a term is
computed once per value of the things it depends on and numpy broadcasting adds legal combinations up. A single layout
is a table of one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.spec.split import PipelineSplit

Array = npt.NDArray[Any]


class Dispatcher(IntEnum):
    """Token dispatcher of expert parallelism."""

    none = 0
    allgather = 1
    alltoall = 2
    deepep = 3
    hybridep = 4


class CudaGraph(IntEnum):
    """Scope of CUDA graph capture; `scoped` = Transformer Engine graphs of attention, router and preprocessing."""

    none = 0
    scoped = 1
    full_iteration = 2


class CpComm(IntEnum):
    """Context-parallel exchange."""

    p2p = 0
    all_gather = 1
    a2a = 2
    a2a_p2p = 3


class Fsdp(IntEnum):
    """Megatron-FSDP sharding strategy."""

    none = 0
    optim = 1
    optim_grads = 2
    optim_grads_params = 3


RECOMPUTE_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""Modules whose inputs fine-grained offloading keeps in host memory, in the order of a layer's forward pass."""
EXPERT_INPUTS = ("expert_fc1", "moe_act")
"""Those of them that experts have."""
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks and the batch are laid out: `vpp` is 1 without interleaving, `sp` is sequence parallelism."""

    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    dp: int
    edp: int
    mbs: int
    gbs: int
    sp: bool
    split: PipelineSplit

    @property
    def gpus(self) -> int:
        """World size."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def num_microbatches(self) -> int:
        """Microbatches per step and data-parallel rank."""
        return self.gbs // (self.mbs * self.dp)


@dataclass(frozen=True, slots=True)
class Knobs:
    """Choices within a layout. `recompute` is a set of modules, or `full_uniform` / `full_block` layers (0 = off).

    `optimizer_offload` is the fraction of optimizer state kept in host memory, `offload_layers` the number of first
    layers whose activations wait there for the backward pass, `offload_modules` the modules (of every layer) whose
    inputs do. dtypes are fp32, bf16, fp16 or fp8.
    """

    recompute: tuple[str, ...] = ()
    full_uniform: int = 0
    full_block: int = 0
    dispatcher: Dispatcher = Dispatcher.none
    ep_overlap: bool = False
    delay_wgrad: bool = False
    shared_expert_overlap: bool = False
    fsdp: Fsdp = Fsdp.none
    cuda_graph: CudaGraph = CudaGraph.none
    optimizer_offload: float = 0.0
    offload_layers: int = 0
    offload_modules: tuple[str, ...] = ()
    optimizer_instances: int = 1
    cp_comm: CpComm = CpComm.p2p
    tp_overlap: bool = False
    distributed_optimizer: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_p2p: bool = True
    grad_dtype: str = "fp32"
    moment_dtype: str = "fp32"
    main_param_dtype: str = "fp32"


class Fold:
    """Lays cells of a table out as its rows: what is left of a sparse table is small and dense again.

    A cell is an index into all axes of `shape` after the first `lead`; `cells` (n,) are flat. Arrays that broadcast
    with the table become arrays that broadcast with (*shape[:lead], n), the same array always the same.
    """

    def __init__(self, shape: tuple[int, ...], lead: int, cells: Array) -> None:
        self.lead, self.shape = lead, (*shape[:lead], len(cells))
        self._inner = shape[lead:]
        self._at = np.unravel_index(cells, self._inner)
        self._index: dict[tuple[int, ...], Array] = {}
        self._made: dict[int, tuple[Array, Array]] = {}

    def __call__(self, array: Array) -> Array:
        """The folded array."""
        if id(array) not in self._made:
            self._made[id(array)] = array, self._fold(array)
        return self._made[id(array)][1]

    def _fold(self, array: Array) -> Array:
        depth = self.lead + len(self._inner)
        whole = array.reshape((1,) * (depth - array.ndim) + array.shape)
        outer, inner = whole.shape[: self.lead], whole.shape[self.lead :]
        flat = whole.reshape(*outer, -1)
        if flat.shape[-1] == 1:
            return flat
        if inner not in self._index:
            varying = [axis for axis, size in enumerate(inner) if size > 1]
            at = tuple(self._at[axis] for axis in varying)
            self._index[inner] = np.ravel_multi_index(at, tuple(inner[axis] for axis in varying))
        return flat.take(self._index[inner], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Layout and knob columns that broadcast against each other.

    Counts are int64, switches are bool, codes are int64 values of the enums above. `split` indexes `splits`.
    `rc_<module>` are the recompute switches; `offload_modules` holds a bit per entry of `OFFLOAD_MODULES`.
    """

    tp: Array
    pp: Array
    vpp: Array
    cp: Array
    ep: Array
    etp: Array
    dp: Array
    edp: Array
    mbs: Array
    gbs: Array
    num_microbatches: Array
    sp: Array
    split: Array
    rc_core_attn: Array
    rc_moe_act: Array
    rc_layernorm: Array
    rc_mla_up_proj: Array
    rc_mlp: Array
    rc_moe: Array
    rc_shared_experts: Array
    full_uniform: Array
    full_block: Array
    dispatcher: Array
    ep_overlap: Array
    delay_wgrad: Array
    shared_expert_overlap: Array
    fsdp: Array
    cuda_graph: Array
    optimizer_offload: Array
    offload_layers: Array
    offload_modules: Array
    optimizer_instances: Array
    cp_comm: Array
    tp_overlap: Array
    distributed_optimizer: Array
    overlap_grad_reduce: Array
    overlap_param_gather: Array
    overlap_p2p: Array
    grad_bytes: Array
    moment_bytes: Array
    main_param_bytes: Array
    splits: tuple[PipelineSplit, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the full table: knob axes first, rows last."""
        return np.broadcast_shapes(*(getattr(self, name).shape for name in COLUMN_NAMES))

    def take(self, index: Array) -> Columns:
        """The rows `index` of a table whose layout columns are one-dimensional; knob axes are kept."""
        moved: dict[str, Any] = {name: getattr(self, name)[index] for name in LAYOUT_COLUMNS}
        return dataclasses.replace(self, **moved)

    def pick(self, flat: Array) -> Columns:
        """Entries `flat` (flat indices into the full table) as a one-dimensional table."""
        shape = self.shape
        moved: dict[str, Any] = {
            name: np.broadcast_to(getattr(self, name), shape).reshape(-1)[flat] for name in COLUMN_NAMES
        }
        return dataclasses.replace(self, **moved)

    def fold(self, fold: Fold) -> Columns:
        """The table with some cells laid out as rows."""
        moved: dict[str, Any] = {name: fold(getattr(self, name)) for name in COLUMN_NAMES}
        return dataclasses.replace(self, **moved)


LAYOUT_COLUMNS = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "edp", "mbs", "gbs", "num_microbatches", "sp", "split",
)  # fmt: skip
COLUMN_NAMES = tuple(field.name for field in dataclasses.fields(Columns) if field.name != "splits")
KNOB_COLUMNS = tuple(name for name in COLUMN_NAMES if name not in LAYOUT_COLUMNS)


def layout_columns(layouts: Sequence[Layout]) -> tuple[dict[str, Array], tuple[PipelineSplit, ...]]:
    """Layout fields as one-dimensional arrays, and the distinct pipeline splits that `split` points into."""
    splits = tuple(dict.fromkeys(layout.split for layout in layouts))
    where = {split: i for i, split in enumerate(splits)}
    columns: dict[str, Array] = {}
    for name in LAYOUT_COLUMNS:
        if name == "split":
            columns[name] = np.array([where[layout.split] for layout in layouts], dtype=np.int64)
        else:
            dtype = np.bool_ if name == "sp" else np.int64
            columns[name] = np.array([getattr(layout, name) for layout in layouts], dtype=dtype)
    return columns, splits


def knob_values(knobs: Knobs) -> dict[str, Any]:
    """One choice of knobs as scalar column values."""
    values: dict[str, Any] = {f"rc_{module}": module in knobs.recompute for module in RECOMPUTE_MODULES}
    for name in KNOB_COLUMNS:
        if name in values:
            continue
        if name.endswith("_bytes"):
            values[name] = DTYPE_BYTES[getattr(knobs, name.removesuffix("_bytes") + "_dtype")]
        elif name == "offload_modules":
            values[name] = sum(1 << OFFLOAD_MODULES.index(module) for module in knobs.offload_modules)
        else:
            value = getattr(knobs, name)
            values[name] = int(value) if isinstance(value, IntEnum) else value
    return values


def table(layouts: Sequence[Layout], knobs: Sequence[Knobs]) -> Columns:
    """Rows of (layout, knobs) pairs as a one-dimensional table; both sequences have the same length."""
    columns, splits = layout_columns(layouts)
    values = [knob_values(one) for one in knobs]
    for name in KNOB_COLUMNS:
        columns[name] = np.array([value[name] for value in values])
    return Columns(**columns, splits=splits)


def grid(columns: dict[str, Array], splits: tuple[PipelineSplit, ...], axes: Sequence[Sequence[Knobs]]) -> Columns:
    """Layout columns (rows,) crossed with independent knob axes.

    Each axis is a list of `Knobs` that differ from `axes[0][0]` only in the fields this axis varies; axis i of the
    result has len(axes[i]) entries, the last axis is rows. A field may vary on one axis only.
    """
    base = knob_values(axes[0][0])
    out = dict(columns)
    out.update({name: np.array(value).reshape((1,) * (len(axes) + 1)) for name, value in base.items()})
    for i, axis in enumerate(axes):
        values = [knob_values(one) for one in axis]
        for name in KNOB_COLUMNS:
            column = np.array([value[name] for value in values])
            if (column != base[name]).any():
                shape = [1] * (len(axes) + 1)
                shape[i] = len(axis)
                out[name] = column.reshape(shape)
    return Columns(**out, splits=splits)
