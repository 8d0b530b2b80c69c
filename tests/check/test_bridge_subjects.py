"""What improve reads of a Bridge configuration beyond its file: its recipe in each release, its objects, its stages."""

from __future__ import annotations

import pytest

from advisor.check.recipe_settings import recipe_settings
from advisor.check.run import read_setup
from advisor.check.subject import read_subject
from advisor.check.subject.edits import edits, written
from advisor.check.subject.rewrite import rewritten
from advisor.errors import InputError
from advisor.export.subject import versions
from advisor.search.improve_turns import turns

RECIPE = "--recipe qwen3_30b_a3b_pretrain_config train.global_batch_size=512 train.micro_batch_size=1 "
OPTIONS = {"gpus": "64", "system": "dgx-h100"}


def subject_of(folder, text, version):
    path = folder / "job.sh"
    path.write_text(f"torchrun run_recipe.py {text}\n", encoding="utf-8")
    return read_subject(path, OPTIONS, version=version)


def turned(subject, name, **knobs):
    """The edits of one change."""
    found = (one for one in turns(subject.request, subject.asked) if one.name == name)
    turn = next(one for one in found if knobs.items() <= one.knobs.items())
    return edits(subject, *turn.apply(subject.request, subject.asked))


def test_a_recipe_holds_other_settings_in_each_release(tmp_path):
    old, new = (subject_of(tmp_path, RECIPE, version).asked.knobs for version in ("0.3", "0.6"))
    assert (old.full_uniform, old.dispatcher) != (new.full_uniform, new.dispatcher)
    assert (old.full_uniform, old.dispatcher.name) == (1, "deepep")
    for version in versions("bridge"):
        assert recipe_settings("no_such_recipe_config", version) == {}


def test_a_change_of_recompute_takes_the_rest_of_the_recipe_s_along(tmp_path):
    said = {one.key: one.value for one in turned(subject_of(tmp_path, RECIPE, "0.3"), "recompute", full_uniform=0,
                                                 recompute=("moe_act",))}  # fmt: skip
    assert said["model.recompute_granularity"] == "selective"
    assert said["model.recompute_method"] is None
    assert said["model.recompute_num_layers"] is None


def test_fields_of_graphs_bear_the_names_of_the_release(tmp_path):
    for version, field in (("0.3", "model.cuda_graph_scope"), ("0.6", "model.cuda_graph_modules")):
        subject = subject_of(tmp_path, "--recipe llama3_8b_pretrain_config train.global_batch_size=512", version)
        assert field in {one.key for one in turned(subject, "cuda_graph")}


def test_precision_is_replaced_whole_and_read_back(tmp_path):
    subject = subject_of(tmp_path, f"{RECIPE} mixed_precision=bf16_mixed", "0.3")
    said = turned(subject, "grad_dtype")
    (edit,) = said
    assert written(subject, edit).startswith("++mixed_precision=null ++mixed_precision={_target_:megatron.bridge.")
    path = tmp_path / "edited.sh"
    path.write_text(rewritten(subject, said), encoding="utf-8")
    again = read_subject(path, OPTIONS, version="0.3")
    assert (again.asked.knobs.grad_dtype, again.request.workload.precision.name) == ("bf16", "bf16")
    back = rewritten(again, turned(again, "grad_dtype"))
    assert back.count("mixed_precision=") == 1
    assert "mixed_precision=bf16_mixed" in back


def test_an_object_in_hydra_s_grammar_is_read_by_its_fields(tmp_path):
    path = tmp_path / "overrides.txt"
    path.write_text("--recipe llama3_8b_pretrain_config '++comm_overlap={_target_:a.b.CommOverlapConfig,"
                    "tp_comm_overlap:true,bucket_size:5,tp_comm_overlap_cfg:{x:{method:'\\''a'\\''}}}'\n")  # fmt: skip
    _, setup = read_setup([path])
    assert setup.values["comm_overlap"].value == "CommOverlapConfig"
    assert setup.values["comm_overlap.tp_comm_overlap"].value is True
    assert setup.values["comm_overlap.bucket_size"].value == 5


@pytest.mark.parametrize(
    ("said", "layers"),
    [
        ("", (16, 16)),
        ("model.num_layers_in_first_pipeline_stage=14", (14, 18)),
        ("model.account_for_embedding_in_pipeline_split=true model.account_for_loss_in_pipeline_split=true", (16, 16)),
        ("model.virtual_pipeline_model_parallel_size=2", (8, 8, 8, 8)),
    ],
)
def test_stages_are_dealt_as_bridge_deals_them(tmp_path, said, layers):
    text = f"--recipe llama3_8b_pretrain_config train.global_batch_size=512 model.pipeline_model_parallel_size=2 {said}"
    assert subject_of(tmp_path, text, "0.6").asked.layout.split.layers == layers


@pytest.mark.parametrize("version", ["0.5", "newest", "-1"])
def test_a_release_that_is_not_known_is_refused(tmp_path, version):
    with pytest.raises(InputError, match="target-version"):
        subject_of(tmp_path, RECIPE, version)
