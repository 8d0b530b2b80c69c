"""What Bridge's own recipes of our models set, read from the containers that the installed Bridge builds."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from advisor.configure.job import preset
from tests.real.bridge_stack import VERSION
from tests.real.held import precision_of

TABLE = Path(__file__).parents[2] / "presets" / "check" / "bridge_recipe_settings.json"
SOURCE = (
    "megatron-bridge 0.3.1 and 0.6.2, megatron/bridge/recipes: every recipe of a model of presets/versions.yaml, built "
    "on an H100 and read; written by pytest --update-golden tests/real/test_recipe_settings.py under each version"
)
FIELDS = {
    "model": (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
        "seq_length", "pipeline_model_parallel_layout", "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split", "microbatch_group_size_per_vp_stage", "recompute_granularity",
        "recompute_method", "recompute_num_layers", "recompute_modules", "tp_comm_overlap", "overlap_p2p_comm",
        "overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend", "moe_shared_expert_overlap", "moe_router_force_load_balancing",
        "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "mtp_num_layers", "cuda_graph_impl",
        "cuda_graph_scope", "cuda_graph_modules", "use_te_rng_tracker", "cp_comm_type", "cpu_offloading",
        "cpu_offloading_num_layers", "fine_grained_activation_offloading", "offload_modules",
    ),
    "train": ("micro_batch_size", "global_batch_size"),
    "ddp": (
        "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer", "use_megatron_fsdp",
        "data_parallel_sharding_strategy", "num_distributed_optimizer_instances", "grad_reduce_in_fp32", "bucket_size",
    ),
    "optimizer": (
        "optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction", "use_precision_aware_optimizer",
        "exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype", "main_grads_dtype", "use_distributed_optimizer",
    ),
    "checkpoint": ("ckpt_format",),
}  # fmt: skip
OVERLAP = (
    "tp_comm_overlap", "overlap_p2p_comm", "batch_p2p_comm", "overlap_grad_reduce", "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step", "align_param_gather", "bucket_size",
    "overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "defer_embedding_wgrad_compute", "wgrad_deferral_limit",
)  # fmt: skip


def on_h100() -> Any:
    """Recipes that look at the GPU see one; nothing else of a GPU is there."""
    return patch(
        "torch.cuda.get_device_properties", lambda *_: SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB")
    )


def functions() -> dict[str, Any]:
    """Recipes by function name: those of the version map and their siblings for other tasks and lengths."""
    found = {}
    for row in preset("versions.yaml")["recipes"].values():
        if not isinstance(row, dict) or VERSION not in row["versions"]:
            continue
        module = importlib.import_module(f"megatron.bridge.recipes.{row['module']}")
        stem = row["function"].removesuffix("pretrain_config")
        found |= {
            name: getattr(module, name) for name in dir(module) if name.startswith(stem) and name.endswith("_config")
        }
    return dict(sorted(found.items()))


def settings_of(cfg: Any) -> dict[str, Any]:
    """Settings of a container under the keys of `advisor check`."""
    found = {
        f"{section}.{name}": _plain(getattr(getattr(cfg, section), name))
        for section, names in FIELDS.items()
        for name in names
        if hasattr(getattr(cfg, section), name)
    }
    found["model.pipeline_model_parallel_layout"] = _layout(cfg.model.pipeline_model_parallel_layout)
    found["comm_overlap"] = None if cfg.comm_overlap is None else "CommOverlapConfig"
    if cfg.comm_overlap is not None:
        found |= {f"comm_overlap.{name}": getattr(cfg.comm_overlap, name) for name in OVERLAP}
    mixed = cfg.mixed_precision
    if isinstance(mixed, str):
        found["mixed_precision"] = mixed
    elif mixed is not None:
        found["mixed_precision"] = preset("versions.yaml")["precisions"][precision_of(mixed)]
        found |= {
            f"mixed_precision.{name}": getattr(mixed, name) for name in ("grad_reduce_in_fp32", "fp8_param_gather")
        }
    return found


def _layout(value: Any) -> Any:
    """A pipeline layout in one string, as a file would state it."""
    units = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    return "|".join("".join(units[one] for one in stage) for stage in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else getattr(value, "name", str(value))


def build_all() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Settings of every recipe by function name, and why others could not be built."""
    found, failed = {}, {}
    with on_h100():
        for name, make in functions().items():
            try:
                found[name] = settings_of(make())
            except (TypeError, KeyError, ValueError, ImportError, NotImplementedError) as problem:
                failed[name] = f"{type(problem).__name__}: {problem}"
    return found, failed


def table_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The usual value of every setting, and for each recipe what is unlike it."""
    keys = sorted({key for row in found.values() for key in row})
    seen = {key: Counter(json.dumps(row.get(key)) for row in found.values()) for key in keys}
    usual = {key: json.loads(counts.most_common(1)[0][0]) for key, counts in seen.items()}
    own = {name: {key: row.get(key) for key in keys if row.get(key) != usual[key]} for name, row in found.items()}
    return {"usual": usual, "recipes": own}


def write(version: str, made: dict[str, Any]) -> None:
    """Put the table of one version in place of what is committed for it."""
    whole = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"versions": {}}
    versions = {**whole["versions"], version: made}
    rows = []
    for name in sorted(versions):
        one = versions[name]
        recipes = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in one["recipes"].items())
        usual = json.dumps(one["usual"], indent=1).replace("\n", "\n  ")
        rows.append(f'  "{name}": {{\n  "usual": {usual},\n  "recipes": {{\n{recipes}\n  }}\n  }}')
    text = ",\n".join(rows)
    TABLE.write_text(f'{{\n "source": {json.dumps(SOURCE)},\n "versions": {{\n{text}\n }}\n}}\n', encoding="utf-8")
