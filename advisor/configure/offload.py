"""Activations in host memory in the words of megatron-core."""

from __future__ import annotations

from typing import Any

from advisor.spec.layout import Knobs


def offload_fields(knobs: Knobs) -> dict[str, Any]:
    """Fields of TransformerConfig that keep activations in host memory; none where the knobs keep none there."""
    found: dict[str, Any] = {}
    if knobs.offload_layers:
        found |= {"cpu_offloading": True, "cpu_offloading_num_layers": knobs.offload_layers}
    if knobs.offload_modules:
        found |= {"fine_grained_activation_offloading": True, "offload_modules": list(knobs.offload_modules)}
    return found
