"""nsys exports: a database of the documented tables, and the same work as in a Kineto file."""

from __future__ import annotations

import sqlite3

import pytest

from advisor.errors import InputError
from advisor.trace.analysis import analyse
from advisor.trace.record import figures_record
from tests.trace.synthetic import GEMM, NCCL, kernel, launch, mark, nsys, write

US = 1000
MEMCPY, MEMSET = "Memcpy HtoD", "Memset"


def work():
    """(start, end, name, correlation, device, stream) in ns: two steps of compute, a collective and a copy."""
    kernels, copies, calls = [], [], []
    for step in range(2):
        at, number = step * 200 * US, 10 * step
        kernels += [
            (at + 10 * US, at + 60 * US, GEMM, number + 1, 0, 7),
            (at + 40 * US, at + 100 * US, NCCL, number + 2, 0, 9),
        ]
        copies += [(at + 120 * US, at + 130 * US, 1, number + 3, 0, 8)]
        calls += [(at + index * US, at + (index + 1) * US, number + index) for index in (1, 2)]
        calls += [(at + 110 * US, at + 111 * US, number + 3)]
    return kernels, copies, calls


def test_the_same_figures_as_from_kineto(tmp_path):
    kernels, copies, calls = work()
    ranges = [(0, 200 * US, "iteration 7"), (200 * US, 400 * US, "iteration 8"), (0, 400 * US, "forward")]
    database = nsys(tmp_path / "report_rank0.sqlite", kernels, copies, calls, ranges)
    events = [mark(1, 0, 200), mark(2, 200, 200)]
    events += [kernel(a / US, (b - a) / US, name, correlation=c, stream=s) for a, b, name, c, _, s in kernels]
    events += [kernel(a / US, (b - a) / US, MEMCPY, cat="gpu_memcpy", correlation=c) for a, b, _, c, _, _ in copies]
    events += [launch(a / US, c) for a, _, c in calls]
    (theirs,) = analyse([write(tmp_path / "t.json", events)]).ranks
    (ours,) = analyse([database]).ranks
    assert (ours.source, ours.front_end, ours.rank) == ("nsys", "device", 0)
    assert [step.name for step in ours.steps] == ["iteration 7", "iteration 8"]
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        assert {**figures_record(one), "name": ""} == {**figures_record(other), "name": ""}
    assert ours.steps[0].host_bound_s == pytest.approx(100e-6), "20 before the copy, 80 before the next step"
    assert ours.classes.keys() == {"gemm", "nccl", "memcpy"}


def test_devices_are_ranks(tmp_path):
    kernels = [(0, 10, GEMM, 1, 0, 7), (0, 30, GEMM, 2, 1, 7), (0, 20, "nvjet_tst_128x256", 3, 3, 7)]
    analysis = analyse([nsys(tmp_path / "t.sqlite", kernels)])
    assert [rank.rank for rank in analysis.ranks] == [0, 1, 2]
    assert [round(rank.mean.compute_s * 1e9) for rank in analysis.ranks] == [10, 30, 20]


def test_peer_copies_are_communication_and_memsets_are_not(tmp_path):
    copies = [(0, 10, 10, 1, 0, 5), (20, 30, 8, 2, 0, 5)]
    path = nsys(tmp_path / "t.sqlite", [(5, 20, GEMM, 9, 0, 7)], copies, memsets=[(40, 50, 0, 3, 0, 5)])
    (rank,) = analyse([path]).ranks
    assert rank.mean.communication_s == pytest.approx(10e-9)
    assert rank.mean.hidden_s == pytest.approx(5e-9)
    assert rank.mean.copies_s == pytest.approx(20e-9)


def test_negative_durations_are_counted_and_marks_may_be_missing(tmp_path):
    (rank,) = analyse([nsys(tmp_path / "t.sqlite", [(0, 10, GEMM, 1, 0, 7), (30, 20, GEMM, 2, 0, 7)])]).ranks
    assert rank.mean.compute_s == pytest.approx(10e-9)
    assert any("1 events have a negative duration" in text for text in rank.findings)
    assert any("no step marks" in text for text in rank.findings)
    assert any("no launch calls" in text for text in rank.findings)


def test_old_and_poor_schemas(tmp_path):
    path = tmp_path / "old.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, shortName)")
    base.execute("CREATE TABLE StringIds (id, value)")
    base.execute("INSERT INTO StringIds VALUES (4, x'6e63636cff')")
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", [(0, 10, 0, 4), (5, 9, 0, None)])
    base.commit()
    (rank,) = analyse([path]).ranks
    assert rank.mean.communication_s == pytest.approx(10e-9)
    assert rank.mean.hidden_s == pytest.approx(4e-9)
    assert list(rank.unknown) == ["kernel without a name"]


@pytest.mark.parametrize("table", ["CREATE TABLE other (a)", "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (a, b)"])
def test_databases_without_activity(tmp_path, table):
    path = tmp_path / "t.sqlite"
    base = sqlite3.connect(path)
    base.execute(table)
    base.commit()
    with pytest.raises(InputError, match=r"t\.sqlite"):
        analyse([path])


def test_a_truncated_database(tmp_path):
    kernels, copies, calls = work()
    path = nsys(tmp_path / "t.sqlite", kernels * 200, copies, calls)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(InputError, match=r"t\.sqlite"):
        analyse([path])
