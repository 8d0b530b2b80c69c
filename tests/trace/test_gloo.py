"""Traces of a real 2-rank gloo job under torch.profiler, made here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from advisor.trace.analysis import analyse

JOB = Path(__file__).parent / "gloo_job.py"
STEPS = 3

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch")
    found = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, str(JOB)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(found)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, error = process.communicate(timeout=240)
            assert process.returncode == 0, error.decode()[-2000:]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return found


def test_a_real_gloo_job(folder):
    analysis = analyse([folder])
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    for rank in analysis.ranks:
        assert (rank.front_end, rank.backend, rank.world_size) == ("gloo", "gloo", 2)
        assert len(rank.steps) == STEPS
        assert set(rank.mean.kinds) == {"dp"}
        # all_reduce, all_gather and barrier
        assert [step.kinds["dp"].calls for step in rank.steps] == [3] * STEPS
        assert rank.mean.hidden_s > 0, "the all-reduce runs beside twenty matrix products"
        assert rank.mean.exposed_s > 0, "the all-gather and the barrier run beside nothing"
        for step in rank.steps:
            parts = step.compute_s + step.exposed_s + step.copies_s + step.idle_s
            assert step.step_s == pytest.approx(parts, rel=1e-9)


def test_its_clocks_are_one(folder):
    """Both ranks ran on this host: what collectives say about their clocks is small beside a step."""
    analysis = analyse([folder])
    skew = analysis.skew.ranks
    assert all(rank.matched == 3 * STEPS for rank in skew.values())
    if analysis.skew.aligned:
        assert abs(skew[1].offset_s) < analysis.mean.step_s


def test_the_verb_reads_it(folder, cli):
    ran = cli("trace", str(folder))
    assert ran.code == 0
    assert "2 ranks, 6 steps, CPU (gloo)" in ran.out
    assert "the only kind they can be in this job" in ran.out
