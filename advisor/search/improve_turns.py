"""Everything that one turn of one dial can make of a job: sizes, switches, choices, and changes of the whole job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from advisor.cost.buckets import BRIDGE_BUCKET, TRIED_BUCKETS
from advisor.rules.recompute import idle_modules
from advisor.rules.rule import divisors
from advisor.search.dials import knob_words, shown_word
from advisor.search.explain import SIZES, knob_options, with_size
from advisor.search.knobs import recompute_ladder
from advisor.search.offers import WHOLE_REQUEST
from advisor.search.request import Request
from advisor.search.single import Choice
from advisor.search.sources import Setting
from advisor.search.space import vpp_values
from advisor.spec.layout import RECOMPUTE_MODULES, CudaGraph, Dispatcher, Fsdp, Knobs, Layout
from advisor.spec.precision import PRECISIONS, Precision
from advisor.spec.workload import Workload

NOTHING: MappingProxyType[str, Any] = MappingProxyType({})
SWITCHES = ("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "delay_wgrad", "shared_expert_overlap")
FASTER_KERNELS: dict[str, Any] = {
    "attention_impl": "fused",
    "cross_entropy_fused": True,
    "grad_accumulation_fused": True,
    "grouped_gemm": True,
}
"""Fields of the workload whose slow value a configuration can hold without anybody having wanted it."""
CONNECTIONS, MANY_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS", 32
BUCKETS = tuple(sorted((*TRIED_BUCKETS, BRIDGE_BUCKET)))
"""Parameters per bucket that are tried, beside what the framework takes by itself."""
MATHEMATICS = {
    "grad_dtype": "gradients are accumulated and reduced in {after}",
    "moment_dtype": "Adam moments are kept in {after}",
    "main_param_dtype": "main parameters are kept in {after}",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One dial at another value: a size of the layout, fields of the knobs, or the whole job (`request`)."""

    name: str
    size: int | None = None
    sp: bool | None = None
    knobs: MappingProxyType[str, Any] = field(default_factory=lambda: NOTHING)
    request: Request | None = None

    def apply(self, request: Request, choice: Choice) -> tuple[Request, Choice] | None:
        """The job with the dial turned; None where no layout has that value."""
        layout: Layout | None = choice.layout
        if self.size is not None:
            layout = with_size(request, choice.layout, self.name, self.size)
            if layout is not None and self.name == "tp" and _follows(request, choice.layout):
                layout = with_size(request, layout, "etp", self.size)
        elif self.sp is not None:
            layout = dataclasses.replace(choice.layout, sp=self.sp)
        if self.request is not None:
            layout = dataclasses.replace(choice.layout, gbs=self.request.gbs)
            request = self.request
        if layout is None:
            return None
        if self.knobs.get("fsdp") and choice.knobs.fsdp is Fsdp.none:
            request = _without_fusion(request)
        return request, Choice(layout, dataclasses.replace(choice.knobs, **self.knobs), choice.remarks)


def _follows(request: Request, layout: Layout) -> bool:
    """Whether the expert grid of a dense model is Megatron-LM's: there ETP is TP unless somebody says otherwise."""
    return not request.model.is_moe and request.workload.software == "megatron-lm" and layout.etp == layout.tp


@lru_cache(maxsize=8)
def _unfused(workload: Workload) -> Workload:
    """Megatron-LM refuses its fused gradient accumulation under FSDP."""
    return dataclasses.replace(workload, grad_accumulation_fused=False)


def _without_fusion(request: Request) -> Request:
    fused = request.workload.grad_accumulation_fused and request.workload.software == "megatron-lm"
    return request.replaced(workload=_unfused(request.workload)) if fused else request


def turns(request: Request, choice: Choice) -> list[Turn]:
    """Every other value of every dial that the model and the layout have, legal or not, each once."""
    found = [*_sizes(request, choice.layout)]
    seen = {choice.knobs}
    for name, other in (*knob_options(request, choice.layout, choice.knobs), *_more_knobs(request, choice)):
        sharded = other.distributed_optimizer or other.fsdp is not Fsdp.none
        knobs = dataclasses.replace(other, distributed_optimizer=sharded)
        if knobs not in seen:
            seen.add(knobs)
            found.append(Turn(name, knobs=_difference(choice.knobs, knobs)))
    # Muon comes with its own sharding of the optimizer.
    own = {"optimizer": MappingProxyType({"distributed_optimizer": True})}
    found += [Turn(name, knobs=own.get(name, NOTHING), request=changed) for name, changed in _whole_job(request)]
    found += [Turn(name, request=changed) for name, changed in _traffic(request, choice)]
    return found


def _traffic(request: Request, choice: Choice) -> Iterator[tuple[str, Request]]:
    """Pieces of data-parallel traffic where there are any, and hardware queues where the files say how many."""
    layout, knobs, workload = choice.layout, choice.knobs, request.workload
    if layout.dp * layout.cp > 1 and knobs.overlap_grad_reduce and knobs.fsdp is Fsdp.none:
        for size in (*BUCKETS, None):
            if size != workload.bucket_size:
                yield "bucket_size", _with(request, "bucket_size", size)
    if workload.connections is not None:
        # Megatron-LM starts with many queues only where nothing rests on one.
        many = None if workload.software == "megatron-lm" else MANY_QUEUES
        for number in (1, many):
            if number != workload.connections:
                changed = dataclasses.replace(workload, connections=number)
                yield CONNECTIONS, request.replaced(workload=changed)


def _difference(before: Knobs, after: Knobs) -> MappingProxyType[str, Any]:
    names = [one.name for one in dataclasses.fields(Knobs)]
    return MappingProxyType({n: getattr(after, n) for n in names if getattr(before, n) != getattr(after, n)})


def _sizes(request: Request, layout: Layout) -> Iterator[Turn]:
    """Sizes by factors of the number of GPUs, chunks by divisors of the layers, and sequence parallelism."""
    gpus, moe = request.cluster.gpus, request.model.is_moe
    for name in SIZES:
        if name in {"ep", "etp"} and not moe:
            continue
        values: Iterable[int] = divisors(layout.gbs if name == "mbs" else gpus)
        if name == "vpp":
            values = vpp_values(request.model.num_layers, layout.pp)
        for value in values:
            if value != getattr(layout, name):
                yield Turn(name, size=int(value))
    if layout.tp > 1:
        yield Turn("sp", sp=not layout.sp)


def _more_knobs(request: Request, choice: Choice) -> Iterator[tuple[str, Knobs]]:
    """Knobs beyond those that `advisor why` turns."""
    model, knobs = request.model, choice.knobs
    for rung in recompute_ladder(model, request.workload):
        yield "recompute", dataclasses.replace(knobs, **rung)
    idle = {*idle_modules(model)}
    for module in () if knobs.full_uniform or knobs.full_block else RECOMPUTE_MODULES:
        if module in idle and module not in knobs.recompute:
            continue
        kept = {*knobs.recompute} ^ {module}
        modules = tuple(one for one in RECOMPUTE_MODULES if one in kept)
        yield "recompute", dataclasses.replace(knobs, recompute=modules)
    shared = model.moe is not None and model.moe.shared_ffn > 0
    lacking = {*(() if model.is_moe else ("delay_wgrad",)), *(() if shared else ("shared_expert_overlap",))}
    for name in SWITCHES:
        if name in lacking and not getattr(knobs, name):
            continue
        other: dict[str, Any] = {name: not getattr(knobs, name)}
        yield name, dataclasses.replace(knobs, **other)
    sharded = not knobs.distributed_optimizer
    gather = knobs.overlap_param_gather and sharded
    yield (
        "distributed_optimizer",
        dataclasses.replace(knobs, distributed_optimizer=sharded, overlap_param_gather=gather),
    )
    for count in (knobs.optimizer_instances * 2, knobs.optimizer_instances // 2):
        if count >= 1:
            yield "optimizer_instances", dataclasses.replace(knobs, optimizer_instances=count)
    for strategy in Fsdp:
        yield "fsdp", dataclasses.replace(knobs, fsdp=strategy)
    if model.is_moe and knobs.dispatcher is Dispatcher.allgather:
        yield "dispatcher", dataclasses.replace(knobs, dispatcher=Dispatcher.alltoall)
    for dtype in ("fp32", "fp16"):
        yield "main_param_dtype", dataclasses.replace(knobs, main_param_dtype=dtype)


def _whole_job(request: Request) -> Iterator[tuple[str, Request]]:
    """Changes of what is trained or of the kernels it is trained with."""
    workload = request.workload
    for name, fast in FASTER_KERNELS.items():
        if getattr(workload, name) != fast and (name != "grouped_gemm" or request.model.is_moe):
            yield name, _with(request, name, fast)
    for precision in PRECISIONS.values():
        offered = precision.quantised or precision.name == "bf16"
        runs = precision.gemm in request.cluster.gpu.peak_tflops
        if offered and runs and precision.name != workload.precision.name:
            changed = _with(request, "precision", precision)
            stored = dataclasses.replace(changed.workload, fp8_params=_stored(precision, workload))
            yield "precision", changed.replaced(workload=stored)
    for name, change in WHOLE_REQUEST.items():
        made = None if name == "fp8" else change(request)
        if made is not None:
            yield {"muon": "optimizer", "token-drop": "routing"}.get(name, name), made


def _stored(precision: Precision, workload: Workload) -> bool:
    """Whether weights are stored quantised without a word: in Bridge's recipes but blockwise, not in Megatron-LM."""
    return precision.quantised and precision.name != "fp8-blockwise" and workload.software != "megatron-lm"


def _with(request: Request, name: str, value: Any) -> Request:
    workload = dataclasses.replace(request.workload, **{name: value})
    shown = value.name if name == "precision" else value
    return request.with_setting(name, Setting(shown, "a turned dial"), workload=workload)


def words(turn: Turn, before: tuple[Request, Choice], after: tuple[Request, Choice]) -> tuple[str, str]:
    """The dial before and after as people write it."""
    name = turn.name
    if name in SIZES:
        return str(getattr(before[1].layout, name)), str(getattr(after[1].layout, name))
    if name == "sp":
        return shown_word(before[1].layout.sp), shown_word(after[1].layout.sp)
    if turn.request is None:
        return tuple(shown_word(knob_words(choice.knobs)[name]) for _, choice in (before, after))  # type: ignore[return-value]
    return _whole(name, before[0]), _whole(name, after[0])


def _whole(name: str, request: Request) -> str:
    if name == CONNECTIONS:
        return str(request.workload.connections or MANY_QUEUES)
    if name == "bucket_size" and request.workload.bucket_size is None:
        return "default"
    value: Any = request.gbs if name == "gbs" else getattr(request.workload, name)
    return str(value.name) if name == "precision" else shown_word(value)


def mathematics(before: tuple[Request, Choice], after: tuple[Request, Choice]) -> str:
    """What a change does to the mathematics of training; "" where they stay but for rounding and the order of sums."""
    said = []
    for name, sentence in MATHEMATICS.items():
        old, new = (getattr(choice.knobs, name) for _, choice in (before, after))
        if old != new:
            said.append(sentence.format(after=new))
    said += _of_the_job(before[0], after[0])
    request, choice = after
    capped = before[0].workload.capacity_factor is not None and request.workload.capacity_factor is not None
    tokens = [(c.layout.mbs, c.layout.cp, c.layout.tp) for _, c in (before, after)]
    if capped and tokens[0] != tokens[1]:
        said.append("which tokens an expert drops depends on how many a rank routes at once")
    captured = choice.knobs.cuda_graph is CudaGraph.full_iteration is not before[1].knobs.cuda_graph
    if captured and request.model.is_moe and request.workload.routing == "dropless":
        said.append("a captured iteration gives every rank a fixed budget of tokens: those beyond it are dropped")
    return "; ".join(said)


def _of_the_job(before: Request, after: Request) -> Iterator[str]:
    old, new = before.workload, after.workload
    if old.precision.name != new.precision.name:
        yield f"matrix multiplications in {new.precision.name} instead of {old.precision.name}"
    if old.optimizer != new.optimizer:
        yield f"{new.optimizer} in place of {old.optimizer}"
    if _dropping(old) != _dropping(new):
        yield f"tokens over a capacity factor of {new.capacity_factor} are dropped"
    if before.gbs != after.gbs:
        yield f"{after.gbs} sequences per step instead of {before.gbs}"


def _dropping(workload: Workload) -> tuple[bool, float | None]:
    return workload.routing == "token-drop", workload.capacity_factor


def pinned(choice: Choice) -> Mapping[str, Any]:
    """Knobs that a search must keep so that the mathematics stay."""
    return {name: getattr(choice.knobs, name) for name in MATHEMATICS}
