"""A performance recipe of the vendor as settings of a Bridge configuration: its row of the table, spelled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.configure.beside import CP_WORDS
from advisor.configure.job import preset
from advisor.configure.offload import offload_fields
from advisor.search.baseline import layout_text, recipe_knobs, recipes
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, Knobs
from advisor.spec.model import Model
from advisor.spec.workload import Workload

GRAPHS = {CudaGraph.none: "none", CudaGraph.scoped: "transformer_engine", CudaGraph.full_iteration: "full_iteration"}


def vendor_row(recipe: str | None, model: Model) -> Mapping[str, Any]:
    """Settings by key of the recipe of that name beyond its sizes; {} for a recipe that is not of the table."""
    row = next((one for one in recipes() if one.name == recipe), None)
    if row is None:
        return {}
    knobs = recipe_knobs(row, model)
    names = preset("versions.yaml")["precisions"]
    found: dict[str, Any] = {
        "mixed_precision": names[row.precision],
        "mixed_precision.grad_reduce_in_fp32": knobs.grad_dtype == "fp32",
        "model.cuda_graph_impl": GRAPHS[knobs.cuda_graph],
        "comm_overlap.tp_comm_overlap": knobs.tp_overlap,
        "comm_overlap.overlap_moe_expert_parallel_comm": knobs.ep_overlap,
        "comm_overlap.delay_wgrad_compute": knobs.delay_wgrad,
        "model.moe_router_force_load_balancing": True,
        "ddp.use_distributed_optimizer": True,
        **_recompute(knobs),
    }
    text = layout_text(row.row, Workload())
    if text is not None:
        found["model.pipeline_model_parallel_layout"] = text
    if knobs.dispatcher is not Dispatcher.none:
        flex = knobs.dispatcher in (Dispatcher.deepep, Dispatcher.hybridep)
        found["model.moe_token_dispatcher_type"] = "flex" if flex else knobs.dispatcher.name
        found["model.moe_flex_dispatcher_backend"] = knobs.dispatcher.name if flex else None
    if knobs.fsdp is not Fsdp.none:
        found |= {"ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": knobs.fsdp.name}
    found |= {f"model.{name}": value for name, value in offload_fields(knobs).items()}
    if knobs.cp_comm is not CpComm.p2p:
        found["model.cp_comm_type"] = CP_WORDS[knobs.cp_comm]
    if knobs.moment_dtype != "fp32":
        found |= {"optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": knobs.moment_dtype}
    return found


def _recompute(knobs: Knobs) -> dict[str, Any]:
    if knobs.full_uniform:
        return {"model.recompute_granularity": "full", "model.recompute_method": "uniform",
                "model.recompute_num_layers": knobs.full_uniform}  # fmt: skip
    selective = "selective" if knobs.recompute else None
    return {"model.recompute_granularity": selective, "model.recompute_modules": list(knobs.recompute)}
