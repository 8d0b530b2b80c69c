"""Counts of a file become the statistics of a model: its layers, its experts, or an error that says what differs."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from advisor.errors import InputError
from advisor.spec.layout import Array
from advisor.spec.load.router.counts import Counts, Place
from advisor.spec.load.router.printed import HOW, read_printed
from advisor.spec.load.router.saved import read_saved
from advisor.spec.load.router.table import is_table, read_table
from advisor.spec.model import ExpertMlp, Model
from advisor.spec.router import RouterStats, normalised

MAX_FILE_BYTES = 1 << 30
PIPELINED = "files saved by Megatron-LM number layers within a pipeline stage: save without a pipeline, or give CSV"


def read_router_stats(path: Path, model: Model) -> RouterStats:
    """Tokens per expert and layer of `model` from a file, or from a folder of files that Megatron-LM saved.

    Forms: `table` (CSV), `saved` (JSON lines), `printed` (a log), each also gzipped. InputError for a dense model, a
    file without statistics, and layers, experts or numbers that do not fit the model.
    """
    experts = dict(_expert_layers(model))
    if not experts:
        raise InputError(f"{model.name} has no experts that router statistics could be of", "leave out router_stats")
    counts = _read(path, max(experts.values()))
    counts.raise_problems()
    first, modules = _numbering(counts, model, tuple(experts))
    loads = [counts.row(Place(place + first), size) for place, size in experts.items()]
    mtp = [counts.row(place, max(experts.values())) for place in modules]
    counts.raise_problems()
    return RouterStats(
        layers=tuple(experts),
        loads=_normalised(loads),
        modules=_normalised(mtp),
        source=str(path),
        form=counts.form,
        first=first,
    )


def _expert_layers(model: Model) -> list[tuple[int, int]]:
    return [
        (place, mlp.experts)
        for place, kind in enumerate(model.pattern)
        if isinstance(mlp := model.kinds[kind].mlp, ExpertMlp)
    ]


def _normalised(rows: Sequence[Array | None]) -> tuple[Array, ...]:
    return tuple(normalised(row) for row in rows if row is not None)


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"router statistics {path}: more than 1 GiB", "give statistics of fewer steps")
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise InputError(f"cannot read router statistics {path}: {error}") from error
    if b"\0" in raw[:4096]:
        raise InputError(f"router statistics {path}: not text", HOW)
    return raw.decode("utf-8-sig", errors="replace").splitlines()


def _read(path: Path, experts: int) -> Counts:
    if path.is_dir():
        names = sorted(one for one in path.iterdir() if ".jsonl" in one.suffixes)
        if not names:
            raise InputError(f"router statistics {path}: no *.jsonl in this folder", HOW)
        return read_saved({one.name: _lines(one) for one in names}, str(path), experts)
    lines = _lines(path)
    first = next((line for line in lines if line.strip()), "")
    if not first:
        raise InputError(f"router statistics {path}: the file is empty", HOW)
    if is_table(lines):
        return read_table(lines, str(path))
    if first.lstrip().startswith("{"):
        return read_saved({path.name: lines}, str(path), experts)
    return read_printed(lines, str(path))


def _numbering(counts: Counts, model: Model, expected: tuple[int, ...]) -> tuple[int, tuple[Place, ...]]:
    """The number of the first decoder layer in the file, 0 or 1, and which places are prediction modules."""
    decoder = {place.layer for place in counts.tokens if place.module < 0}
    apart = tuple(sorted((p for p in counts.tokens if p.module >= 0), key=lambda p: (p.module, p.layer)))
    for first in (0, 1):
        wanted = {place + first for place in expected}
        behind = decoder - wanted
        if wanted <= decoder and all(layer >= model.num_layers + first for layer in behind) and _trained(model, behind):
            return first, (*apart, *(Place(layer) for layer in sorted(behind)))
    raise InputError(
        f"router statistics {counts.source}: {_differs(decoder, expected, model)}",
        "" if counts.form.startswith("CSV") else PIPELINED,
    )


def _trained(model: Model, behind: set[int]) -> bool:
    return not behind or (model.mtp is not None and len(behind) <= model.mtp.depth * len(model.mtp.layers))


def _differs(found: set[int], expected: tuple[int, ...], model: Model) -> str:
    """What is missing or too much, in the numbering that agrees better."""
    first = min((0, 1), key=lambda one: len(found ^ {place + one for place in expected}))
    wanted = {place + first for place in expected}
    missing, strange = sorted(wanted - found), sorted(found - wanted)
    said = [f"{model.name} has experts in {len(wanted)} layers, {min(wanted)} to {max(wanted)} counted from {first}"]
    for words, layers in (("missing", missing), ("without experts in the model", strange)):
        if layers:
            said.append(f"{words}: {', '.join(map(str, layers[:8]))}{', ...' * (len(layers) > 8)}")
    return "; ".join(said)
