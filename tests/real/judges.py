"""One job for two judges: the rules, and megatron-core 0.16.1 (group set-up and TransformerConfig constructor)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advisor.rules import findings, rule_of
from advisor.search.stages import megatron_flags
from advisor.spec.hardware import Cluster
from advisor.spec.layout import CudaGraph, Dispatcher, Knobs, Layout
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import DenseMlp, ExpertMlp, GroupedQueryAttention, LatentAttention, Layer, Model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload
from tests.real.shim import fake_world

GQA = GroupedQueryAttention(16, 4, 32, 32)
MLA = LatentAttention(16, 64, 32, 32, 16, 32)
DENSE, EXPERTS = DenseMlp(1024), ExpertMlp(16, 2, 256, score="sigmoid")
CLUSTER = make_cluster(load_system("dgx-h100"), 64)
JOB = Workload(seq_len=256)


@dataclass(frozen=True)
class Case:
    """One job for both judges."""

    model: Model
    layout: Layout
    knobs: Knobs
    workload: Workload = JOB
    cluster: Cluster = CLUSTER

    def broken(self) -> set[str]:
        """Ids of the rules that the case breaks and for which megatron-core 0.16 refuses it."""
        found = findings(self.model, self.cluster, self.workload, self.layout, self.knobs)
        return {one.rule for one in found if one.severity == "stop" or rule_of(one.rule).versions == "0.16"}


def make_model(mixer: Any = GQA, mlp: Any = DENSE, layers: int = 8, **fields: Any) -> Model:
    return Model("toy", "toy", 512, 1024, (Layer(mixer, mlp),), (0,) * layers, False, **fields)


MOE = make_model(mlp=EXPERTS)


def make_layout(world: int = 64, split: PipelineSplit | None = None, **sizes: Any) -> Layout:
    values = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "gbs": 256} | sizes
    values.setdefault("sp", values["tp"] > 1)
    dp = max(1, world // (values["tp"] * values["pp"] * values["cp"]))
    edp = max(1, world // (values["etp"] * values["ep"] * values["pp"]))
    chunks = values["pp"] * values["vpp"]
    return Layout(
        **values, dp=dp, edp=edp, split=split or PipelineSplit(values["pp"], values["vpp"], (8 // chunks,) * chunks)
    )


def accepts_grid(case: Case) -> bool:
    """Whether initialize_model_parallel takes the sizes; checks data-parallel sizes where it does."""
    at = case.layout
    sizes = {
        "tensor_model_parallel_size": at.tp,
        "pipeline_model_parallel_size": at.pp,
        "virtual_pipeline_model_parallel_size": at.vpp if at.vpp > 1 else None,
        "context_parallel_size": at.cp,
        "expert_model_parallel_size": at.ep,
        "expert_tensor_parallel_size": at.etp,
        "num_distributed_optimizer_instances": case.knobs.optimizer_instances,
        "order": case.cluster.rank_order,
    }
    try:
        with fake_world(0, case.cluster.gpus, **sizes) as state:
            assert state.get_data_parallel_world_size() == at.dp
            assert state.get_expert_data_parallel_world_size() == at.edp
            return True
    except (RuntimeError, AssertionError) as error:
        if "get_data_parallel_world_size" in str(error):
            raise
        return False


DISPATCH: dict[Dispatcher, dict[str, Any]] = {
    Dispatcher.none: {"moe_token_dispatcher_type": "allgather"},
    Dispatcher.allgather: {"moe_token_dispatcher_type": "allgather"},
    Dispatcher.alltoall: {"moe_token_dispatcher_type": "alltoall"},
    Dispatcher.deepep: {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
    Dispatcher.hybridep: {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
}


def model_arguments(case: Case) -> dict[str, Any]:
    import torch

    model, layer, job = case.model, case.model.kinds[0], case.workload
    sixteen_bit = job.precision.name != "fp32"
    found: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "num_attention_heads": layer.mixer.heads,
        "add_bias_linear": layer.mlp is not None and layer.mlp.bias,
        "bf16": sixteen_bit,
        "params_dtype": torch.bfloat16 if sixteen_bit else torch.float32,
        "pipeline_dtype": torch.bfloat16 if sixteen_bit else torch.float32,
        "attention_dropout": job.attention_dropout,
        "hidden_dropout": job.hidden_dropout,
        "mtp_num_layers": job.mtp_depth or None,
    }
    if isinstance(layer.mixer, GroupedQueryAttention):
        found["num_query_groups"] = layer.mixer.kv_heads
    if job.precision.name.startswith("fp8"):
        found |= {"fp8": "e4m3", "fp8_recipe": {"fp8-delayed": "delayed"}.get(job.precision.name, "tensorwise")}
    if isinstance(layer.mlp, ExpertMlp):
        found |= {
            "num_moe_experts": layer.mlp.experts,
            "moe_ffn_hidden_size": layer.mlp.ffn,
            "moe_shared_expert_intermediate_size": layer.mlp.shared_ffn or None,
            "moe_router_score_function": layer.mlp.score,
            "moe_grouped_gemm": True,
            "moe_router_topk": layer.mlp.topk,
            "moe_expert_capacity_factor": job.capacity_factor,
            "moe_pad_expert_input_to_capacity": job.pad_to_capacity,
            "moe_router_load_balancing_type": "aux_loss",
        }
    return found


def layout_arguments(case: Case) -> dict[str, Any]:
    at, depth = case.layout, case.workload.mtp_depth
    found: dict[str, Any] = {
        "tensor_model_parallel_size": at.tp,
        "pipeline_model_parallel_size": at.pp,
        "virtual_pipeline_model_parallel_size": at.vpp if at.vpp > 1 else None,
        "context_parallel_size": at.cp,
        "expert_model_parallel_size": at.ep,
        "expert_tensor_parallel_size": at.etp,
        "sequence_parallel": at.sp,
    }
    flags = megatron_flags(at.split, depth)
    words = {
        "account_for_embedding_in_pipeline_split": "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split": "account_for_loss_in_pipeline_split",
        "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
        "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
        "pipeline_model_parallel_layout": "pipeline_model_parallel_layout",
    }
    return found | {word: flags[name] for name, word in words.items() if name in flags}


def knob_arguments(case: Case) -> dict[str, Any]:
    from megatron.core.transformer.enums import CudaGraphScope

    knobs, moe = case.knobs, case.model.is_moe
    found: dict[str, Any] = {
        "overlap_moe_expert_parallel_comm": knobs.ep_overlap,
        "delay_wgrad_compute": knobs.delay_wgrad,
        "moe_shared_expert_overlap": knobs.shared_expert_overlap,
    }
    if moe:
        found |= DISPATCH[knobs.dispatcher]
    full = knobs.full_uniform or knobs.full_block
    if full:
        method = "uniform" if knobs.full_uniform else "block"
        found |= {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": full}
    elif knobs.recompute:
        found |= {"recompute_granularity": "selective", "recompute_modules": list(knobs.recompute)}
    if knobs.offload_layers:
        found |= {"cpu_offloading": True, "cpu_offloading_num_layers": knobs.offload_layers}
    if knobs.offload_modules:
        found |= {"fine_grained_activation_offloading": True, "offload_modules": list(knobs.offload_modules)}
    if knobs.cuda_graph == CudaGraph.scoped:
        experts = [CudaGraphScope.moe_router, CudaGraphScope.moe_preprocess] if moe else []
        found |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": [CudaGraphScope.attn, *experts]}
    if knobs.cuda_graph == CudaGraph.full_iteration:
        found |= {"cuda_graph_impl": "local", "cuda_graph_scope": [CudaGraphScope.full_iteration]}
    return found


def build_config(case: Case, **more: Any) -> Any:
    """The configuration of megatron-core for a case; its errors pass through."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if case.model.has_mla else TransformerConfig
    return kind(**model_arguments(case), **layout_arguments(case), **knob_arguments(case), **more)


def counts_by_chunk(config: Any, case: Case) -> tuple[int, ...]:
    """Decoder layers of every chunk as Megatron would build them, in model order."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    at = case.layout
    if config.pipeline_model_parallel_layout is not None:
        table = config.pipeline_model_parallel_layout.layout
        return tuple(
            sum(part.name == "decoder" for part in table[rank][slot]) for slot in range(at.vpp) for rank in range(at.pp)
        )
    slots = range(at.vpp) if at.vpp > 1 else [None]
    return tuple(get_num_layers_to_build(config, slot, rank) for slot in slots for rank in range(at.pp))


def accepts_config(case: Case) -> bool:
    """Whether the constructor takes the job and the layers can be dealt; checks the counts where they can."""
    try:
        counts = counts_by_chunk(build_config(case), case)
    except (ValueError, AssertionError, RuntimeError):
        return False
    assert counts == case.layout.split.layers, (case.layout.split, counts)
    return True
