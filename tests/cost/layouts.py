"""Layouts for tests: sizes not given are 1, grids follow from the number of GPUs, layers are split evenly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, Knobs, Layout
from advisor.spec.model import Model
from advisor.spec.split import PipelineSplit

ENUMS = {"dispatcher": Dispatcher, "cuda_graph": CudaGraph, "fsdp": Fsdp, "cp_comm": CpComm}


def even_split(model: Model, pp: int = 1, vpp: int = 1) -> PipelineSplit:
    """Chunks as equal as they get, the larger ones first."""
    each, more = divmod(model.num_layers, pp * vpp)
    return PipelineSplit(pp, vpp, tuple(each + (i < more) for i in range(pp * vpp)))


def layout_of(model: Model, gpus: int, **sizes: int) -> Layout:
    """A layout on `gpus` GPUs, with sequence parallelism where tp > 1."""
    whole = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "gbs": gpus} | sizes
    return Layout(
        dp=gpus // (whole["tp"] * whole["pp"] * whole["cp"]),
        edp=gpus // (whole["etp"] * whole["ep"] * whole["pp"]),
        sp=whole["tp"] > 1,
        split=even_split(model, whole["pp"], whole["vpp"]),
        **whole,
    )


def knobs_of(values: dict[str, Any]) -> Knobs:
    """Knobs from plain values, enums by name."""
    named = {name: ENUMS[name][value] if name in ENUMS else value for name, value in values.items()}
    return Knobs(**(named | {"recompute": tuple(values.get("recompute", ()))}))


def first_layers(model: Model, count: int) -> Model:
    """The model cut to its first `count` decoder layers."""
    return replace(model, pattern=model.pattern[:count])
