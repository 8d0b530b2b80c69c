"""Random jobs with random requests, and the job that a user-buffer preset is written for; a seed is always the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from advisor.configure.job import Job, preset
from advisor.configure.resolved import Asked
from advisor.search.single import make_layout
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Knobs, Layout
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

MODELS = ("llama3-70b", "llama3.1-405b", "llama3-8b", "minimax-m2", "deepseek-v3", "qwen3-30b-a3b", "qwen3-235b-a22b")
SYSTEMS = ("dgx-h100", "dgx-b200", "gb200-nvl72", "gb300-nvl72", "dgx-a100-80gb", "dgx-h200")
GPUS = {"h100": "dgx-h100", "b200": "dgx-b200"}


def any_split(pp: int, vpp: int) -> PipelineSplit:
    """A split that only has the right number of chunks."""
    return PipelineSplit(pp, vpp, (1,) * (pp * vpp), "layout")


def random_layout(numbers: np.random.Generator, experts: int) -> Layout:
    tp, pp, cp = (int(numbers.choice(sizes)) for sizes in ((1, 2, 4, 8), (1, 1, 2, 4), (1, 1, 2, 4)))
    vpp = int(numbers.choice((1, 2, 4))) if pp > 1 else 1
    dp = int(numbers.choice((1, 2, 8)))
    world = tp * pp * cp * dp
    ep = int(numbers.choice([size for size in (1, 2, 4, 8) if world // pp % size == 0])) if experts else 1
    sp = bool(tp > 1 and numbers.random() < 0.8)
    edp = max(1, world // (pp * ep))
    return Layout(tp, pp, vpp, cp, ep, 1, dp, edp, int(numbers.choice((1, 2))), 1024, sp, any_split(pp, vpp))


def random_knobs(numbers: np.random.Generator, moe: bool) -> Knobs:
    recompute: Any = numbers.choice(["none", "moe", "core_attn", "full"])
    dispatcher = Dispatcher(int(numbers.choice((1, 2, 3, 4)))) if moe else Dispatcher.none
    return Knobs(
        recompute=(str(recompute),) if recompute in ("moe", "core_attn") else (),
        full_uniform=int(recompute == "full"),
        dispatcher=dispatcher,
        shared_expert_overlap=bool(moe and numbers.random() < 0.2),
        distributed_optimizer=bool(numbers.random() < 0.85),
        cp_comm=CpComm(int(numbers.choice((0, 1, 3)))),
        cuda_graph=CudaGraph(int(numbers.choice((0, 0, 0, 1)))),
    )


def random_job(numbers: np.random.Generator) -> Job:
    model = load_model(str(numbers.choice(MODELS)))
    layout = random_layout(numbers, model.moe.experts if model.moe else 0)
    system = load_system(str(numbers.choice(SYSTEMS)))
    cluster = replace(make_cluster(system, system.gpus_per_node), gpus=layout.gpus)
    precision = PRECISIONS[str(numbers.choice(("bf16", "fp8-current", "mxfp8")))]
    depth = int(numbers.choice((0, 0, 1))) if model.mtp else 0
    workload = Workload(seq_len=int(numbers.choice((2048, 4096, 8192))), precision=precision, mtp_depth=depth)
    return Job(model, cluster, workload, layout, random_knobs(numbers, model.is_moe))


def random_asked(numbers: np.random.Generator) -> Asked:
    """Every field left to Bridge two times in three."""

    def maybe(*values: Any) -> Any:
        return None if numbers.random() < 2 / 3 else values[int(numbers.integers(len(values)))]

    return Asked(
        tp_comm_overlap=bool(numbers.random() < 0.7),
        overlap_p2p_comm=maybe(True, False),
        batch_p2p_comm=maybe(True, False),
        overlap_grad_reduce=maybe(True, False),
        overlap_param_gather=maybe(True, False),
        overlap_param_gather_with_optimizer_step=maybe(True, False),
        align_param_gather=maybe(True, False),
        bucket_size=maybe(40_000_000, 268_435_456),
        defer_embedding_wgrad_compute=maybe(True, False),
        wgrad_deferral_limit=maybe(0, 22),
        overlap_moe_expert_parallel_comm=maybe(True, False),
        delay_wgrad_compute=maybe(True, False),
        transformer_engine=None if numbers.random() < 0.1 else "2.12",
        target="0.3",
    )


def job_for_preset(name: str) -> Job:
    """The job whose shape the name of a user-buffer preset spells, of a model with that hidden size."""
    row = preset("userbuffers.yaml")["presets"][name]
    model = replace(load_model("llama3-70b"), hidden=int(row["hidden_size"]))
    cluster = make_cluster(load_system(GPUS[row["gpu_arch"]]), 64)
    precision = PRECISIONS["fp8-current" if row["precision"] == "fp8" else "bf16"]
    workload = Workload(seq_len=int(row["seq_len"]), precision=precision)
    fields = {"tp": row["tp"], "cp": row["cp"], "mbs": row["mbs"]}
    return Job(model, cluster, workload, make_layout(model, workload, 64, 256, fields), Knobs())
