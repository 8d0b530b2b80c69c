"""Memory facts that no formula gives (contexts, communication buffers, loader processes): profiles/memory.yaml."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

import yaml

from advisor import data
from advisor.errors import InputError
from advisor.spec.plan import Term


@lru_cache(maxsize=1)
def memory_facts() -> MappingProxyType[str, Term]:
    """Values in bytes (or shares, or counts) by name, each with its kind; InputError if the file is missing."""
    path = data.find("profiles", "memory.yaml")
    if path is None:
        raise InputError("profiles/memory.yaml is missing from this installation", "reinstall the package")
    raw = yaml.safe_load(path.read_text())
    return MappingProxyType({name: Term(float(fact["value"]), fact["kind"]) for name, fact in raw.items()})
