"""The JSON that `advisor plan` and `advisor estimate` write, as every reader of it asks for it.

Who prices a layout again, who looks up what was promised and who gives advice read the same file, so one set of checks
decides what is a plan of this version and which layout of it is meant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.documents import require_file
from advisor.errors import InputError

MAKE_ONE = "advisor plan --model ... --gpus ... --out plan.json writes one"
MOST_BYTES = 64 << 20
SCHEMA_VERSION = 1
PARTS = ("layout", "knobs", "memory")


def read_record(path: Path) -> Mapping[str, Any]:
    """The record of a plan or an estimate. InputError for a file that cannot be read, or is none of this version."""
    try:
        require_file(str(path), path.stat().st_mode, "plan")
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{path} has more than {MOST_BYTES} bytes, more than any plan", MAKE_ONE)
        record = json.loads(content)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}", MAKE_ONE) from problem
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not JSON: {str(problem)[:100]}", MAKE_ONE) from problem
    if not isinstance(record, Mapping) or not isinstance(record.get("request"), Mapping):
        raise InputError(f"{path} is JSON, but neither a plan nor an estimate", MAKE_ONE)
    if record.get("schema_version") != SCHEMA_VERSION:
        version = str(record.get("schema_version"))[:20]
        raise InputError(f"{path} is of schema version {version}, this version reads {SCHEMA_VERSION}", MAKE_ONE)
    return record


def entry_of(record: Mapping[str, Any], rank: int, path: str) -> Mapping[str, Any]:
    """Layout `rank` (1 = best) of a record. InputError where it has none, fewer, or one without its parts."""
    found = record.get("candidates", [record.get("candidate")])
    entries = [one for one in found if isinstance(one, Mapping)] if isinstance(found, Sequence) else []
    if not entries:
        raise InputError(f"{path} holds no layout: nothing fits, or it is illegal", "plan for more GPUs")
    if not 1 <= rank <= len(entries):
        raise InputError(f"{path} holds {len(entries)} layouts, there is no rank {rank}", "plan with --top more")
    entry: Mapping[str, Any] = entries[rank - 1]
    for name in PARTS:
        if not isinstance(entry.get(name), Mapping):
            raise InputError(f"{path} is no plan of this version: its layout {rank} has no {name}", MAKE_ONE)
    return entry
