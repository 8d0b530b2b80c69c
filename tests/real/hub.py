"""A Hugging Face cache on disk with the configurations of the model presets, so that Bridge's recipes run offline."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

PRESETS = Path(__file__).parents[2] / "presets" / "models"
# Recipes that name a repository other than the one the preset was taken from.
ALSO = {"meta-llama/Llama-3.1-405B": ("meta-llama/Meta-Llama-3.1-405B",)}
NEWEST = "0" * 40


def use_offline_cache() -> Path:
    """Point the hub's client at an empty cache of this process and away from the network; the cache's folder."""
    folder = Path(tempfile.mkdtemp(prefix="hub-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ |= {"HF_HUB_CACHE": str(folder), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return folder


def fill_cache(folder: Path, recipes: Path) -> None:
    """The configurations of all presets with a repository, at the newest revision and at those that `recipes` pin."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    pinned = {NEWEST}
    for path in recipes.rglob("*.py"):
        pinned |= set(re.findall(r'REVISION = "([0-9a-f]{40})"', path.read_text(encoding="utf-8")))
    for path in PRESETS.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(found.get("model_type")))
        config = {key: value for key, value in found.items() if not key.startswith("_")}
        if kind is not None:
            config.setdefault("architectures", [kind if isinstance(kind, str) else kind[0]])
        for repository in filter(None, (found.get("_hf_id"), *ALSO.get(str(found.get("_hf_id")), ()))):
            _write(folder / f"models--{repository.replace('/', '--')}", json.dumps(config), pinned)


def _write(place: Path, config: str, revisions: set[str]) -> None:
    """One repository in the layout of the hub's cache."""
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(NEWEST, encoding="utf-8")
    for revision in revisions:
        snapshot = place / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_text(config, encoding="utf-8")
