"""Reading measured runs: what a row says, what is assumed, and what is refused."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.fit.runs import published_runs, read_runs
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def published():
    runs, skipped = published_runs()
    return {run.id: run for run in runs}, skipped


def test_nearly_all_published_rows_can_be_read(published) -> None:
    runs, skipped = published
    rows = list(csv.DictReader((ROOT / "profiles" / "runs" / "published_runs.csv").open(encoding="utf-8")))
    assert len(runs) + len(skipped) == len(rows)
    reasons = Counter(one.reason for one in skipped)
    assert set(reasons) <= {"precision is not stated", "tp is not stated"}, reasons
    assert all(one.line > 1 for one in skipped)


def test_layouts_use_every_gpu_once(published) -> None:
    for run in published[0].values():
        layout = run.layout
        assert layout.tp * layout.cp * layout.pp * layout.dp == run.cluster.gpus == layout.gpus
        assert layout.etp * layout.ep * layout.pp * layout.edp == run.cluster.gpus
        assert sum(layout.split.layers) == run.model.num_layers
        assert layout.num_microbatches >= 1


def test_a_full_row_is_taken_as_it_stands(published) -> None:
    run = published[0]["bridge-26.06.01-L51"]
    assert (run.model.name, run.cluster.gpus, run.workload.precision.name) == ("deepseek-v3", 256, "mxfp8")
    assert (run.layout.pp, run.layout.vpp, run.layout.ep, run.layout.num_microbatches) == (4, 4, 64, 64)
    assert run.layout.split.layers[:2] == (4, 4)
    assert run.layout.split.layers[-1] == 1
    assert run.knobs.recompute == ("mla_up_proj",)
    assert run.knobs.dispatcher is Dispatcher.hybridep
    assert run.knobs.cuda_graph is CudaGraph.full_iteration
    assert run.knobs.ep_overlap
    assert run.step_s == 13.2987
    assert run.workload.mtp_depth == 1


def test_silent_recipes_come_from_the_nearest_release_and_are_named(published) -> None:
    run = published[0]["bridge-26.02.01-L423"]
    assert {"dispatcher", "cuda_graph", "recompute"} <= set(run.assumed)
    assert run.knobs.dispatcher is Dispatcher.hybridep
    assert run.knobs.cuda_graph is CudaGraph.scoped


def test_expert_tensor_parallelism_follows_tp_unless_stated(published) -> None:
    assert published[0]["moefold-t3-003"].layout.etp == 4
    assert published[0]["moefold-t3-005"].layout.etp == 1


def test_steps_are_derived_where_only_mfu_is_stated(published) -> None:
    run = published[0]["moefold-t3-005"]
    tokens = 256 * 4096 / 128
    flops_per_token = run.step_s * 0.493 * 989.5e12 / tokens
    assert flops_per_token == pytest.approx(6 * 39e9, rel=0.05)
    assert published[0]["moefold-t3-017"].knobs.fsdp is Fsdp.optim_grads_params


def test_rows_out_of_memory_have_no_step(published) -> None:
    failed = [run for run in published[0].values() if run.oom]
    assert len(failed) > 200
    assert all(run.step_s is None and not run.scored for run in failed)


def write(path: Path, **changes: str) -> Path:
    row = {
        "id": "mine", "group": "own", "model": "llama3-8b", "system": "dgx-h100", "gpus": "8", "precision": "bf16",
        "seq_len": "8192", "gbs": "128", "tp": "1", "pp": "1", "step_s": "12.9",
    } | changes  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(row))
        writer.writeheader()
        writer.writerow(row)
    return path


def test_own_rows_need_few_columns(tmp_path: Path) -> None:
    runs, skipped = read_runs(write(tmp_path / "own.csv"))
    assert not skipped
    assert runs[0].layout.num_microbatches == 16
    assert "mbs" in runs[0].assumed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama4711"}, "llama4711"),
        ({"precision": "int3"}, "int3"),
        ({"tp": "3"}, "does not divide"),
        ({"gbs": "4"}, "no microbatch"),
        ({"tp": "1.5"}, "count"),
        ({"seq_len": "long"}, "seq_len"),
    ],
)
def test_rows_that_cannot_be_are_skipped_with_the_reason(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    runs, skipped = read_runs(write(tmp_path / "own.csv", **changes))
    assert not runs
    assert reason in skipped[0].reason
    assert (skipped[0].id, skipped[0].line) == ("mine", 2)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_runs(tmp_path)
