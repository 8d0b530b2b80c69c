"""A Hugging Face cache on disk with the configurations of the model presets, so that Bridge's recipes run offline."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

PRESETS = Path(__file__).parents[2] / "presets" / "models"
# Recipes that name a repository other than the one the preset was taken from.
ALSO = {"meta-llama/Llama-3.1-405B": ("meta-llama/Meta-Llama-3.1-405B",)}
NEWEST = "0" * 40
# What a preset leaves out because no cost depends on it, and Bridge reads: rotary scaling of the public configurations
# (the values that megatron/bridge/models/deepseek/deepseek_v4_bridge.py of 0.6.2 notes beside its lookups).
YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}
MORE = {
    "deepseek-ai/DeepSeek-V4-Flash": {"rope_scaling": YARN},
    "deepseek-ai/DeepSeek-V4-Pro": {"rope_scaling": YARN},
    "moonshotai/Kimi-K2-Instruct": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    },
}
# Kimi K2 brings the class of its configuration along: that of DeepSeek-V3 under a name of its own.
CODE = {
    "moonshotai/Kimi-K2-Instruct": {
        "configuration_deepseek.py": "from transformers import DeepseekV3Config as Known\n\n\n"
        'class DeepseekV3Config(Known):\n    model_type = "kimi_k2"\n',
    }
}


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
            files = {"config.json": json.dumps(config | MORE.get(repository, {})), **CODE.get(repository, {})}
            _write(folder / f"models--{repository.replace('/', '--')}", files, pinned)


def _write(place: Path, files: Mapping[str, str], revisions: set[str]) -> None:
    """One repository in the layout of the hub's cache."""
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(NEWEST, encoding="utf-8")
    for revision in revisions:
        snapshot = place / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (snapshot / name).write_text(text, encoding="utf-8")
