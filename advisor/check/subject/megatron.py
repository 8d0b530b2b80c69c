"""A Megatron-LM script, flags or YAML as a job, and where each of our settings is stated in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from advisor.check.readers.flags import key_of
from advisor.check.reading import Reading
from advisor.check.subject.form import place
from advisor.errors import InputError
from advisor.rules.lint import Setup
from advisor.search.sources import Setting
from advisor.search.values import whole
from advisor.spec.load.megatron import MegatronJob, read_megatron_args
from advisor.spec.load.megatron.arguments import by_dest

DESTS: dict[str, tuple[str, ...]] = {
    "tp": ("tensor_model_parallel_size",),
    "pp": ("pipeline_model_parallel_size",),
    "vpp": ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
            "pipeline_model_parallel_layout"),
    "cp": ("context_parallel_size",),
    "ep": ("expert_model_parallel_size",),
    "etp": ("expert_tensor_parallel_size",),
    "mbs": ("micro_batch_size",),
    "gbs": ("global_batch_size", "step_batch_size_schedule"),
    "sp": ("sequence_parallel",),
    "recompute": ("recompute_granularity", "recompute_activations", "recompute_modules"),
    "dispatcher": ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    "ep_overlap": ("overlap_moe_expert_parallel_comm",),
    "delay_wgrad": ("delay_wgrad_compute",),
    "shared_expert_overlap": ("moe_shared_expert_overlap",),
    "fsdp": ("use_megatron_fsdp", "use_torch_fsdp2"),
    "cuda_graph": ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph"),
    "optimizer_offload": ("optimizer_cpu_offload", "optimizer_offload_fraction"),
    "offload_layers": ("cpu_offloading_num_layers",),
    "offload_modules": ("fine_grained_activation_offloading", "offload_modules"),
    "optimizer_instances": ("num_distributed_optimizer_instances",),
    "cp_comm": ("cp_comm_type",),
    "tp_overlap": ("tp_comm_overlap",),
    "distributed_optimizer": ("use_distributed_optimizer",),
    "overlap_grad_reduce": ("overlap_grad_reduce",),
    "overlap_param_gather": ("overlap_param_gather",),
    "overlap_p2p": ("overlap_p2p_comm",),
    "bucket_size": ("ddp_bucket_size",),
    "grad_dtype": ("grad_reduce_in_bf16", "main_grads_dtype", "accumulate_allreduce_grads_in_fp32"),
    "moment_dtype": ("exp_avg_dtype",),
    "main_param_dtype": ("main_params_dtype",),
}  # fmt: skip
"""Our names, and the destinations of Megatron-LM's parser that decide each."""
MEGATRON_DEFAULT = "default of Megatron-LM"


@lru_cache(maxsize=1)
def dest_of() -> Mapping[str, str]:
    """Keys of a configuration, and the destination of Megatron-LM's parser that each holds."""
    return {key_of(dest): dest for dest in by_dest()}


def megatron_job(reading: Reading, found: Mapping[str, Setting]) -> MegatronJob:
    """The job of a file of Megatron-LM flags.

    Read exactly as `advisor estimate --megatron-args` reads it. InputError lists every unusable value.
    """
    vocab = found.get("vocab_size")
    size = None if vocab is None else whole("vocab_size", vocab.value, 1, 2**31)
    variables = {name: str(one.value) for name, one in reading.env.items() if one.value is not None}
    try:
        return read_megatron_args(reading.file, vocab_size=size)
    except InputError as problem:
        if "no Megatron-LM flag found" not in str(problem):
            hint = problem.hint or f"advisor check {reading.file} says what Megatron-LM refuses"
            raise InputError(problem.message, hint) from None
    return read_megatron_args(arguments(reading), vocab_size=size, environment=variables)


def arguments(reading: Reading) -> dict[str, Any]:
    """Settings of a reading under the names of Megatron-LM's parser."""
    known = dest_of()
    return {known[key]: one.value for key, one in reading.values.items() if key in known}


def stated_at(setup: Setup, name: str) -> str:
    """Where a setting of ours is stated: file and line, else the default of the framework."""
    for dest in DESTS.get(name, ()):
        stated = setup.values.get(key_of(dest))
        if stated is not None:
            return place(stated.file, stated.line)
    if setup.framework == "megatron-lm":
        return MEGATRON_DEFAULT
    recipe = setup.facts.get("recipe") if setup.framework == "bridge" else None
    return "default" if recipe is None else f"assumed: neither the file nor our table of {recipe.value} says it"
