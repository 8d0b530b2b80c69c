"""Pipeline splits in Megatron's words: layout string, list form, hybrid pattern, flags.

Letters of the string: E embedding, t decoder layer, m prediction module, L loss, `|` next stage, `x*n` and `(..)*n`
repeat, commas are ignored. Chunk i of the string is pipeline rank i % pp, virtual stage i // pp.
Source: megatron-core 0.16.1, transformer/pipeline_parallel_layer_layout.py (ML@d98e8a64: the same file, 25-151).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from advisor.errors import InputError
from advisor.spec.model import ExpertMlp, Mamba, Model
from advisor.spec.split import PipelineSplit
from advisor.spec.split import parse_layout_string as parse_letters

_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def layout_string(split: PipelineSplit, depth: int) -> str:
    """Megatron's pipeline_model_parallel_layout for `split` with `depth` prediction modules, repeats folded."""
    last = len(split.layers) - 1
    home = last if split.mtp_chunk is None else split.mtp_chunk
    stages = []
    for chunk, count in enumerate(split.layers):
        decoder = "t" * count if count < 3 else f"t*{count}"
        modules = {0: "", 1: "m"}.get(depth, f"m*{depth}") if chunk == home else ""
        stages.append(("E" if chunk == 0 else "") + decoder + modules + ("L" if chunk == last else ""))
    parts = []
    for stage, run in groupby(stages[:-1]):
        length = len(list(run))
        parts.append(f"({stage}|)*{length}" if length > 1 else f"{stage}|")
    return "".join(parts) + stages[-1]


def parse_layout_string(
    text: str | Sequence[Sequence[str]], pp: int, num_layers: int, depth: int | None = None
) -> PipelineSplit:
    """The split that a layout string, or its list form [["embedding", "decoder", ...], ...], describes.

    Raises InputError if Megatron would refuse it for `pp` ranks, `num_layers` decoder layers and (when given) `depth`
    prediction modules.
    """
    if not isinstance(text, str):
        text = "|".join(_letters(stage) for stage in text)
    return parse_letters(text, pp, num_layers, depth)


def _letters(stage: Sequence[str]) -> str:
    if isinstance(stage, str) or not all(isinstance(name, str) for name in stage):
        raise InputError(f"a stage of the pipeline layout must be a list of names, got {stage!r}", "use lists of names")
    names = [name.strip().lower() for name in stage]
    unknown = sorted(set(names) - set(_LETTERS))
    if unknown:
        raise InputError(f"pipeline layout has unknown parts {', '.join(unknown)}", f"use {', '.join(_LETTERS)}")
    return "".join(_LETTERS[name] for name in names)


def hybrid_pattern(model: Model, split: PipelineSplit) -> str:
    """Megatron's hybrid layer pattern with `|` between chunks: M mamba, * attention, - MLP, E experts.

    Source: ML:megatron/training/arguments.py@d98e8a64, lines 787-862.
    """
    letters = []
    for kind in model.pattern:
        layer = model.kinds[kind]
        if layer.mixer is not None:
            letters.append("M" if isinstance(layer.mixer, Mamba) else "*")
        else:
            letters.append("E" if isinstance(layer.mlp, ExpertMlp) else "-")
    pieces = [letters[at : at + n] for at, n in zip(split.starts(), split.layers, strict=True)]
    return "|".join("".join(piece) for piece in pieces)


def megatron_flags(split: PipelineSplit, depth: int = 0, model: Model | None = None) -> dict[str, str | int | bool]:
    """Megatron arguments (names without dashes) that make Megatron build `split`; `model` is needed for hybrids."""
    flags: dict[str, str | int | bool] = {"pipeline_model_parallel_size": split.pp}
    if split.form == "pattern":
        if model is None:
            raise InputError("a hybrid split needs its model to be written down")
        return {**flags, "hybrid_layer_pattern": hybrid_pattern(model, split)}
    if split.form == "layout":
        return {**flags, "pipeline_model_parallel_layout": layout_string(split, depth)}
    if split.vpp > 1:
        flags["num_virtual_stages_per_pipeline_rank"] = split.vpp
    if split.account_embedding:
        flags["account_for_embedding_in_pipeline_split"] = True
    if split.account_loss:
        flags["account_for_loss_in_pipeline_split"] = True
    if split.form == "uneven":
        flags["decoder_first_pipeline_num_layers"] = sum(split.layers[:: split.pp])
        flags["decoder_last_pipeline_num_layers"] = sum(split.layers[split.pp - 1 :: split.pp])
    return flags
