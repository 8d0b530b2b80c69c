"""A training job as its Megatron-LM arguments state it: model, workload, layout request and knobs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from advisor.errors import InputError
from advisor.spec.hardware import RankOrder
from advisor.spec.layout import RECOMPUTE_MODULES, CpComm, CudaGraph, Dispatcher, Fsdp, Knobs, Layout
from advisor.spec.load.megatron.arguments import Arguments, by_dest, parse
from advisor.spec.load.megatron.model import read_model, sequence_length
from advisor.spec.load.megatron.offload import offload_knobs
from advisor.spec.load.megatron.pipeline import read_split
from advisor.spec.model import Model
from advisor.spec.plan import Finding
from advisor.spec.precision import PRECISIONS, Precision
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import OptimizerName, Routing, Workload

_RECIPES = {"delayed": "fp8-delayed", "tensorwise": "fp8-current", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}
_CP_COMM = {"p2p": CpComm.p2p, "all_gather": CpComm.all_gather, "a2a": CpComm.a2a, "a2a+p2p": CpComm.a2a_p2p}
_FLEX = {"deepep": Dispatcher.deepep, "hybridep": Dispatcher.hybridep, "ncclep": Dispatcher.hybridep}
# Flags that change memory or time and that no formula counts yet: named in a finding, never among `ignored`.
_NOT_COUNTED = (
    "defer_embedding_wgrad_compute",
    "use_transformer_engine_op_fuser",
    "fp32_residual_connection",
    "distribute_saved_activations",
    "moe_paged_stash",
    "moe_expert_rank_capacity_factor",
    "tensor_parallel_num_weight_shards",
    "expert_tensor_parallel_num_weight_shards",
    "hybrid_context_parallel",
)


@dataclass(frozen=True, slots=True)
class MegatronJob:
    """What Megatron-LM arguments say about a job; only the number of GPUs may be left open.

    `layout_request` holds tp, pp, vpp, cp, ep, etp, mbs, sp and gbs (None = one microbatch per data-parallel rank).
    `gpus` is the world size the launch line states (None = not stated). `missing` names inputs that are not in the
    arguments, `ignored` flags that change neither memory nor time, `findings` what a reader should know.
    """

    model: Model
    workload: Workload
    layout_request: MappingProxyType[str, int | bool | None]
    split: PipelineSplit
    knobs: Knobs
    gpus: int | None
    missing: tuple[str, ...]
    ignored: tuple[str, ...]
    findings: tuple[Finding, ...]
    rank_order: RankOrder = "tp-cp-ep-dp-pp"

    def _size(self, name: str) -> int:
        return int(self.layout_request[name] or 0)

    @property
    def smallest_world(self) -> int:
        """The fewest GPUs on which both grids are whole: pp * lcm(tp * cp, etp * ep)."""
        return self._size("pp") * math.lcm(self._size("tp") * self._size("cp"), self._size("etp") * self._size("ep"))

    def layout(self, gpus: int | None = None) -> tuple[Layout, Knobs]:
        """Layout and knobs on `gpus` GPUs (default: the world size stated).

        InputError if the number is not stated, a grid is not whole or the global batch does not divide.
        Source: ML:megatron/core/parallel_state.py@d98e8a64, lines 815-907.
        """
        world = self.gpus if gpus is None else gpus
        if world is None:
            raise InputError("the arguments do not state the number of GPUs", hint="add --gpus N")
        unit = self.smallest_world
        if world < 1 or world % unit:
            nearest = f"{world // unit * unit} or " if world >= unit else ""
            raise InputError(
                f"{world} GPUs do not fit pp {self._size('pp')} x lcm(tp {self._size('tp')} x cp {self._size('cp')}, "
                f"etp {self._size('etp')} x ep {self._size('ep')}) = {unit}",
                hint=f"use {nearest}{(world // unit + 1) * unit} GPUs",
            )
        dp = world // (self._size("tp") * self._size("pp") * self._size("cp"))
        mbs = self._size("mbs")
        gbs = self._size("gbs") or mbs * dp
        if gbs % (mbs * dp):
            raise InputError(
                f"global batch {gbs} is not a multiple of micro batch {mbs} x data parallel {dp}",
                hint=f"use a global batch of {max(1, round(gbs / (mbs * dp))) * mbs * dp}",
            )
        layout = Layout(
            tp=self._size("tp"),
            pp=self._size("pp"),
            vpp=self.split.vpp,
            cp=self._size("cp"),
            ep=self._size("ep"),
            etp=self._size("etp"),
            dp=dp,
            edp=world // (self._size("etp") * self._size("ep") * self._size("pp")),
            mbs=mbs,
            gbs=gbs,
            sp=bool(self.layout_request["sp"]),
            split=self.split,
        )
        return layout, dataclasses.replace(self.knobs)


def _precision(arguments: Arguments) -> Precision:
    base = "fp16" if arguments.switch("fp16") else "bf16" if arguments.switch("bf16") else "fp32"
    if arguments.switch("fp16") and arguments.switch("bf16"):
        arguments.problem("fp16", "does not go with --bf16")
    fp8, fp4 = arguments.get("fp8"), arguments.get("fp4")
    if fp8 is not None and fp4 is not None:
        arguments.problem("fp8", "does not go with --fp4-format")
    if (fp8 or fp4) and arguments.switch("first_last_layers_bf16"):
        arguments.warn("bf16-ends", "the bf16 first and last layers are counted in the low precision of the others")
    if fp4 is not None:
        return PRECISIONS["nvfp4"]
    if fp8 is None:
        return PRECISIONS[base]
    recipe = arguments.get("fp8_recipe")
    if recipe not in _RECIPES:
        arguments.problem("fp8_recipe", f"is {recipe}: the advisor knows {', '.join(_RECIPES)}")
        return PRECISIONS["fp8-delayed"]
    return PRECISIONS[_RECIPES[recipe]]


def _optimizer(arguments: Arguments) -> OptimizerName:
    name = str(arguments.get("optimizer"))
    if name in ("adam", "sgd", "muon"):
        return name  # type: ignore[return-value]
    if name == "dist_muon":
        return "muon"
    arguments.warn("optimizer", f"optimizer {name} is counted as adam (two moments of the same size)")
    return "adam"


def _unfused_attention(arguments: Arguments) -> bool:
    """Whether the score matrix is materialised: asked for, or the only backend the environment leaves on."""
    backend = arguments.get("attention_backend")
    if arguments.get("transformer_impl") == "local" and not arguments.switch("use_flash_attn"):
        return True
    off = [arguments.environment.get(name) == "0" for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")]
    return backend in ("unfused", "local") or all(off)


def _fused_expert_activation(arguments: Arguments) -> bool:
    """Whether experts apply activation and routing weight in one kernel (ML: moe/experts.py `bias_act_func`)."""
    fused_glu = (
        arguments.switch("bias_swiglu_fusion") if arguments.switch("swiglu") else arguments.switch("quick_geglu")
    )
    return fused_glu or (arguments.switch("squared_relu") and arguments.switch("use_fused_weighted_squared_relu"))


def _bucket_size(arguments: Arguments) -> int | None:
    """Parameters per bucket; a number of buckets depends on the chunk that is cut, and is not counted."""
    if arguments.given("ddp_num_buckets"):
        arguments.warn("ddp_num_buckets", "the number of buckets is not counted: the framework's own size is")
    size = arguments.get("ddp_bucket_size")
    if size is not None and size < 1:
        arguments.problem("ddp_bucket_size", f"is {size}: it counts parameters and must be 1 or more")
    return None if size is None else int(size)


def _workload(arguments: Arguments, model: Model) -> Workload:
    factor = arguments.get("moe_expert_capacity_factor")
    forced = arguments.switch("moe_router_force_load_balancing") or not model.is_moe
    routing: Routing = "token-drop" if factor is not None and factor >= 0 else "balanced" if forced else "dropless"
    if routing == "dropless":
        arguments.warn(
            "routing",
            "tokens are counted as spread evenly over the experts; untrained routers were measured to give the fullest"
            " rank up to 1.7 times its share",
            "--router-skew 1.7 for the worst case",
        )
    attention: Literal["fused", "unfused"] = "unfused" if _unfused_attention(arguments) else "fused"
    # Megatron's own layers take Apex's fused LayerNorm; there is no such RMSNorm, torch's is unfused.
    plain_norm = arguments.get("transformer_impl") == "local" and arguments.get("normalization") == "RMSNorm"
    for dest in ("attention_dropout", "hidden_dropout"):
        if not 0 <= arguments.get(dest) < 1:
            arguments.problem(dest, f"is {arguments.get(dest)}: it must be 0 or more and below 1")
    divisor = 1 if arguments.given("padded_vocab_size") or not arguments.switch("pad_vocab_size") else None
    return Workload(
        seq_len=sequence_length(arguments),
        precision=_precision(arguments),
        routing=routing,
        capacity_factor=factor if routing == "token-drop" else None,
        pad_to_capacity=arguments.switch("moe_pad_expert_input_to_capacity"),
        optimizer=_optimizer(arguments),
        fp8_params=arguments.switch("fp8_param_gather") or arguments.switch("fp4_param_gather"),
        attention_impl=attention,
        norm_impl="unfused" if plain_norm else "fused",
        attention_dropout=float(arguments.get("attention_dropout")),
        hidden_dropout=float(arguments.get("hidden_dropout")),
        cross_entropy_fused=arguments.switch("cross_entropy_loss_fusion"),
        grad_accumulation_fused=arguments.switch("gradient_accumulation_fusion"),
        grouped_gemm=arguments.switch("moe_grouped_gemm") or not model.is_moe,
        expert_activation_fused=_fused_expert_activation(arguments),
        router_fp32=arguments.get("moe_router_dtype") is not None,
        vocab_divisor=divisor or arguments.count("make_vocab_size_divisible_by"),
        mtp_depth=model.mtp.depth if model.mtp is not None else 0,
        software="megatron-lm",
        bucket_size=_bucket_size(arguments),
    )


def _recompute(arguments: Arguments) -> dict[str, Any]:
    """Recompute knobs; selective without modules is `core_attn`, as in Megatron's TransformerConfig."""
    granularity = arguments.get("recompute_granularity")
    if arguments.switch("recompute_activations"):
        granularity = "selective"
    method, layers = arguments.get("recompute_method"), arguments.get("recompute_num_layers")
    modules = arguments.get("recompute_modules") or ["core_attn"]
    if granularity == "full":
        if method is None or layers is None:
            arguments.problem("recompute_granularity", "full needs --recompute-method and --recompute-num-layers")
            return {}
        return {f"full_{method}": arguments.count("recompute_num_layers")}
    if granularity is None:
        return {}
    if method is not None or layers is not None:
        arguments.problem("recompute_method", "and --recompute-num-layers go with granularity full only")
    strange = [module for module in modules if module not in RECOMPUTE_MODULES]
    if strange:
        arguments.warn("recompute", f"the saving of recomputing {', '.join(strange)} is not counted")
    return {"recompute": tuple(module for module in RECOMPUTE_MODULES if module in modules)}


def _dispatcher(arguments: Arguments, model: Model) -> Dispatcher:
    kind = arguments.get("moe_token_dispatcher_type")
    backend = arguments.get("moe_flex_dispatcher_backend")
    if not model.is_moe:
        return Dispatcher.none
    return _FLEX[backend] if kind == "flex" else Dispatcher[kind]


def _fsdp(arguments: Arguments) -> Fsdp:
    if arguments.switch("use_torch_fsdp2"):
        return Fsdp.optim_grads_params
    strategy = arguments.get("data_parallel_sharding_strategy")
    if not arguments.switch("use_megatron_fsdp") or strategy == "no_shard":
        return Fsdp.none
    return Fsdp[strategy]


def _grad_dtype(arguments: Arguments, precision: Precision) -> str:
    """Dtype of the gradient buffer: fp32 for bf16 runs unless told otherwise, the parameter dtype for fp16."""
    if arguments.switch("use_megatron_fsdp"):
        stated = arguments.get("megatron_fsdp_main_grads_dtype")
        return ("bf16" if precision.param_bytes == 2 else "fp32") if stated == "auto" else str(stated)
    if precision.name == "fp16":
        return "fp32" if arguments.switch("accumulate_allreduce_grads_in_fp32") else "fp16"
    if precision.name == "fp32":
        return "fp32"
    low = arguments.switch("grad_reduce_in_bf16") or arguments.get("main_grads_dtype") == "bf16"
    return "bf16" if low else "fp32"


def _knobs(arguments: Arguments, model: Model, precision: Precision) -> Knobs:
    graph = arguments.get("cuda_graph_impl")
    if arguments.switch("enable_cuda_graph") or arguments.switch("external_cuda_graph"):
        graph = "local"
    moment = arguments.get("exp_avg_dtype") if arguments.switch("use_precision_aware_optimizer") else "fp32"
    if moment != arguments.get("exp_avg_sq_dtype") and arguments.switch("use_precision_aware_optimizer"):
        arguments.warn("moments", f"both moments are counted in {moment}, the dtype of the first")
    main = arguments.get("main_params_dtype") if arguments.switch("use_precision_aware_optimizer") else "fp32"
    fraction = arguments.get("optimizer_offload_fraction") if arguments.switch("optimizer_cpu_offload") else 0.0
    if not 0 <= fraction <= 1:
        arguments.problem("optimizer_offload_fraction", f"is {fraction}: it must be between 0 and 1")
    fsdp = _fsdp(arguments)
    comm = list(dict.fromkeys(arguments.get("cp_comm_type")))
    if comm[0] not in _CP_COMM:
        arguments.problem("cp_comm_type", f"is {comm[0]}: one of {', '.join(_CP_COMM)}")
    return Knobs(
        **_recompute(arguments),
        dispatcher=_dispatcher(arguments, model),
        ep_overlap=arguments.switch("overlap_moe_expert_parallel_comm"),
        delay_wgrad=arguments.switch("delay_wgrad_compute"),
        shared_expert_overlap=arguments.switch("moe_shared_expert_overlap"),
        fsdp=fsdp,
        cuda_graph={"none": CudaGraph.none, "full_iteration": CudaGraph.full_iteration}.get(graph, CudaGraph.scoped),
        optimizer_offload=float(fraction),
        **offload_knobs(arguments),
        optimizer_instances=arguments.count("num_distributed_optimizer_instances"),
        cp_comm=_CP_COMM.get(comm[0], CpComm.p2p),
        tp_overlap=arguments.switch("tp_comm_overlap"),
        distributed_optimizer=_shards_optimizer(arguments) or fsdp is not Fsdp.none,
        overlap_grad_reduce=arguments.switch("overlap_grad_reduce"),
        overlap_param_gather=arguments.switch("overlap_param_gather"),
        overlap_p2p=arguments.switch("overlap_p2p_comm"),
        grad_dtype=_grad_dtype(arguments, precision),
        moment_dtype=str(moment),
        main_param_dtype=str(main),
    )


def _shards_optimizer(arguments: Arguments) -> bool:
    return arguments.switch("use_distributed_optimizer") or arguments.get("optimizer") == "dist_muon"


def _request(arguments: Arguments) -> dict[str, int | bool | None]:
    """Sizes of the parallel groups and batches; ETP follows TP unless set, sequence parallelism is off at TP 1."""
    tp = arguments.count("tensor_model_parallel_size")
    gbs: int | None = None
    if arguments.given("global_batch_size"):
        gbs = arguments.count("global_batch_size")
    elif arguments.given("step_batch_size_schedule"):
        first = str(arguments.get("step_batch_size_schedule")).split()[:1]
        size = first[0].rpartition(":")[2] if first else ""
        if size.isdigit() and 0 < len(size) < 10:
            gbs = int(size)
            arguments.warn("batch-schedule", f"the first step of the batch schedule, {gbs}, is taken")
        else:
            arguments.problem("step_batch_size_schedule", "must look like '0:384 200B:768'")
    return {
        "tp": tp,
        "pp": arguments.count("pipeline_model_parallel_size"),
        "cp": arguments.count("context_parallel_size"),
        "ep": arguments.count("expert_model_parallel_size"),
        "etp": arguments.count("expert_tensor_parallel_size", fallback=tp),
        "mbs": arguments.count("micro_batch_size"),
        "gbs": gbs,
        "sp": arguments.switch("sequence_parallel") and tp > 1,
    }


def read_megatron_args(
    source: str | Path | Mapping[Any, Any],
    *,
    vocab_size: int | None = None,
    environment: Mapping[str, str] | None = None,
    name: str = "megatron-args",
) -> MegatronJob:
    """The job that Megatron-LM arguments describe.

    `source` is a mapping, or the path of a YAML/JSON mapping, a text of flags or a launch script (never executed).
    `vocab_size` fills in a vocabulary that only the tokenizer knows; `environment` adds variables that decide the
    attention backend. InputError lists every unusable value at once.
    """
    if vocab_size is not None and not 0 < vocab_size < 10**9:
        raise InputError(f"vocabulary size {vocab_size} must be positive")
    arguments = parse(source)
    arguments.environment.update(environment or {})
    missing: list[str] = []
    arguments.count("hidden_size")
    arguments.count("num_attention_heads")
    request = _request(arguments)
    model = read_model(arguments, name, vocab_size, missing)
    if model is not None:
        split = read_split(arguments, model)
        workload = _workload(arguments, model)
        knobs = _knobs(arguments, model, workload.precision)
    problems = arguments.judge()
    if model is None or split is None or problems:
        raise InputError("Megatron-LM arguments cannot be used:\n  " + "\n  ".join(problems))
    for dest in _NOT_COUNTED:
        if arguments.given(dest) and arguments.get(dest) not in (False, None, 0):
            arguments.warn("not-counted", f"--{by_dest()[dest].name} changes memory or time and is not counted")
    pipeline_before_data = arguments.switch("use_tp_pp_dp_mapping")
    if arguments.gpus is None:
        missing.append("gpus")
    if request["gbs"] is None:
        missing.append("global_batch_size")
    request["vpp"] = split.vpp
    return MegatronJob(
        model=model,
        workload=workload,
        layout_request=MappingProxyType(request),
        split=split,
        knobs=knobs,
        gpus=arguments.gpus,
        missing=tuple(missing),
        ignored=arguments.unread(),
        findings=tuple(arguments.findings),
        rank_order="tp-cp-ep-pp-dp" if pipeline_before_data else "tp-cp-ep-dp-pp",
    )
