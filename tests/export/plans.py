"""Layouts to export: three that golden files hold, as the JSON that `advisor estimate` writes, and random ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from advisor.api import estimate
from advisor.configure.chosen import Chosen, read_plan
from advisor.errors import AdvisorError
from advisor.search.dials import knob_words
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp, Knobs

# Layouts by hand, so that a change of the search does not change what is exported.
GOLDEN: dict[str, dict[str, Any]] = {
    "minimax-m2": {
        "gpus": 64, "system": "dgx-h100", "gbs": 512, "tp": 2, "pp": 4, "vpp": 16, "ep": 16, "mbs": 2,
        "recompute": "moe_act", "dispatcher": "hybridep", "ep_overlap": True, "delay_wgrad": True,
        "optimizer_offload": 1.0,
    },
    "llama3-70b": {
        "gpus": 64, "system": "dgx-h100", "gbs": 128, "seq_len": 8192, "tp": 4, "pp": 4, "vpp": 5, "cp": 2,
        "tp_overlap": True, "precision": "bf16", "recompute": "core_attn",
    },
    "deepseek-v3": {
        "gpus": 1024, "system": "gb200-nvl72", "gbs": 8192, "tp": 1, "pp": 4, "vpp": 4, "ep": 64, "mbs": 1,
        "used_per_domain": 64, "mtp_depth": 1, "precision": "mxfp8", "recompute": "mla_up_proj",
        "dispatcher": "hybridep", "cuda_graph": "scoped", "moment_dtype": "bf16",
    },
}  # fmt: skip
MODELS = ("llama3-70b", "llama3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "minimax-m2", "deepseek-v3", "mixtral-8x7b",
          "gpt-oss-20b", "nemotron-4-15b", "qwen3-14b", "gpt3-175b", "glm-4.5-air", "deepseek-v2-lite")  # fmt: skip


@lru_cache(maxsize=8)
def record(name: str) -> str:
    """The JSON of the estimate of one of the golden layouts."""
    options = dict(GOLDEN[name])
    return json.dumps(estimate(name, options.pop("gpus"), **options).to_dict())


def golden_plan(name: str, folder: Path) -> Path:
    path = folder / f"{name}.json"
    path.write_text(record(name), encoding="utf-8")
    return path


def golden_chosen(name: str, folder: Path) -> Chosen:
    """A golden layout as an exporter gets it; its source is named without the folder."""
    return dataclasses.replace(read_plan(golden_plan(name, folder)), source=f"{name}.json")


def _knobs(numbers: np.random.Generator, moe: bool) -> Knobs:
    def pick(*values: Any) -> Any:
        return values[int(numbers.integers(len(values)))]

    full = pick(0, 0, 0, 1)
    fsdp = pick(Fsdp.none, Fsdp.none, Fsdp.none, Fsdp.optim_grads_params)
    moments = pick("fp32", "fp32", "bf16")
    grad = pick("fp32", "fp32", "bf16")
    return Knobs(
        recompute=() if full else pick((), ("core_attn",), ("mlp",), ("layernorm", "mlp")),
        full_uniform=full and pick(1, 0),
        full_block=full and pick(0, 2),
        dispatcher=pick(Dispatcher.alltoall, Dispatcher.hybridep, Dispatcher.deepep) if moe else Dispatcher.none,
        ep_overlap=bool(moe and pick(False, True)),
        fsdp=fsdp,
        cuda_graph=pick(CudaGraph.none, CudaGraph.none, CudaGraph.scoped),
        optimizer_offload=pick(0.0, 0.0, 0.5, 1.0),
        cp_comm=pick(CpComm.p2p, CpComm.all_gather, CpComm.a2a),
        tp_overlap=pick(False, True),
        overlap_grad_reduce=True,
        overlap_param_gather=pick(True, True, False),
        overlap_p2p=pick(True, True, False),
        moment_dtype=moments,
        grad_dtype=grad,
    )


def random_plans(count: int, seed: int = 1) -> Iterator[Chosen]:
    """`count` legal layouts of random models with random knobs."""
    numbers = np.random.default_rng(seed)
    found = 0
    while found < count:
        name = str(numbers.choice(MODELS))
        tp, pp, cp, ep = (int(numbers.choice(sizes)) for sizes in ((1, 2, 4), (1, 2, 4), (1, 1, 2), (1, 2, 4, 8)))
        options: dict[str, Any] = {
            "system": str(numbers.choice(("dgx-h100", "dgx-b200"))), "tp": tp, "pp": pp, "cp": cp,
            "vpp": int(numbers.choice((1, 2, 4))) if pp > 1 else 1, "ep": ep, "mbs": int(numbers.choice((1, 2))),
            "gbs": 256, "precision": str(numbers.choice(("bf16", "fp8-current"))),
            "seq_len": int(numbers.choice((2048, 4096))),
        }  # fmt: skip
        moe = name in {"qwen3-30b-a3b", "qwen3-235b-a22b", "minimax-m2", "deepseek-v3", "mixtral-8x7b", "gpt-oss-20b",
                       "glm-4.5-air", "deepseek-v2-lite"}  # fmt: skip
        if not moe:
            options["ep"] = 1
        words = knob_words(_knobs(numbers, moe))
        still = not words["recompute"] and words["cuda_graph"] == "none"
        words["offload_layers"] = 3 if still and pp == 1 else 0
        if moe and not words["offload_layers"]:
            words["offload_modules"] = ["expert_fc1", "moe_act"] if options["mbs"] == 2 else ["core_attn", "attn_proj"]
        try:
            answer = estimate(name, 64, **options, **words)
        except AdvisorError:
            continue
        if answer.verdict == "illegal":
            continue
        found += 1
        assert answer.candidate is not None
        yield Chosen(answer.request, answer.candidate, f"{name}.json", 1)
