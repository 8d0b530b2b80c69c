"""Logs that torchrun 2.13 with two gloo ranks really wrote (`data/real_*.txt`), rank 1 failing in several ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.diagnose.run import diagnose

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "cause", "rank", "code", "sure"),
    [
        ("error", "python_error", 1, 1, "high"),
        ("ckpt", "ckpt_load", 1, 1, "high"),
        ("loader", "host_oom", 1, 1, "medium"),
        ("segv", "native_crash", 1, 139, "medium"),
        ("kill", "undetermined", 1, 137, "low"),
        ("term", "preempted", None, 143, "medium"),
        ("port", "port_in_use", None, 1, "high"),
    ],
)
def test_what_torchrun_wrote(name, cause, rank, code, sure):
    found = diagnose([str(DATA / f"real_{name}.txt")])
    assert (found.cause_id, found.first_failing_rank, found.exit_code, found.confidence) == (cause, rank, code, sure)


@pytest.mark.parametrize(
    ("name", "cause", "rank", "node", "code"),
    [
        ("ft_launcher_no_restarts", "undetermined", 1, "node1", 137),
        ("ft_launcher_rank_hung", "hang_process", 1, "node1", 137),
        ("ft_launcher_node_lost", "undetermined", None, None, 1),
        ("slurm_rank_exit_7", "undetermined", 1, "n1", 7),
        ("slurm_time_limit_requeue", "preempted", None, None, 143),
    ],
)
def test_what_ft_launcher_and_slurm_wrote(name, cause, rank, node, code):
    found = diagnose([str(DATA / "real_ft" / f"{name}.log")])
    assert (found.cause_id, found.first_failing_rank, found.exit_code) == (cause, rank, code)
    assert found.first_failing_node == node
