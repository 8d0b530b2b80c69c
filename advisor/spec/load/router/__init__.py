"""Router statistics become a value: CSV, files that Megatron-LM saves, or a log; checked against the model."""

from __future__ import annotations

from advisor.spec.load.router.matching import read_router_stats

__all__ = ["read_router_stats"]
