"""Memory facts that no formula gives (contexts, communication buffers, loader processes): profiles/memory.yaml."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

import yaml

from advisor import data
from advisor.spec.plan import Term


@lru_cache(maxsize=1)
def memory_facts() -> MappingProxyType[str, Term]:
    """Values in bytes (or shares, or counts) by name, each with its kind."""
    raw = yaml.safe_load(data.require("profiles", "memory.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: Term(float(fact["value"]), fact["kind"]) for name, fact in raw.items()})
