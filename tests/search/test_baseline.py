"""Vendor recipes: every row is read, names map to presets that exist, layouts are Megatron's."""

from __future__ import annotations

import csv
from collections import Counter

import pytest
import yaml

from advisor import data
from advisor.rules import findings
from advisor.search.baseline import find_recipe, recipe_choice, recipes, vendor_baseline
from advisor.search.request import resolve
from advisor.search.sources import Setting
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp
from advisor.spec.load.model import load_model, model_names
from advisor.spec.load.system import load_gpu, load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from advisor.spec.workload import Workload


def _request(model, gpus, system="dgx-h100", **more):
    given = {"model": model, "gpus": gpus, "system": system, **more}
    return resolve({name: Setting(value, "argument") for name, value in given.items()})


def _recipe(name):
    (found,) = [recipe for recipe in recipes() if recipe.name == name]
    return found


def test_the_name_table_covers_the_recipes_and_points_at_presets():
    names = yaml.safe_load(data.find("presets", "recipe_models.yaml").read_text())
    with data.find("presets", "vendor_recipes.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(recipes()) == 430
    for column, table in (("model", "models"), ("gpu", "gpus"), ("precision", "precisions")):
        assert {row[column] for row in rows} == set(names[table])
    assert {name for name in names["models"].values() if name} <= set(model_names())
    assert set(names["precisions"].values()) <= set(PRECISIONS)
    for gpu in filter(None, names["gpus"].values()):
        assert load_gpu(gpu).name == gpu
    assert all(row["source"] for row in rows)


CANNOT_START = {"expert-grid-divides-world": 13, "gbs-divides-by-mbs-dp": 2}
"""Recipes whose layout does not fit the GPU count in their own name: Bridge's recipes, layout rules applied to them."""


def test_recipes_become_layouts_that_fill_the_world():
    count = 0
    for recipe in recipes():
        if recipe.model is None:
            continue
        layout = recipe_choice(recipe, load_model(recipe.model), Workload(seq_len=recipe.seq_len)).layout
        assert layout.tp * layout.pp * layout.cp * layout.dp == recipe.gpus, recipe.name
        assert sum(layout.split.layers) == load_model(recipe.model).num_layers, recipe.name
        count += 1
    assert count > 250


def _stops(recipe):
    model = load_model(recipe.model)
    cluster = make_cluster(load_system(recipe.gpu), recipe.gpus)
    workload = Workload(seq_len=recipe.seq_len, precision=PRECISIONS[recipe.precision])
    choice = recipe_choice(recipe, model, workload)
    found = findings(model, cluster, workload, choice.layout, choice.knobs)
    return {one.rule for one in found if one.severity == "stop"}


def test_layout_rules_reject_the_recipes_that_cannot_start():
    """What runs at the vendor must not be rejected: a rule that fires here besides `CANNOT_START` is wrong."""
    count = Counter()
    for recipe in recipes():
        if recipe.model and recipe.gpu and recipe.task == "pretrain" and recipe.gpus % 8 == 0:
            count.update(_stops(recipe))
    for rule, number in CANNOT_START.items():
        assert count.pop(rule) == number
    assert not count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "deepseek_v3_pretrain_1024gpu_h100_bf16_config",
            {"recompute": ("mla_up_proj", "mlp"), "dispatcher": Dispatcher.hybridep, "cuda_graph": CudaGraph.none,
             "grad_dtype": "bf16", "moment_dtype": "bf16", "fsdp": Fsdp.none, "full_uniform": 0},
        ),
        (
            "llama3_8b_pretrain_8gpu_h100_fp8cs_config",
            {"recompute": (), "full_uniform": 1, "dispatcher": Dispatcher.none, "moment_dtype": "fp32"},
        ),
        ("llama3_8b_pretrain_8gpu_b200_bf16_config", {"cuda_graph": CudaGraph.full_iteration}),
        ("qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config", {"cuda_graph": CudaGraph.scoped, "recompute": ()}),
    ],
)  # fmt: skip
def test_recipe_knobs(name, expected):
    recipe = _recipe(name)
    knobs = recipe_choice(recipe, load_model(recipe.model), Workload()).knobs
    assert {field: getattr(knobs, field) for field in expected} == expected


def test_the_printed_pipeline_layout_is_used():
    recipe = _recipe("deepseek_v3_pretrain_1024gpu_h100_bf16_config")
    layout = recipe_choice(recipe, load_model("deepseek-v3"), Workload()).layout
    assert layout.split.layers == (1, *([2] * 30), 0)
    assert layout.split.mtp_chunk is None
    trained = recipe_choice(recipe, load_model("deepseek-v3"), Workload(mtp_depth=1)).layout
    assert trained.split.mtp_chunk == 31


def test_the_baseline_is_the_recipe_of_model_gpu_count_and_precision():
    assert find_recipe(_request("llama3-70b", 64)).name == "llama3_70b_pretrain_64gpu_h100_bf16_config"
    assert (
        find_recipe(_request("llama3-70b", 64, precision="fp8")).name == "llama3_70b_pretrain_64gpu_h100_fp8cs_config"
    )
    assert find_recipe(_request("llama3-70b", 128)) is None
    assert find_recipe(_request("minimax-m2", 64)) is None
    for_batch = _request("qwen3-235b-a22b", 256, precision="fp8", gbs=600)
    assert find_recipe(for_batch).name == "qwen3_235b_a22b_pretrain_256gpu_h100_fp8cs_large_scale_config"


def test_a_baseline_is_a_candidate_with_its_own_batch():
    candidate, name = vendor_baseline(_request("llama3-70b", 64, seq_len=8192))
    assert name == "llama3_70b_pretrain_64gpu_h100_bf16_config"
    assert (candidate.layout.tp, candidate.layout.pp, candidate.layout.cp, candidate.layout.vpp) == (4, 4, 2, 5)
    assert candidate.layout.gbs == 256
    assert candidate.step is not None
    assert vendor_baseline(_request("llama3-70b", 64, task="sft")) == (None, "")
