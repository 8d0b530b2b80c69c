"""Activations in host memory as Megatron-LM's flags ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from advisor.spec.layout import EXPERT_INPUTS, OFFLOAD_MODULES
from advisor.spec.load.megatron.arguments import Arguments, by_dest

FUSED = {"fused_group_mlp": EXPERT_INPUTS}
"""The fused grouped MLP goes as a whole: the inputs of both its parts."""
LESS = ("activation_offload_fraction", "min_offloaded_tensor_size", "delta_offload_bytes_across_pp_ranks")
"""Flags that keep some of the inputs on the GPU, which no formula counts."""


def offloadable(names: Iterable[str]) -> tuple[str, ...]:
    """The modules among `names` whose inputs formulae know, in the order of a layer."""
    wanted = {part for name in names for part in FUSED.get(name, (name,))}
    return tuple(module for module in OFFLOAD_MODULES if module in wanted)


def offload_knobs(arguments: Arguments) -> dict[str, Any]:
    """The knobs `offload_layers` and `offload_modules`; what is asked for and not counted is said."""
    layers = arguments.get("cpu_offloading_num_layers")
    if layers < 0:
        arguments.problem("cpu_offloading_num_layers", f"is {layers}: it must not be negative")
    if not arguments.switch("fine_grained_activation_offloading"):
        return {"offload_layers": max(layers, 0)}
    modules = arguments.get("offload_modules") or []
    strange = [module for module in modules if not offloadable([module])]
    if strange:
        arguments.warn("offload", f"offloading the inputs of {', '.join(strange)} is not counted")
    for dest in LESS:
        if arguments.given(dest) and arguments.get(dest) != by_dest()[dest].default:
            flag = by_dest()[dest].name
            arguments.warn("offload", f"--{flag} keeps some inputs on the GPU, all are counted as offloaded")
    return {"offload_layers": max(layers, 0), "offload_modules": offloadable(modules)}
