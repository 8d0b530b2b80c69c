"""Settings beside communication overlap that decide whether it pays: context exchange, CUDA graphs, precision."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.configure.job import Job, preset
from advisor.configure.resolved import MB, ML, Asked, Field, Value
from advisor.spec.layout import CpComm, CudaGraph

CP_WORDS = {CpComm.p2p: "p2p", CpComm.all_gather: "all_gather", CpComm.a2a: "a2a", CpComm.a2a_p2p: "a2a+p2p"}
CONFIG = f"{ML}/core/transformer/transformer_config.py"


def hierarchy(job: Job) -> tuple[int, int] | None:
    """Sizes of the two levels of a2a+p2p: the all-to-all inside the NVLink domain, the ring across; None without it."""
    layout = job.layout
    if job.knobs.cp_comm is not CpComm.a2a_p2p or layout.cp < 2:
        return None
    room = max(1, job.cluster.used_per_domain // layout.tp)
    inner = max(size for size in range(1, layout.cp + 1) if layout.cp % size == 0 and size <= room)
    return inner, layout.cp // inner


def context_fields(job: Job) -> Iterator[Field]:
    """Context-parallel exchange and, for the two-level one, its sizes."""
    layout, word = job.layout, CP_WORDS[job.knobs.cp_comm]
    if layout.cp < 2:
        why = "CP is 1: no exchange"
        yield Field("model", "cp_comm_type", word, None, "automatic" if word == "p2p" else "silent", why, CONFIG)
        return
    why = {
        CpComm.p2p: "keys and values go round a ring beside attention",
        CpComm.all_gather: "keys and values are gathered before attention; the gather shows",
        CpComm.a2a: "heads are swapped for sequence; shows, but moves least per head",
        CpComm.a2a_p2p: "all-to-all inside, ring across",
    }[job.knobs.cp_comm]
    yield Field("model", "cp_comm_type", word, word, "asked", why, CONFIG)
    sizes = hierarchy(job)
    if sizes is not None:
        why = f"product is CP {layout.cp}; the inner level stays in an NVLink domain"
        yield Field("model", "hierarchical_context_parallel_sizes", None, sizes, "automatic", why, f"{MB}/config.py")


def graph_settings(job: Job, target: str) -> dict[str, Value]:
    """CUDA-graph fields of the model in the spelling of a Bridge version; a scope of none is spelled out."""
    version = preset("versions.yaml")["bridge"][target]
    graph = job.knobs.cuda_graph
    if graph is CudaGraph.none:
        return {"cuda_graph_impl": "none"}
    if graph is CudaGraph.full_iteration:
        return {name: tuple(v) if isinstance(v, list) else v for name, v in version["full_iteration"].items()}
    modules = ("attn", "moe_router", "moe_preprocess") if job.model.is_moe else ("attn",)
    return {"cuda_graph_impl": "transformer_engine", version["cuda_graph_modules"]: modules}


def graph_fields(job: Job, asked: Asked) -> Iterator[Field]:
    """CUDA graphs, and what has to be set with them."""
    graph = job.knobs.cuda_graph
    why = {
        CudaGraph.none: "no capture: the host launches every kernel",
        CudaGraph.scoped: "Transformer Engine graphs of the parts whose shapes do not change",
        CudaGraph.full_iteration: "one graph per iteration; every shape must be static",
    }[graph]
    for name, value in graph_settings(job, asked.target).items():
        yield Field("model", name, value, value, "asked", why, CONFIG)
    if graph is CudaGraph.none:
        return
    both = "needed on both sides; one of them alone turns on the other"
    yield Field("model", "use_te_rng_tracker", None, True, "automatic", both, f"{MB}/config.py")
    yield Field("rng", "te_rng_tracker", None, True, "automatic", both, f"{MB}/config.py")
    if graph is CudaGraph.full_iteration:
        why = "a captured iteration cannot stop at a NaN; validate() refuses the check"
        yield Field("rerun_state_machine", "check_for_nan_in_loss", None, False, "automatic", why, f"{MB}/config.py")


def precision_fields(job: Job) -> Iterator[Field]:
    """Knobs that look like DDP but belong to mixed precision, which overwrites them there."""
    wide = job.knobs.grad_dtype == "fp32"
    why = "set on mixed_precision: it overwrites the same field of cfg.ddp"
    source = f"{MB}/mixed_precision.py"
    yield Field("mixed_precision", "grad_reduce_in_fp32", wide, wide, "asked", why, source)
    if job.workload.precision.quantised:
        gather = job.workload.fp8_params
        yield Field("mixed_precision", "fp8_param_gather", gather, gather, "asked", why, source)
