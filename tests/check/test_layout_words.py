"""Bare layout flags as people write them: words, aliases, pairs, negations, and what is none of them."""

from __future__ import annotations

import pytest

from advisor.check.files import read_text
from advisor.check.readers.flags import tables
from advisor.search.options import EstimateOptions

SIZES = {"model.tensor_model_parallel_size": 2, "model.pipeline_model_parallel_size": 4}
FORMS = [
    "--gpus 64 --tp 2 --pp 4", "--gpus=64 --tp=2 --pp=4", "-tp 2 -pp 4 --gpus 64", "TP2 PP4 gpus=64",
    "tp=2 pp=4 gpus=64", "tp=2, pp=4, gpus=64", "tp=2,pp=4,gpus=64", "tp: 2\npp: 4\ngpus: 64", "TP=2 PP=4 GPUS=64",
    "tp = 2\npp = 4\ngpus = 64",
    "--tp 2, --pp 4, --gpus 64", "# what runs\ntp=2; pp=4; gpus=64  # now\n",
    "--tensor-parallel-size 2 --pipeline_parallel_size=4 --num-gpus 64",
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --gpus 64", '{"tp": 2, "pp": 4, "gpus": 64}',
]  # fmt: skip


def values(text, name="layout.txt"):
    reading = read_text(name, text)
    return reading, {key: value.value for key, value in reading.values.items()}


@pytest.mark.parametrize("text", FORMS)
def test_every_form_says_the_same(text):
    reading, found = values(text)
    assert (reading.kind, reading.gpus) == ("layout", 64)
    assert found == SIZES
    assert not reading.notes
    assert all(value.line > 0 for value in reading.values.values() if not text.startswith(("{", "TP2")))


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--overlap-grad-reduce", "knob.overlap_grad_reduce", True),
        ("--no-overlap-grad-reduce", "knob.overlap_grad_reduce", False),
        ("--overlap-param-gather false", "knob.overlap_param_gather", False),
        ("--no-distributed-optimizer", "knob.distributed_optimizer", False),
        ("--use-distributed-optimizer", "knob.distributed_optimizer", True),
        ("--no-sp", "model.sequence_parallel", False),
        ("--no-overlap-p2p", "knob.overlap_p2p", False),
        ("--fsdp optim_grads", "knob.fsdp", "optim_grads"),
        ("--cuda-graphs scoped", "knob.cuda_graph", "scoped"),
        ("--seqlen 8192", "model.seq_length", 8192),
        ("--microbatch 2", "train.micro_batch_size", 2),
        ("--recompute moe_act,mlp", "knob.recompute", "moe_act,mlp"),
        ("--bucket-size 40000000", "knob.bucket_size", 40_000_000),
    ],
)
def test_words_beside_the_sizes(words, key, value):
    reading, found = values(f"--gpus 64 --tp 2 {words} --pp 4")
    assert reading.kind == "layout"
    assert found == SIZES | {key: value}


@pytest.mark.parametrize("word", sorted({*EstimateOptions.__annotations__} - {"given_by", "anchor"}))
def test_every_option_of_estimate_about_the_job_is_a_word(word):
    left_out = {"router_stats", "measured_tflops", "mode", "batch", "context", "profile"}
    assert word in left_out or word.replace("_", "-") in tables()["layout"]


def test_a_typing_error_among_layout_flags_is_told_with_the_closest_word():
    reading, found = values("--gpus 64 --tp 2 --pp 4 --recomput full --overlap-grad-reduc")
    assert found == SIZES
    assert [(note.severity, note.fix) for note in reading.notes] == [
        ("stop", "did you mean --recompute?"), ("stop", "did you mean --overlap-grad-reduce?"),
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["--tp two", "--gpus 0", "--tp", "--tp 1.5", "--gpus", "--gpus many", "--mbs [1,2]"])
def test_a_size_that_is_no_count_is_told(word):
    (note,) = read_text("file.txt", f"--pp 2 {word}").notes
    assert (note.rule, note.severity) == ("argument-value", "stop")
    assert "whole number" in note.message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("--num-layers 8 --hidden-size 64 --use-distributed-optimizer --overlap-grad-reduce", "megatron-args"),
        ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", "megatron-args"),
        ("--tensor-model-parallel-size 2 --swiglu --gpus 8", "megatron-args"),
        ("NCCL_DEBUG=INFO\nTP=2\n", "environment"),
        ("model.tensor_model_parallel_size=2 train.micro_batch_size=1", "bridge-overrides"),
    ],
)
def test_what_is_no_layout(text, kind):
    assert read_text("file.txt", text).kind == kind
