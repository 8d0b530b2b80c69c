"""Random jobs for the comparison with megatron-core; a seed always gives the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.search.stages import balanced_split
from advisor.spec.layout import OFFLOAD_MODULES, CudaGraph, Dispatcher, Knobs
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import GroupedQueryAttention, Model, MultiTokenPrediction
from advisor.spec.precision import PRECISIONS
from advisor.spec.split import PipelineSplit
from tests.real.judges import DENSE, EXPERTS, JOB, MLA, Case, make_layout, make_model


def random_grids(count: int, seed: int) -> Iterator[Case]:
    """Worlds up to 256 GPUs; two sizes in three divide what is left of the world, so about half the cases are legal."""
    random = np.random.default_rng(seed)

    def size(left: int) -> int:
        exact = [n for n in range(1, 17) if left % n == 0]
        return int(random.choice(exact if random.random() < 0.8 else [1, 2, 3, 4, 5, 6, 8, 12, 16]))

    for _ in range(count):
        nodes = random.choice([1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16, 32])
        world = int(nodes * 8)
        pp = size(world)
        tp = size(max(world // pp, 1))
        cp = size(max(world // (pp * tp), 1))
        etp = size(max(world // pp, 1)) if random.random() < 0.5 else 1
        ep = size(max(world // (pp * etp), 1))
        vpp = int(random.choice([1, 1, 2]))
        order = str(random.choice(["tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]))
        cluster = replace(make_cluster(load_system("dgx-h100"), world), rank_order=order)
        split = PipelineSplit(pp, vpp, (1,) * (pp * vpp))
        at = make_layout(world, split, tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, gbs=world * 16)
        knobs = Knobs(dispatcher=Dispatcher.alltoall, optimizer_instances=int(random.choice([1, 1, 1, 2, 3])))
        yield Case(make_model(mlp=EXPERTS, layers=pp * vpp), at, knobs, cluster=cluster)


def random_split(random: np.random.Generator, model: Model, pp: int, vpp: int, depth: int) -> PipelineSplit:
    """A split in a random form; not always one that Megatron can build."""
    layers, chunks, home = model.num_layers, pp * vpp, pp * vpp - 1 if depth else None
    form = str(random.choice(["balanced", "even", "account", "uneven", "layout"])) if pp > 1 else "even"
    if form == "balanced" and (split := balanced_split(model, JOB, pp, vpp, depth)) is not None:
        return split
    even = [layers // chunks + (i < layers % chunks) for i in range(chunks)]
    if form == "account":
        embedding, loss = bool(random.random() < 0.5), True
        each, rest = divmod(layers + embedding + loss, chunks)
        counts = [each + (i < rest) for i in range(chunks)]
        counts[0] -= embedding
        counts[-1] -= loss
        if min(counts) >= 0:
            return PipelineSplit(pp, vpp, tuple(counts), "account", home, embedding, loss)
    if form == "uneven":
        first, last = (int(n) for n in random.integers(1, 5, 2))
        middle, left = divmod(layers - (first + last) * vpp, max((pp - 2) * vpp, 1))
        counts = [first, *[middle] * (pp - 2), last] * vpp
        counts[-2 if pp > 2 else -1] += left
        if min(counts) >= 0:
            return PipelineSplit(pp, vpp, tuple(counts), "uneven", home)
    if form == "layout":
        counts = random.multinomial(layers, [1 / chunks] * chunks)
        home = int(random.integers(0, chunks)) if depth else None
        return PipelineSplit(pp, vpp, tuple(int(n) for n in counts), "layout", home)
    return PipelineSplit(pp, vpp, tuple(even), "even", home)


def random_model(random: np.random.Generator) -> Model:
    heads = int(random.choice([8, 12, 16]))
    mixer: Any = GroupedQueryAttention(heads, int(random.choice([1, 2, 3, 4, 6, 8])), 32, 32)
    if random.random() < 0.25:
        mixer = replace(MLA, heads=heads)
    mlp: Any = replace(DENSE, bias=bool(random.random() < 0.1))
    if random.random() < 0.7:
        shared = int(random.choice([0, 256]))
        mlp = replace(EXPERTS, shared_ffn=shared, bias=bool(not shared and random.random() < 0.1))
    return make_model(mixer, mlp, int(random.choice([4, 7, 8, 12, 13, 16])), mtp=MultiTokenPrediction(1, (0,)))


def random_knobs(random: np.random.Generator, model: Model) -> Knobs:
    def flip(chance: float) -> bool:
        return bool(random.random() < chance)

    repeated = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
    recompute = tuple(name for name in repeated if flip(0.12)) if flip(0.6) else ()
    full = int(flip(0.15)) if not recompute else 0
    overlap = model.is_moe and flip(0.35)
    kinds = [Dispatcher.allgather, Dispatcher.alltoall, Dispatcher.alltoall, Dispatcher.deepep, Dispatcher.hybridep]
    graph = CudaGraph(int(random.choice([0, 0, 1, 2])))
    # This constructor takes no graph of a whole iteration beside offloaded layers, later ones do.
    layers = int(random.choice([1, 3, 8])) if graph != CudaGraph.full_iteration and flip(0.15) else 0
    modules = tuple(name for name in OFFLOAD_MODULES if flip(0.3)) if flip(0.15) else ()
    return Knobs(
        recompute=recompute,
        offload_layers=layers,
        offload_modules=modules,
        full_uniform=full,
        dispatcher=kinds[int(random.integers(len(kinds)))] if model.is_moe else Dispatcher.none,
        ep_overlap=overlap,
        delay_wgrad=flip(0.5 if overlap else 0.03),
        shared_expert_overlap=model.is_moe and model.moe.shared_ffn > 0 and flip(0.2),
        cuda_graph=graph,
    )


def random_jobs(count: int, seed: int) -> Iterator[Case]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        model = random_model(random)
        pp, vpp = int(random.choice([1, 1, 2, 3, 4])), int(random.choice([1, 1, 2, 3]))
        vpp = vpp if pp > 1 else 1
        tp, ep = int(random.choice([1, 1, 2, 3, 4, 8])), int(random.choice([1, 2, 4, 8]))
        etp = int(random.choice([1, 1, 2]))
        ep = ep if model.is_moe or random.random() < 0.1 else 1
        capacity, pad = [(None, False), (None, False), (1.5, False), (1.5, True), (None, True)][int(random.integers(5))]
        job = replace(
            JOB,
            precision=PRECISIONS[str(random.choice(["bf16", "bf16", "bf16", "fp32", "fp8-current", "fp8-delayed"]))],
            capacity_factor=capacity if model.is_moe else None,
            pad_to_capacity=pad and model.is_moe,
            attention_dropout=float(random.choice([0.0, 0.0, 0.1])),
            hidden_dropout=float(random.choice([0.0, 0.0, 0.1])),
            mtp_depth=int(random.choice([0, 0, 0, 1, 2])),
        )
        split = random_split(random, model, pp, vpp, job.mtp_depth)
        sp = tp > 1 if random.random() < 0.95 else tp == 1
        at = make_layout(64, split, tp=tp, pp=pp, vpp=vpp, ep=ep, etp=etp, sp=sp)
        yield Case(model, at, random_knobs(random, model), job)
