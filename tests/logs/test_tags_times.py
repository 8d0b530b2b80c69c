"""Writers and times of log lines in the forms of torch, srun, torchrun, mpirun, NCCL, Slurm and kernels."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.logs.tags import file_tag, is_numbered, read_tag
from advisor.logs.times import Clock


@pytest.mark.parametrize(
    ("line", "rank", "local", "node"),
    [
        ("[rank12]: RuntimeError: x", 12, None, None),
        ("[rank12]:[E817 17:40:34.2 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] x", 12, None, None),
        ("[E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught", 1, None, None),
        ("[default3]:Traceback", None, 3, None),
        ("[node-004:13]: x", 13, None, "node-004"),
        ("node-000: Traceback", None, None, "node-000"),
        ("node-000: [rank5]: x", 5, None, "node-000"),
        ("[1,7]<stderr>: x", 7, None, None),
        ("(RayTrainWorker pid=811, ip=10.0.0.3) x", None, None, "10.0.0.3"),
        ("node-003:2210:2293 [2] misc/ibvwrap.cc:252 NCCL WARN x", None, 2, "node-003"),
        ("May 31 06:11:40 node-011 kernel: NVRM: Xid", None, None, "node-011"),
        ("2026-05-31T06:11:40.1Z stderr F [rank3]: x", 3, None, None),
        ("iteration1: x", None, None, None),
        ("WARNING: x", None, None, None),
        ("12: x", None, None, None),
    ],
)
def test_tags(line, rank, local, node):
    tag = read_tag(line)
    assert (tag.rank, tag.local_rank, tag.node) == (rank, local, node)


def test_labels_of_srun_count_only_where_most_lines_have_them():
    labelled = [f"{rank}: INFO step" for rank in range(8)]
    assert is_numbered(labelled)
    assert not is_numbered(["INFO", "3: x", "INFO", "INFO"])
    assert read_tag("12: x", numbered=True).rank == 12
    assert read_tag("12: x", numbered=True).rest == "x"


@pytest.mark.parametrize(
    ("name", "rank", "local", "node"),
    [
        ("logs/rank_3.log", 3, None, None),
        ("logs/rank7/stderr.txt", 7, None, None),
        ("run/none_x/attempt_0/5/stderr.log", None, 5, None),
        ("logs/node-004.out", None, None, "node-004"),
        ("logs/slurm-8123.out", None, None, None),
    ],
)
def test_names_of_files(name, rank, local, node):
    tag = file_tag(name)
    assert (tag.rank, tag.local_rank, tag.node) == (rank, local, node)


@pytest.mark.parametrize(
    "line",
    [
        "2026-02-27 17:39:41 INFO x",
        "[2026-02-27 17:39:41] iteration 5",
        " [2026-02-27 17:39:41,000] x",
        "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-02-27T17:39:41 DUE TO TIME LIMIT ***",
        "W0227 17:39:41.000000 2201 torch/distributed/elastic/agent/server/api.py:719] x",
        "[rank1]:[E227 17:39:41.000000000 ProcessGroupNCCL.cpp:616] x",
        "Feb 27 17:39:41 node-011 kernel: x",
        "[Fri Feb 27 17:39:41 2026] NVRM: x",
        "02/27/2026 17:39:41 - INFO",
        "  time      : 2026-02-27_17:39:41",
    ],
)
def test_forms_of_time_are_one_moment(line):
    assert Clock().read(line) == (datetime(2000, 2, 27, 17, 39, 41) - datetime(2000, 1, 1)).total_seconds()


def test_a_time_of_day_takes_the_last_date_and_passes_midnight():
    clock = Clock()
    first = clock.read("2026-02-27 23:59:50 x")
    assert clock.read("23:59:55 y") == first + 5
    assert clock.read("00:00:05 z") == first + 15


@pytest.mark.parametrize(
    "line", ["[12345.678901] NVRM: x", "loss 3.1", "lr 1.0e-4 at 99:99:99", "2026-99-99 10:00:00 x", ""]
)
def test_no_time(line):
    assert Clock().read(line) is None


@given(st.text(max_size=300))
def test_never_fails(text):
    Clock().read(text)
    read_tag(text, numbered=True)
    file_tag(text)
