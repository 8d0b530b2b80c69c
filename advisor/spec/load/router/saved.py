"""Router statistics that Megatron-LM saves: tokens per expert, or every routing decision, as JSON lines per rank.

`--save-tokens-per-expert-interval N` (megatron-core 0.19) writes <save>/tokens_per_expert/rank<r>.jsonl with the token
counts of the experts on that rank, per microbatch (megatron/training/activation_logging.py). Ranks of an expert group
follow each other, as Megatron lays them out with experts that are not split by tensor parallelism.
`--moe-routing-trace-path DIR` writes router_trace_rank<r>.jsonl with the experts that each token of that rank chose
(megatron/core/transformer/moe/router_trace.py). Both number layers from 0 within a pipeline stage, so that only files
of a job without pipeline parallelism tell the layers of the model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from advisor.errors import InputError
from advisor.spec.load.fields import shown
from advisor.spec.load.router.counts import Counts, Place, number

_RANK = re.compile(r"rank_?(\d+)\.jsonl(?:\.gz)?$")


def read_saved(files: Mapping[str, Sequence[str]], source: str, experts: int) -> Counts:
    """Counts of JSON lines by file name, for a model with `experts` experts. InputError for other JSON."""
    counts = Counts(source, "")
    for name, lines in files.items():
        found = _RANK.search(name)
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            where = f"{name} line {line}"
            entry = _entry(text, where)
            if "tpe" in entry:
                if found is None:
                    raise InputError(
                        f"router statistics {name}: no rank in the name of the file", "keep rank<r>.jsonl of Megatron"
                    )
                counts.form = "tokens per expert saved by Megatron-LM"
                _add_tokens(counts, entry, int(found[1]), experts, where)
            elif "top_indices" in entry:
                counts.form = "routing trace of Megatron-LM"
                _add_choices(counts, entry, where)
            else:
                raise InputError(
                    f"router statistics {where}: neither tpe nor top_indices",
                    "give files of --save-tokens-per-expert-interval or --moe-routing-trace-path",
                )
    return counts


def _entry(text: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or not _whole(entry.get("layer")):
        raise InputError(f"router statistics {where}: {shown(text)} is no record of a layer")
    return entry


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _place(entry: Mapping[str, Any]) -> Place:
    module = entry.get("mtp_idx", 0) if entry.get("block") == "mtp" else -1
    return Place(entry["layer"], module if _whole(module) else 0)


def _add_tokens(counts: Counts, entry: Mapping[str, Any], rank: int, experts: int, where: str) -> None:
    """All microbatches of a layer on one rank; its experts follow those of the ranks before it in its group."""
    batches = entry["tpe"]
    rows = batches if isinstance(batches, list) and all(isinstance(row, list) for row in batches) else []
    local = len(rows[0]) if rows else 0
    if not local or any(len(row) != local for row in rows) or experts % local:
        counts.problems.append(f"{where}: {local} experts on a rank do not divide the {experts} of the model")
        return
    first = rank % (experts // local) * local
    for row in rows:
        for expert, tokens in enumerate(row, first):
            counts.add(_place(entry), expert, number(str(tokens)), where, sums=True)


def _add_choices(counts: Counts, entry: Mapping[str, Any], where: str) -> None:
    choices = entry["top_indices"]
    if not isinstance(choices, list) or not all(isinstance(row, list) for row in choices):
        counts.problems.append(f"{where}: top_indices is no list of the experts of each token")
        return
    strange = [expert for row in choices for expert in row if not _whole(expert)]
    if strange:
        counts.problems.append(f"{where}: {shown(strange[0])} is no expert")
        return
    for expert, tokens in Counter(expert for row in choices for expert in row).items():
        counts.add(_place(entry), expert, float(tokens), where, sums=True)
