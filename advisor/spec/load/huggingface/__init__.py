"""Hugging Face style model configurations: one reader per `model_type`, grouped by what the families share."""

from __future__ import annotations

from collections.abc import Callable

from advisor.spec.load.huggingface import dense, hybrid, latent, sparse
from advisor.spec.load.huggingface.config import Config
from advisor.spec.model import Model

FAMILIES: dict[str, Callable[[Config], Model]] = {
    **dense.FAMILIES,
    **sparse.FAMILIES,
    **latent.FAMILIES,
    **hybrid.FAMILIES,
}

__all__ = ["FAMILIES", "Config"]
