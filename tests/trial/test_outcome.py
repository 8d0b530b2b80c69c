"""Outcomes judged from what ranks left behind, without running any."""

from __future__ import annotations

import json

import pytest

from advisor.trial.outcome import outcome_of, steady_steps
from advisor.trial.processes import Ended
from advisor.trial.progress import Progress

TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
advisor.trial.worker FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_17:00:00
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4242)
  error_file: <N/A>
============================================================
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of"
    " which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated"
    " memory 76.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def folder(tmp_path):
    for rank in (0, 1):
        (tmp_path / "logs" / "run" / "attempt_0" / str(rank)).mkdir(parents=True)
    (tmp_path / "stderr").write_text("")
    return tmp_path


def left(folder, rank, outcome, steps=(), message="", stderr=""):
    (folder / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, "outcome": outcome, "message": message}))
    lines = [{"at": "step", "number": n, "phase": "steady", "step_s": s, "loss": None} for n, s in enumerate(steps)]
    (folder / f"progress-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "logs" / "run" / "attempt_0" / str(rank) / "stderr.log").write_text(stderr)


def test_all_ranks_done_is_measured(folder):
    left(folder, 0, "done")
    left(folder, 1, "done")
    assert outcome_of(Ended("ended", 0, 1.0), folder, 2).kind == "measured"


def test_a_missing_rank_is_not_measured(folder):
    left(folder, 0, "done")
    assert outcome_of(Ended("ended", 0, 1.0), folder, 2).kind == "crash"


@pytest.mark.parametrize("kind", ["oom", "nan"])
def test_what_a_rank_told_comes_before_what_others_saw(folder, kind):
    left(folder, 0, "crash", message="RuntimeError: Connection closed by peer", stderr="Connection closed by peer\n")
    left(folder, 1, kind, message="it was me")
    found = outcome_of(Ended("ended", 1, 1.0), folder, 2)
    assert (found.kind, found.failure.rank, found.failure.message) == (kind, 1, "it was me")


def test_a_rank_that_told_why_counts_before_steps_that_were_enough(folder):
    left(folder, 0, "unfinished", [0.1] * 5)
    left(folder, 1, "nan", [0.1] * 5, message="loss is nan in step 5")
    assert outcome_of(Ended("stopped", None, 9.0), folder, 2).kind == "nan"


def test_what_a_full_disk_made_of_a_line_is_left_out(folder):
    for rank in (0, 1):
        left(folder, rank, "unfinished", [0.1] * 5)
    with (folder / "progress-1.jsonl").open("a") as file:
        file.write('{"at": "step", "num\n"broken"\n')
    assert len(steady_steps(folder)[1]) == 5
    progress = Progress(folder)
    progress.read()
    assert progress.steps == 5


def test_out_of_memory_is_found_in_the_log_of_a_rank_that_told_nothing(folder):
    left(folder, 0, "unfinished")
    left(folder, 1, "unfinished", stderr=f"[rank1]: {OOM}\n")
    (folder / "stderr").write_text(TORCHRUN)
    found = outcome_of(Ended("ended", 1, 1.0), folder, 2)
    assert (found.kind, found.failure.cause, found.failure.rank) == ("oom", "cuda_oom", 1)
    assert any("out of memory" in line for line in found.failure.excerpt)
    assert found.failure.fix


WATCHDOG = (
    "[rank0]:[E1129 17:00:00.0 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=37, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600031 milliseconds"
    " before timing out.\n"
)
GLOO = (
    "[rank0]: RuntimeError: [third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for"
    " recv operation to complete\n"
)


@pytest.mark.parametrize(("line", "what"), [(WATCHDOG, "ALLREDUCE"), (GLOO, "a collective")], ids=["nccl", "gloo"])
def test_a_collective_that_a_rank_did_not_join_names_it(folder, line, what):
    left(folder, 0, "unfinished", [0.1], stderr=line)
    left(folder, 1, "unfinished", [0.1], stderr="last words of rank 1\n")
    (folder / "stderr").write_text(
        TORCHRUN.replace("rank      : 1", "rank      : 0").replace("code  : 1", "code  : -6")
    )
    found = outcome_of(Ended("ended", 1, 700.0), folder, 2)
    assert (found.kind, found.failure.rank) == ("collective timeout", 1)
    assert found.failure.message == f"rank 0 waited for {what}, which rank 1 did not join in time"
    assert found.failure.excerpt == (line.strip(), "last words of rank 1")


def test_a_collective_that_all_waited_for_names_who_is_behind(folder):
    left(folder, 0, "unfinished", [0.1, 0.1], stderr=WATCHDOG)
    left(folder, 1, "unfinished", [0.1], stderr=WATCHDOG)
    assert outcome_of(Ended("ended", 1, 700.0), folder, 2).failure.rank == 1


def test_a_hang_names_the_rank_that_is_behind(folder):
    left(folder, 0, "unfinished", [0.1, 0.1, 0.1])
    left(folder, 1, "unfinished", [0.1, 0.1])
    found = outcome_of(Ended("step timeout", None, 9.0), folder, 2)
    assert (found.kind, found.failure.rank) == ("hang", 1)
    assert "step 1" in found.failure.message


@pytest.mark.parametrize(("steps", "kind"), [(5, "measured"), (2, "total timeout")])
def test_a_trial_cut_off_counts_when_it_has_enough_steps(folder, steps, kind):
    for rank in (0, 1):
        left(folder, rank, "unfinished", [0.1] * steps)
    assert outcome_of(Ended("total timeout", None, 9.0), folder, 2).kind == kind


def test_a_crash_without_a_known_cause_shows_the_end_of_the_log(folder):
    left(folder, 0, "unfinished")
    left(folder, 1, "crash", message="ValueError: odd", stderr="line one\nValueError: odd\n")
    found = outcome_of(Ended("ended", 1, 1.0), folder, 2)
    assert (found.kind, found.failure.rank) == ("crash", 1)
    assert "ValueError: odd" in found.failure.excerpt[-1]
