"""Router statistics: the forms that are read, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from advisor.errors import InputError
from advisor.spec.load.model import load_model
from advisor.spec.load.router import read_router_stats
from advisor.spec.router import shares

LAYERS, EXPERTS = 48, 128


@pytest.fixture(scope="module")
def model():
    return load_model("qwen3-30b-a3b")


def tokens(layer: int, expert: int) -> int:
    return 100 + 7 * ((layer * 31 + expert * 17) % 23)


def long_form(first: int = 0) -> list[str]:
    rows = [f"{layer + first},{one},{tokens(layer, one)}" for layer in range(LAYERS) for one in range(EXPERTS)]
    return ["layer,expert,tokens", *rows]


def write(folder: Path, lines: list[str], name: str = "stats.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def expected() -> np.ndarray:
    counts = np.array([[tokens(layer, one) for one in range(EXPERTS)] for layer in range(LAYERS)], dtype=float)
    return counts / counts.mean(axis=1, keepdims=True)


def agree(stats) -> None:
    assert stats.layers == tuple(range(LAYERS))
    np.testing.assert_allclose(np.stack(stats.loads), expected(), rtol=1e-9)


@pytest.mark.parametrize("first", [0, 1])
def test_a_line_per_expert_with_layers_from_0_or_1(tmp_path, model, first) -> None:
    stats = read_router_stats(write(tmp_path, ["# 200 steps", "", *long_form(first)]), model)
    agree(stats)
    assert stats.first == first


@pytest.mark.parametrize("name", ["{}", "expert_{}", "e{}"])
def test_a_column_per_expert(tmp_path, model, name) -> None:
    header = ",".join(["Layer", *(name.format(one) for one in range(EXPERTS))])
    rows = [",".join(map(str, [layer, *(tokens(layer, e) for e in range(EXPERTS))])) for layer in range(LAYERS)]
    agree(read_router_stats(write(tmp_path, [header, *rows]), model))


def test_iterations_are_added_up(tmp_path, model) -> None:
    rows = [f"{step},{line}" for step in (10, 20) for line in long_form()[1:]]
    agree(read_router_stats(write(tmp_path, ["iteration,layer,expert,tokens", *rows]), model))


def saved(folder: Path, ep: int, layers: int = LAYERS, skip: int = -1) -> Path:
    """Files as megatron/training/activation_logging.py writes them: local experts of every rank, two microbatches."""
    local = EXPERTS // ep
    for rank in range(2 * ep):
        lines = []
        for layer in range(layers):
            own = [tokens(layer, one) for one in range(rank % ep * local, (rank % ep + 1) * local)]
            lines.append(json.dumps({"iter": 100, "block": "decoder", "layer": layer, "tpe": [own, own]}))
        if rank != skip:
            write(folder, lines, f"rank{rank}.jsonl")
    return folder


@pytest.mark.parametrize("ep", [1, 4, 8])
def test_tokens_per_expert_that_megatron_saves(tmp_path, model, ep) -> None:
    agree(read_router_stats(saved(tmp_path, ep), model))


def test_a_missing_rank_is_missed(tmp_path, model) -> None:
    folder = saved(tmp_path, 8, skip=3)
    (folder / "rank11.jsonl").unlink()
    with pytest.raises(InputError, match="counts 112 of 128 experts, expert 48 is missing"):
        read_router_stats(folder, model)


def test_files_of_a_pipeline_are_refused(tmp_path, model) -> None:
    with pytest.raises(InputError, match=r"missing: 24, 25.*") as caught:
        read_router_stats(saved(tmp_path, 4, layers=24), model)
    assert "within a pipeline stage" in caught.value.hint


def test_a_routing_trace(tmp_path, model) -> None:
    """Records as megatron/core/transformer/moe/router_trace.py writes them: the experts of every token."""
    for rank in range(2):
        lines = []
        for layer in range(LAYERS):
            chosen = [[one] for one in range(EXPERTS) for _ in range(tokens(layer, one))]
            record = {"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": rank}
            lines.append(json.dumps(record | {"num_tokens": len(chosen), "topk": 1, "top_indices": chosen}))
        write(tmp_path, lines, f"router_trace_rank{rank}.jsonl")
    agree(read_router_stats(tmp_path, model))


def test_lists_in_a_log_over_several_lines_and_gzipped(tmp_path, model) -> None:
    lines = [" [2026-01-05 10:00:00.000000] iteration 10/ 100 | load_balancing_loss: 1.0E+00 |"]
    for layer in range(LAYERS):
        words = [str(tokens(layer, one)) for one in range(EXPERTS)]
        lines.append(f"[rank0]: decoder.layers.{layer}.mlp tokens_per_expert: tensor([{', '.join(words[:60])},")
        lines.append(f"        {', '.join(words[60:])}], device='cuda:0')")
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    agree(read_router_stats(path, model))


def test_a_log_with_a_loss_only_says_so(tmp_path, model) -> None:
    line = " iteration 10/ 100 | elapsed time per iteration (ms): 900.1 | load_balancing_loss: 1.02E+00 |"
    with pytest.raises(InputError, match="only a load-balancing loss") as caught:
        read_router_stats(write(tmp_path, [line], "job.log"), model)
    assert "--save-tokens-per-expert-interval" in caught.value.hint


def test_dense_layers_before_and_prediction_modules_behind(tmp_path) -> None:
    model = load_model("deepseek-v3")
    rows = [f"{layer},{expert},{1 + expert % 3}" for layer in range(3, 62) for expert in range(256)]
    stats = read_router_stats(write(tmp_path, ["layer,expert,tokens", *rows]), model)
    assert stats.layers == tuple(range(3, 61))
    assert len(stats.modules) == 1


def replaced(lines: list[str], at: int, line: str | None) -> list[str]:
    return [*lines[:at], *([] if line is None else [line]), *lines[at + 1 :]]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "the file is empty"),
        (["", "  "], "the file is empty"),
        (["layer,expert,tokens"], "has experts in 48 layers"),
        (replaced(long_form(), 5, "0,4,-3"), "line 6: -3 is no number of tokens"),
        (replaced(long_form(), 5, "0,4,nan"), "line 6: nan is no number"),
        (replaced(long_form(), 5, "0,4,inf"), "line 6: inf is no number"),
        (replaced(long_form(), 5, "0,4,many"), "line 6: nan is no number"),
        (replaced(long_form(), 5, "0,4"), "line 6 has 2 fields, the header 3"),
        (replaced(long_form(), 5, "0,128,7"), "counts expert 128, the model has 128"),
        (replaced(long_form(), 5, "0.5,4,7"), "layer '0.5' is no whole number"),
        (replaced(long_form(), 5, None), "layer 0 counts 127 of 128 experts, expert 4 is missing"),
        (replaced(long_form(), 5, "0,3,7"), "expert 3 of layer 0 is counted twice"),
        (long_form()[: 1 + 47 * EXPERTS], "missing: 47"),
        ([*long_form(), *(f"48,{one},1" for one in range(EXPERTS))], "without experts in the model: 48"),
        ([f"{line.rsplit(',', 1)[0]},0" if line.startswith("9,") else line for line in long_form()], "layer 9 has no"),
        (["layer,expert,count", "0,0,1"], "unknown column 'count'"),
        (["layer,expert", "0,0"], "is of no known form"),
        (["1,2,3", "4,5,6"], "no tokens per expert in it"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, model, lines, said) -> None:
    with pytest.raises(InputError, match=said):
        read_router_stats(write(tmp_path, lines), model)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ('{"layer": 1}', "neither tpe nor top_indices"),
        ('{"layer": true, "tpe": [[1]]}', "is no record of a layer"),
        ('{"layer": 0, "tpe": [[1, "x"]]}', "nan is no number"),
        ('{"layer": 0, "tpe": [[1' + "0" * 400 + "]]}", "inf is no number"),
        ('{"layer": 0, "tpe": [[1, 2, 3]]}', "3 experts on a rank do not divide the 128"),
        ('{"layer": 0, "tpe": 7}', "0 experts on a rank"),
        ('{"layer": 0, "top_indices": [[1, [2]]]}', "is no expert"),
        ('{"layer": 0, "top_indices": [1]}', "is no list of the experts"),
        ('{"layer": 1' + "0" * 30 + ', "top_indices": [[1]]}', "is beyond any model"),
        ("{not json", "is no record of a layer"),
    ],
)
def test_records_that_are_none_are_refused(tmp_path, model, record, said) -> None:
    with pytest.raises(InputError, match=said):
        read_router_stats(write(tmp_path, [record], "rank0.jsonl"), model)


@pytest.mark.parametrize("text", ['layer,expert,tokens\n0,0,"5\n0,1,6', "layer,expert,tokens\n0,0," + "1" * 200_000])
def test_broken_csv_is_refused(tmp_path, model, text) -> None:
    with pytest.raises(InputError, match=r"goes on over lines|field larger") as caught:
        read_router_stats(write(tmp_path, text.split("\n")), model)
    assert "the form" in caught.value.hint


def test_dense_models_missing_files_and_binaries_are_refused(tmp_path, model) -> None:
    with pytest.raises(InputError, match="has no experts"):
        read_router_stats(write(tmp_path, long_form()), load_model("llama3-8b"))
    with pytest.raises(InputError, match="cannot read"):
        read_router_stats(tmp_path / "none.csv", model)
    binary = tmp_path / "some.bin"
    binary.write_bytes(b"\0\1\2" * 100)
    with pytest.raises(InputError, match="not text"):
        read_router_stats(binary, model)
    with pytest.raises(InputError, match=r"no \*\.jsonl"):
        read_router_stats(tmp_path, model)


def test_ranks_hold_experts_in_order_and_a_capacity_drops_beyond_it() -> None:
    load = np.array([2.0, 1.0, 0.5, 0.5])
    assert shares(load, 2).tolist() == [1.5, 0.5]
    assert shares(load, 4).tolist() == [2.0, 1.0, 0.5, 0.5]
    assert shares(load, 2, 1.25).tolist() == [1.125, 0.5]
