"""advisor: layouts, memory, step time and configuration for Megatron-style LLM training.

Start with `advisor.plan(model="minimax-m2", gpus=64)` or `advisor.estimate(...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["estimate", "plan", "scale", "why"]

if TYPE_CHECKING:
    from advisor.api import estimate, plan, scale, why


def __getattr__(name: str) -> Any:
    """Import the planner on first use, so that `import advisor` and `advisor --help` stay instant."""
    if name in __all__:
        from advisor import api

        return getattr(api, name)
    raise AttributeError(f"module 'advisor' has no attribute {name!r}")
