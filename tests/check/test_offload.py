"""Activations in host memory, read from and written into the files of both frameworks."""

from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

from advisor import data
from advisor.check.subject import read_subject
from advisor.check.subject.edits import edits
from advisor.check.subject.rewrite import rewritten
from advisor.search.baseline import recipes
from advisor.spec.layout import Fsdp, Knobs
from advisor.spec.load.megatron import read_megatron_args

FLAGS = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 \\
  --normalization RMSNorm --untie-embeddings-and-output-weights --use-distributed-optimizer \\
  --transformer-impl transformer_engine {more}
"""
OVERRIDES = "--model llama3_8b --mode pretrain\ntrain.global_batch_size=64\ntrain.micro_batch_size=1\n{more}"
PYTHON = """from megatron.bridge.recipes.llama import llama3_8b_pretrain_config


def make():
    cfg = llama3_8b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.context_parallel_size = 1
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
{more}    return cfg
"""
OPTIONS = {"gpus": "8", "system": "dgx-h100"}
LAYERS = {"offload_layers": 12}
MODULES = {"offload_modules": ("core_attn", "attn_proj")}
FORMS = {
    "job.sh": (
        FLAGS,
        {"offload_layers": "--cpu-offloading-num-layers 12",
         "offload_modules": "--fine-grained-activation-offloading --offload-modules core_attn attn_proj"},
    ),
    "overrides.txt": (
        OVERRIDES,
        {"offload_layers": "model.cpu_offloading=true\nmodel.cpu_offloading_num_layers=12\n",
         "offload_modules": "model.fine_grained_activation_offloading=true\n"
                            "model.offload_modules=[core_attn,attn_proj]\n"},
    ),
    "job.py": (
        PYTHON,
        {"offload_layers": "    cfg.model.cpu_offloading = True\n    cfg.model.cpu_offloading_num_layers = 12\n",
         "offload_modules": "    cfg.model.fine_grained_activation_offloading = True\n"
                            '    cfg.model.offload_modules = ["core_attn", "attn_proj"]\n'},
    ),
}  # fmt: skip


def written(folder, name, more=""):
    path = folder / name
    path.write_text(FORMS[name][0].format(more=more), encoding="utf-8")
    return path


@pytest.mark.parametrize("wanted", [LAYERS, MODULES], ids=["layers", "modules"])
@pytest.mark.parametrize("name", FORMS)
def test_a_file_that_offloads_is_read(tmp_path, name, wanted):
    (knob,) = wanted
    subject = read_subject(written(tmp_path, name, FORMS[name][1][knob]), OPTIONS)
    plain = read_subject(written(tmp_path, name), OPTIONS)
    assert {**dataclasses.asdict(plain.asked.knobs), **wanted} == dataclasses.asdict(subject.asked.knobs)


@pytest.mark.parametrize("wanted", [LAYERS, MODULES], ids=["layers", "modules"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_turning_it_on_and_off_holds(tmp_path, name, wanted, on):
    (knob,) = wanted
    subject = read_subject(written(tmp_path, name, "" if on else FORMS[name][1][knob]), OPTIONS)
    target = wanted if on else {knob: getattr(Knobs(), knob)}
    choice = dataclasses.replace(subject.asked, knobs=dataclasses.replace(subject.asked.knobs, **target))
    said = edits(subject, subject.request, choice)
    assert said
    path = tmp_path / f"edited-{name}"
    path.write_text(rewritten(subject, said), encoding="utf-8")
    assert read_subject(path, OPTIONS).asked.knobs == choice.knobs
    if name != "job.sh":  # Transformer Engine before 2.10 counts with the number of layers also where it is off
        values = {edit.key: edit.value for edit in said}
        assert values.get("model.cpu_offloading_num_layers", 0) is not None


def test_a_number_of_layers_that_nothing_switches_on_is_none(tmp_path):
    path = written(tmp_path, "overrides.txt", "model.cpu_offloading_num_layers=12\n")
    assert read_subject(path, OPTIONS).asked.knobs.offload_layers == 0


def test_a_recipe_of_the_vendor_brings_its_layers(tmp_path):
    path = tmp_path / "recipe.txt"
    path.write_text("--recipe llama3_70b_pretrain_64gpu_gb300_fp8cs_config --mode pretrain\n", encoding="utf-8")
    knobs = read_subject(path, {"gpus": "64", "system": "gb300-nvl72"}).asked.knobs
    assert (knobs.offload_layers, knobs.fsdp) == (20, Fsdp.optim_grads_params)


def test_flags_that_keep_inputs_on_the_gpu_are_named(tmp_path):
    path = written(tmp_path, "job.sh", "--fine-grained-activation-offloading --offload-modules core_attn attn_proj"
                   " --activation-offload-fraction 0.5")  # fmt: skip
    job = read_megatron_args(str(path))
    assert job.knobs.offload_modules == ("core_attn", "attn_proj")
    assert "--activation-offload-fraction" in " ".join(one.message for one in job.findings)
    assert not [one for one in job.ignored if "offload" in one]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--offload-layers", "-1"], "whole number from 0"),
        (["--offload-layers", "many"], "whole number from 0"),
        (["--offload-modules", "mlp"], "does not exist"),
        (["--offload-modules", "attn_proj"], "core_attn"),
        (["--offload-layers", "32"], "offload_layers=30"),
        (["--offload-layers", "4", "--offload-modules", "core_attn"], "not both"),
        (["--offload-layers", "4", "--pp", "2"], "without a pipeline only"),
        (["--offload-layers", "4", "--recompute", "full"], "not both"),
        (["--offload-layers", "4", "--cuda-graph", "scoped"], "scoped CUDA graphs"),
    ],
)
def test_what_megatron_refuses_is_refused_in_one_sentence(cli, words, said):
    ran = cli("estimate", "--model", "llama3-8b", "--gpus", "8", *words)
    assert ran.code in (1, 2)
    assert said in " ".join((ran.out + ran.err).split())
    assert "Traceback" not in ran.out + ran.err


def test_an_estimate_says_what_waits_on_the_host(cli):
    words = ("estimate", "--model", "llama3-8b", "--gpus", "8", "--mbs", "4", "--format", "json")
    plain, ran = (json.loads(cli(*words, *more).out) for more in ((), ("--offload-layers", "16")))
    before, after = (one["candidate"]["memory"] for one in (plain, ran))
    assert ran["candidate"]["knobs"]["offload_layers"] == 16
    assert after["host_gib"] > before["host_gib"]
    assert after["peak_device_gib"] < before["peak_device_gib"]
    assert "exposed_offload" in ran["candidate"]["step"]["terms_s"]


def test_recipes_that_offload_are_of_the_table():
    names = yaml.safe_load(data.require("presets", "recipe_models.yaml").read_text(encoding="utf-8"))
    known = {one.name: one for one in recipes()}
    assert len(names["offload_layers"]) == 15
    for name, layers in names["offload_layers"].items():
        assert known[name].row["fsdp"] == "true"
        assert (known[name].row["pp"], known[name].row["recompute_modules"]) in {("1", ""), ("1", "[]")}
        assert 0 < layers < 80
