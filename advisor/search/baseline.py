"""The vendor's published recipe for a model, GPU and count, as a layout with knobs to compare a plan with."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from advisor import data
from advisor.search.request import Request
from advisor.search.single import Choice, judge, make_layout
from advisor.spec.layout import OFFLOAD_MODULES, RECOMPUTE_MODULES, CpComm, CudaGraph, Dispatcher, Fsdp, Knobs
from advisor.spec.model import Model
from advisor.spec.plan import Candidate
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Recipe:
    """One row of presets/vendor_recipes.csv; `row` holds its cells, the names are ours (None = no preset)."""

    name: str
    model: str | None
    gpu: str | None
    precision: str
    task: str
    gpus: int
    seq_len: int
    gbs: int
    row: Mapping[str, str]


@lru_cache(maxsize=1)
def _tables() -> tuple[Mapping[str, Any], tuple[Recipe, ...]]:
    names = yaml.safe_load(data.require("presets", "recipe_models.yaml").read_text(encoding="utf-8"))
    with data.require("presets", "vendor_recipes.csv").open(encoding="utf-8", newline="") as stream:
        rows = tuple(_recipe(row, names) for row in csv.DictReader(stream))
    return names, rows


def _recipe(row: Mapping[str, str], names: Mapping[str, Any]) -> Recipe:
    return Recipe(
        name=row["recipe"],
        model=names["models"][row["model"]],
        gpu=names["gpus"][row["gpu"]],
        precision=names["precisions"][row["precision"]],
        task=row["task"],
        gpus=int(row["gpus"]),
        seq_len=int(row["seq_len"]),
        gbs=int(row["gbs"]),
        row=row,
    )


def recipes() -> tuple[Recipe, ...]:
    """Every published recipe, in the order of the table."""
    return _tables()[1]


def find_recipe(request: Request) -> Recipe | None:
    """The pre-training recipe for the request's model, GPU, count and precision, nearest in sequence and batch."""
    fitting = [
        recipe
        for recipe in recipes()
        if recipe.task == "pretrain"
        and recipe.model == request.model.name
        and recipe.gpu == request.cluster.gpu.name
        and recipe.gpus == request.cluster.gpus
        and recipe.precision == request.workload.precision.name
    ]
    seq_len, gbs = request.workload.seq_len, request.gbs
    return min(fitting, key=lambda one: (one.seq_len != seq_len, abs(one.gbs - gbs), one.name), default=None)


def _number(row: Mapping[str, str], name: str) -> int:
    return int(row[name]) if row[name] else 1


def layout_text(row: Mapping[str, str], workload: Workload) -> str | list[list[str]] | None:
    """The recipe's pipeline layout without prediction modules that the workload does not train."""
    text = row["pipeline_layout"]
    if not text:
        return None
    form = json.loads(text) if text.startswith("[") else text
    if workload.mtp_depth:
        return form
    if isinstance(form, str):
        return form.replace("m", "")
    return [[part for part in stage if part != "mtp"] for stage in form]


def recipe_knobs(recipe: Recipe, model: Model) -> Knobs:
    """The knobs a recipe sets, with what all recipes share (presets/recipe_models.yaml, `common`)."""
    row, names = recipe.row, _tables()[0]
    common = names["common"]
    modules = set(json.loads(row["recompute_modules"] or "[]")) if row["recompute"] == "selective" else set()
    dispatcher = Dispatcher.none
    if model.is_moe:
        dispatcher = Dispatcher[row["flex_backend"] or "deepep"] if row["dispatcher"] == "flex" else Dispatcher.alltoall
    full_iteration = row["cuda_graph"] == "full_iteration" or "full" in row["cuda_graph_scope"]
    graph = CudaGraph.none
    if row["cuda_graph"] not in {"", "none"}:
        graph = CudaGraph.full_iteration if full_iteration else CudaGraph.scoped
    inputs = json.loads(row["offload_modules"] or "[]")
    away = {part for name in inputs for part in names["offload_modules"].get(name, [name])}
    windows = any(getattr(layer.mixer, "window", None) or getattr(layer.mixer, "sinks", False) for layer in model.kinds)
    aware = row["precision_aware_optimizer"] == "true"
    return Knobs(
        recompute=tuple(name for name in RECOMPUTE_MODULES if name in modules),
        full_uniform=int(row["recompute"] == "full"),
        dispatcher=dispatcher,
        ep_overlap=row["ep_overlap"] == "true",
        delay_wgrad=row["delay_wgrad"] == "true",
        fsdp=Fsdp.optim_grads_params if row["fsdp"] == "true" else Fsdp.none,
        cuda_graph=graph,
        offload_layers=names["offload_layers"].get(recipe.name, 0),
        offload_modules=tuple(name for name in OFFLOAD_MODULES if name in away),
        tp_overlap=row["tp_overlap"] == "true" and _number(row, "tp") > 1,
        # The table does not say how context parallelism exchanges; windows and sinks run over a2a only.
        cp_comm=CpComm.a2a if windows and _number(row, "cp") > 1 else CpComm.p2p,
        grad_dtype=common["grad_dtype"],
        moment_dtype=common["precision_aware_moment_dtype"] if aware else "fp32",
    )


def recipe_choice(recipe: Recipe, model: Model, workload: Workload) -> Choice:
    """A recipe as layout and knobs for `model`; raises InputError when its pipeline layout is for other layers."""
    row = recipe.row
    fields: dict[str, Any] = {name: _number(row, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")}
    text = layout_text(row, workload)
    layout = make_layout(model, workload, recipe.gpus, recipe.gbs, fields | {"pipeline_layout": text})
    return Choice(layout, recipe_knobs(recipe, model))


def vendor_baseline(request: Request) -> tuple[Candidate | None, str]:
    """The vendor's recipe for the request as a candidate and its name; None where there is none or it is illegal."""
    recipe = find_recipe(request) if request.workload.task == "pretrain" else None
    if recipe is None:
        return None, ""
    choice = recipe_choice(recipe, request.model, request.workload)
    _, candidate, _ = judge(request, choice)
    return candidate, recipe.name
