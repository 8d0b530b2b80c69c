"""Pages of the model presets: all of them with their sizes, and one with its kinds of layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import NONE, billions, count
from advisor.cost.params import active_params, mtp_params, total_params
from advisor.spec.load.model import load_model, model_names
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Mamba,
    Mixer,
    Model,
)

LIST_COLUMNS = (
    Column("model", "name"), Column("layers"), Column("hidden"), Column("vocabulary"), Column("mixer", "text"),
    Column("feed-forward", "text"), Column("parameters"), Column("active"),
)  # fmt: skip


def list_document() -> Document:
    """All presets, smallest first."""
    models = sorted((load_model(name) for name in model_names()), key=total_params)
    rows = tuple(
        (
            model.name,
            count(model.num_layers),
            count(model.hidden),
            count(model.vocab_size),
            _kinds(_mixer(kind.mixer) for kind in model.kinds),
            _kinds(_feed_forward(kind.mlp) for kind in model.kinds),
            billions(total_params(model)),
            billions(active_params(model, with_embedding=True)),
        )
        for model in models
    )
    record = [_record(model) for model in models]
    return Document((Table("", LIST_COLUMNS, rows),), {"schema_version": 1, "models": record}, record)


def show_document(name: str) -> Document:
    """One model: sizes, kinds of layers, sources."""
    model = load_model(name)
    record = _record(model)
    hints = (f"next: advisor plan --model {name} --gpus auto",)
    return Document(tuple(_show(model)), {"schema_version": 1, **record}, [record], hints)


def _show(model: Model) -> Iterator[Block]:
    yield Line(f"{model.name} ({model.family})", "heading")
    rows = [
        ("parameters", count(total_params(model)), "vocabulary unpadded, without prediction modules"),
        ("active per token", count(active_params(model, True)), "with the input embedding"),
        ("", count(active_params(model, False)), "without it"),
        ("layers", count(model.num_layers), ""),
        ("hidden size", count(model.hidden), ""),
        ("vocabulary", count(model.vocab_size), "tied embeddings" if model.tied_embeddings else "untied embeddings"),
    ]
    if model.mtp is not None:
        rows.append(("prediction modules", count(model.mtp.depth), f"{count(mtp_params(model))} parameters on top"))
    yield Facts("", tuple(rows))
    columns = (Column("layers"), Column("mixer", "text"), Column("feed-forward", "text"))
    kinds = zip(model.count, model.kinds, strict=True)
    table = tuple((count(number), _mixer(kind.mixer), _feed_forward(kind.mlp)) for number, kind in kinds)
    yield Table("kinds of layers", columns, table)
    yield from (Line(f"note: {note}") for note in model.notes)
    yield from (Line(f"source: {source}", "dim") for source in model.source)


def _record(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "family": model.family,
        "num_layers": model.num_layers,
        "hidden": model.hidden,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "total_params": total_params(model),
        "active_params": active_params(model, with_embedding=True),
        "active_params_without_embedding": active_params(model, with_embedding=False),
        "mtp_params": mtp_params(model),
        "mixers": list(dict.fromkeys(_mixer(kind.mixer) for kind in model.kinds)),
        "feed_forwards": list(dict.fromkeys(_feed_forward(kind.mlp) for kind in model.kinds)),
        "source": list(model.source),
        "notes": list(model.notes),
    }


def _kinds(words: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word != NONE)) or NONE


def _mixer(mixer: Mixer | None) -> str:
    """Kind of mixer with its heads: GQA 48/8x128, MLA 128 (kv 512)."""
    match mixer:
        case GroupedQueryAttention():
            kind = "MHA" if mixer.heads == mixer.kv_heads else "MQA" if mixer.kv_heads == 1 else "GQA"
            window = f" w{mixer.window}" if mixer.window else ""
            return f"{kind} {mixer.heads}/{mixer.kv_heads}x{mixer.head_dim}{window}{_sparse(mixer)}"
        case LatentAttention():
            return f"MLA {mixer.heads} (kv {mixer.kv_rank}){_sparse(mixer)}"
        case CompressedAttention():
            return f"CSA {mixer.heads}x{mixer.head_dim} (1:{mixer.ratio})"
        case Mamba():
            return f"Mamba-2 {mixer.heads}x{mixer.head_dim}"
        case DeltaNet():
            return f"delta-net {mixer.value_heads}x{mixer.value_dim}"
        case None:
            return NONE


def _sparse(mixer: GroupedQueryAttention | LatentAttention) -> str:
    return f" top-{mixer.indexer.topk} keys" if mixer.indexer else ""


def _feed_forward(mlp: FeedForward | None) -> str:
    """Kind of feed-forward part with its width: dense 18432, 256 experts top-8 x 2048 + shared 2048."""
    match mlp:
        case DenseMlp():
            return f"dense {mlp.ffn}"
        case ExpertMlp():
            shared = f" + shared {mlp.shared_ffn}" if mlp.shared_ffn else ""
            return f"{mlp.experts} experts top-{mlp.topk} x {mlp.ffn}{shared}"
        case None:
            return NONE
