"""Flight-recorder dumps: the restricted reader, and what the dumps of several ranks say together."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import json
import os
import pickle

import pytest

from advisor.diagnose.run import diagnose
from advisor.errors import InputError


def entry(seq, name="nccl:all_reduce", state="completed", sizes=((4096,),), p2p=False, group=("0", "default_pg")):
    return {
        "frames": [{"name": "train_step", "filename": "training.py", "line": 1422}], "record_id": seq, "pg_id": 0,
        "process_group": group, "collective_seq_id": 0 if p2p else seq, "p2p_seq_id": seq if p2p else 0, "op_id": seq,
        "profiling_name": name, "input_sizes": [list(one) for one in sizes], "state": state, "is_p2p": p2p, "retired": False,
    }  # fmt: skip


def dump(entries, ranks=4):
    pg = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return {"version": "2.10", "entries": entries, "pg_config": pg, "nccl_version": "2.27.3"}


def write(folder, dumps, form="pickle"):
    for rank, value in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(value) if form == "pickle" else json.dumps(value).encode())
    return diagnose([str(folder)])


def waiting(last, ranks=4, **stuck):
    return dump([*(entry(seq) for seq in range(1, last)), entry(last, state="started", **stuck)], ranks)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_rank_that_did_not_join(tmp_path, form):
    found = write(
        tmp_path, {0: waiting(9), 1: waiting(9), 2: dump([entry(seq) for seq in range(1, 9)]), 3: waiting(9)}, form
    )
    assert (found.cause_id, found.first_failing_rank, found.confidence) == ("nccl_missing_rank", 2, "high")
    assert "collective 9" in found.reason


def test_a_rank_without_a_dump(tmp_path):
    found = write(tmp_path, {0: waiting(9), 1: waiting(9), 3: waiting(9)})
    assert (found.cause_id, found.first_failing_rank, found.confidence) == ("nccl_missing_rank", 2, "medium")


@pytest.mark.parametrize("odd", [{"name": "nccl:broadcast"}, {"sizes": ((8192,),)}])
def test_a_rank_in_another_collective(tmp_path, odd):
    found = write(tmp_path, {rank: waiting(9, **(odd if rank == 1 else {})) for rank in range(4)})
    assert (found.cause_id, found.first_failing_rank) == ("nccl_missing_rank", 1)


def test_all_in_step_is_the_network(tmp_path):
    found = write(tmp_path, {rank: waiting(9) for rank in range(4)})
    assert (found.cause_id, found.first_failing_rank) == ("nccl_all_ranks_network", None)


def test_sends_without_partner(tmp_path):
    pending = dump([entry(1), entry(3, "nccl:recv 0<-1", "scheduled", p2p=True)])
    found = write(tmp_path, {0: dump([entry(1)]), 1: pending, 2: pending, 3: dump([entry(1)])})
    assert found.cause_id == "nccl_pipeline_stage"


def test_a_cause_in_the_logs_wins(tmp_path):
    (tmp_path / "rank_1.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n", encoding="utf-8")
    assert write(tmp_path, {0: waiting(9), 1: dump([])}).cause_id == "cuda_oom"


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


@pytest.mark.parametrize("value", [Evil(), {"entries": [Evil()]}])
def test_code_is_refused(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="mkdir has no place"):
        write(tmp_path, {0: value})
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("value", [[], {}, {"entries": 3}, {"entries": [3]}, {"entries": [], "pg_config": 4}, 17])
def test_other_values_are_input_errors(tmp_path, value):
    with pytest.raises(InputError, match="flight-recorder"):
        write(tmp_path, {0: value})


def test_a_cut_pickle_is_an_input_error(tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(waiting(9))[:-40])
    with pytest.raises(InputError, match="flight-recorder"):
        diagnose([str(path)])


def test_a_dump_needs_a_rank(tmp_path):
    path = tmp_path / "trace.pkl"
    path.write_bytes(pickle.dumps(waiting(9)))
    with pytest.raises(InputError, match="which rank"):
        diagnose([str(path)])
