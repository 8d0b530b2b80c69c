"""The real Megatron-Bridge on a machine without GPUs: imports, containers, and snippets executed against it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from advisor.configure.environment import variables
from advisor.configure.job import Job
from advisor.configure.overlap import Overlap
from advisor.configure.resolved import Field
from advisor.export.bridge import provider_arguments
from advisor.export.model_fields import Facts
from advisor.export.subject import Subject
from tests.real import hub, te_stub

REASON = "megatron.bridge is not installed: make test-bridge"
# Importing one recipe imports all of them, those of vision models with their data loaders included.
NOT_NEEDED = ("megatron.energon", "qwen_vl_utils")
NOT_NEEDED_BY_NEWER = ("torch.utils.tensorboard", "diffusers", "modelopt")
try:
    VERSION = ".".join(importlib.metadata.version("megatron-bridge").split(".")[:2])
except importlib.metadata.PackageNotFoundError:
    VERSION = ""
TRITON_USER = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"


def require_bridge() -> None:
    """Skip the module where Bridge is absent; make it importable where it is. Nothing is patched when it is absent."""
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None:
        pytest.skip(REASON, allow_module_level=True)
    newer = () if VERSION == "0.3" else NOT_NEEDED_BY_NEWER
    te_stub.install(*te_stub.NAMES, *NOT_NEEDED, *newer)
    sys.modules.setdefault(TRITON_USER, MagicMock())
    _presets_on_the_hub()


@lru_cache(maxsize=1)
def _presets_on_the_hub() -> None:
    """What Bridge reads from the hub, from the model presets instead."""
    cache = hub.use_offline_cache()
    import megatron.bridge

    hub.fill_cache(cache, Path(megatron.bridge.__path__[0]) / "recipes")


def comm_overlap() -> ModuleType:
    from megatron.bridge.training import comm_overlap

    return comm_overlap


def product_name(job: Job) -> str:
    """What the driver would call the GPU."""
    return f"NVIDIA {job.gpu.name.split('-')[0].upper()}"


@contextlib.contextmanager
def on_gpus(job: Job) -> Iterator[None]:
    """As many ranks, the GPU and the exported environment that `job` runs with, as far as Bridge asks."""
    asked = {one.name: one.value for one in variables(job) if one.name == "NVTE_CPU_OFFLOAD_V1"}
    seen = SimpleNamespace(major=job.gpu.capability_major, minor=0, name=product_name(job))
    with (
        patch.dict(os.environ, {"WORLD_SIZE": str(job.cluster.gpus), "RANK": "0", **asked}),
        patch("torch.cuda.get_device_properties", lambda *_: seen),
        # Bridge 0.6 accepts every backend where it sees no device.
        patch("torch.cuda.is_available", lambda: VERSION == "0.6"),
        patch("torch.cuda.device_count", lambda: 8 if VERSION == "0.6" else 0),
    ):
        yield


def bare_provider(job: Job) -> Any:
    """A provider that says of the job what communication overlap looks at; nothing is checked in it."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    layout, knobs = job.layout, job.knobs
    full = knobs.full_uniform or knobs.full_block
    flex = knobs.dispatcher.name in ("deepep", "hybridep")
    kind = "flex" if flex else "alltoall" if knobs.dispatcher.name == "none" else knobs.dispatcher.name
    return GPTModelProvider(
        num_layers=job.model.num_layers,
        hidden_size=job.model.hidden,
        num_attention_heads=64,
        bf16=True,
        tensor_model_parallel_size=layout.tp,
        sequence_parallel=layout.sp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        num_moe_experts=job.model.moe.experts if job.model.moe else None,
        moe_token_dispatcher_type=kind,
        moe_shared_expert_overlap=knobs.shared_expert_overlap and not flex,
        recompute_granularity="full" if full else "selective" if knobs.recompute else None,
        recompute_method="uniform" if full else None,
        recompute_num_layers=full or None,
        recompute_modules=list(knobs.recompute) or None,
        mtp_num_layers=job.workload.mtp_depth or None,
        pipeline_dtype=None,
    )


def container(subject: Subject, facts: Facts) -> Any:
    """A whole ConfigContainer around the generic provider of the exported model, as a recipe would be."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.recipes.utils.optimizer_utils import distributed_fused_adam_with_cosine_annealing
    from megatron.bridge.training import config
    from torch.nn import functional

    kind = MLAModelProvider if subject.model.has_mla else GPTModelProvider
    names = {"F": functional, "squared_relu": functional.relu}
    known = {one.name for one in fields(kind)}
    arguments = {k: eval(v, dict(names)) for k, v in provider_arguments(subject, facts).items()}
    unknown = set(arguments) - known
    assert not unknown, f"{kind.__name__} has no {unknown}"
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(
        lr_warmup_iters=10, lr_decay_iters=None, max_lr=3e-4, min_lr=3e-5
    )
    evaluation = {"eval_interval": 500, "eval_iters": 10}
    apart = hasattr(config, "ValidationConfig")
    in_train: dict[str, Any] = {} if apart else evaluation
    beside: dict[str, Any] = {"validation": config.ValidationConfig(**evaluation)} if apart else {}
    return config.ConfigContainer(
        model=kind(**arguments),
        **beside,
        train=config.TrainingConfig(train_iters=1000, global_batch_size=32, micro_batch_size=2, **in_train),
        optimizer=optimizer,
        scheduler=scheduler,
        ddp=config.DistributedDataParallelConfig(check_for_nan_in_grad=True, use_distributed_optimizer=True),
        dataset=config.MockGPTDatasetConfig(
            random_seed=1234, reset_attention_mask=False, reset_position_ids=False, eod_mask_loss=False,
            seq_length=4096, num_dataset_builder_threads=1, data_sharding=True, dataloader_type="single",
            skip_getting_attention_mask_from_dataset=True,
        ),
        logger=config.LoggerConfig(log_interval=10),
        tokenizer=config.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=subject.model.vocab_size),
        checkpoint=config.CheckpointConfig(save="checkpoints", load="checkpoints", save_interval=500),
        rng=config.RNGConfig(seed=1234),
        dist=config.DistributedInitConfig(),
        mixed_precision="bf16_mixed",
    )  # fmt: skip


def held_by(cfg: Any, one: Field) -> Any:
    """What a container holds under the path of a field, in our words."""
    # Providers of hybrid models get their user buffers only from setup().
    value = getattr(getattr(cfg, one.section), one.name, *([None] if one.name == "tp_comm_overlap_cfg" else []))
    if one.name == "tp_comm_overlap_cfg":
        return None if value is None else plain_gemms(value)
    if one.name.startswith(("cuda_graph_scope", "cuda_graph_modules")):
        return tuple(getattr(scope, "name", scope) for scope in value)
    return tuple(value) if isinstance(value, list) else value


def plain_gemms(value: Any) -> dict[str, dict[str, Any]]:
    """User buffers as plain values; upstream's default `(False,)` for fp8_buf is a typing slip for False."""
    return {gemm: {k: False if v == (False,) else v for k, v in row.items()} for gemm, row in value.items() if row}


def differing(overlap: Overlap, cfg: Any, skip: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """Fields where the container holds something else than the resolution said: {path: (said, held)}."""
    found = {}
    for one in overlap.fields:
        if one.path in skip:
            continue
        said: Any = one.effective
        if one.name == "tp_comm_overlap_cfg":
            said = {gemm: dict(row) for gemm, row in overlap.buffers.gemms.items()} or None
        held = held_by(cfg, one)
        dense = not overlap.job.model.is_moe and one.name in (
            "moe_token_dispatcher_type",
            "moe_flex_dispatcher_backend",
            "moe_shared_expert_overlap",
        )
        if held != said and not dense:
            found[one.path] = (said, held)
    return found
