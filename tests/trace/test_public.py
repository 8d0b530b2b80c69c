"""Public GPU traces against the figures of HolisticTraceAnalysis 0.5.0 (HTA).

The files are no part of this repository; they lie beside it where the project is developed, and the tests are skipped
elsewhere. Where our figures differ from HTA's, the test redoes HTA's way and shows that this alone is the difference.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from advisor.trace.analysis import analyse
from advisor.trace.kineto import read_kineto
from advisor.trace.overlap import measure

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
FILES = ("sampled_rank-0", "sampled_rank-1", "nccl_data_rank-0", "a100_16ranks_rank-0", "alexnet_sync_rank-0")
SELECTIONS = {"launched-before-last-step": "hta_default", "launched": "hta_with_last_step"}

pytestmark = pytest.mark.skipif(
    not (FOLDER / "expected.json").exists(),
    reason="the public traces are not beside this checkout (../shared/data/traces)",
)


def expected(name):
    sets = json.loads((FOLDER / "expected.json").read_text())["sets"]
    return next(entry for files in sets.values() for entry in files if entry["file"].startswith(name))


def figures(trace, selection):
    """Microseconds of one selection under HTA's names."""
    sets = measure(trace, selection)
    us = {
        name: float(sets.seconds(getattr(sets, name)).sum()) * 1e6
        for name in ("compute", "communication", "hidden", "idle")
    }
    span = float((sets.windows.high - sets.windows.low).sum()) / 1e3
    return us, span


def rounded_inwards(trace):
    """HTA rounds starts up and ends down to whole microseconds of the file's own clock before anything else."""
    device, origin = trace.device, (trace.origin_ns - trace.base_ns) % 1000
    start = -(-(device.start + origin) // 1000) * 1000 - origin
    end = (device.end + origin) // 1000 * 1000 - origin
    return dataclasses.replace(trace, device=dataclasses.replace(device, start=start, end=np.maximum(start, end)))


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", FILES)
def test_overlap_equals_htas(name, selection):
    wanted = expected(name)[SELECTIONS[selection]]
    trace = read_kineto(FOLDER / f"{name}.json.gz")
    if expected(name)["timestamps"].startswith("fractional"):
        trace = rounded_inwards(trace)
    us, span = figures(trace, selection)
    if wanted["comp_comm_overlap_pctg"] is None:
        assert us["communication"] == 0
    else:
        assert 100 * us["hidden"] / us["communication"] == pytest.approx(wanted["comp_comm_overlap_pctg"], abs=0.005)
    if name.startswith("alexnet"):
        return  # HTA counts cuda_sync events as device work: test_alexnet_differs_by_sync_events
    assert round(us["compute"]) == wanted["compute_time(us)"]
    assert round(us["idle"]) == wanted["idle_time(us)"]
    assert round(span) == wanted["kernel_time(us)"]
    assert round(span - us["idle"] - us["compute"]) == wanted["non_compute_time(us)"]


@pytest.mark.parametrize("name", FILES)
def test_all_device_events_equal_plain_unions(name):
    """Without HTA's selection and rounding: an independent computation over every device event of the file."""
    wanted = expected(name)["all_device_events"]
    us, span = figures(read_kineto(FOLDER / f"{name}.json.gz"), "all")
    for ours, theirs in (
        ("compute", "compute_us"),
        ("communication", "comm_us"),
        ("hidden", "comm_hidden_us"),
        ("idle", "idle_us"),
    ):
        # Their sums are of floats with 1 ns of resolution at these times, ours of integers.
        assert us[ours] == pytest.approx(wanted[theirs], abs=0.1)
    assert span == pytest.approx(wanted["span_us"], abs=0.01)


def test_alexnet_differs_by_sync_events():
    """HTA's span reaches over its 41 cuda_sync events, and counts those not named Sync as compute (7 us)."""
    wanted, plain = expected("alexnet")["hta_default"], expected("alexnet")["own_same_selection"]["hta_default"]
    us, span = figures(read_kineto(FOLDER / "alexnet_sync_rank-0.json.gz"), "launched")
    assert us["compute"] == pytest.approx(plain["compute_us"])
    assert wanted["compute_time(us)"] - us["compute"] == pytest.approx(7)
    assert span < wanted["kernel_time(us)"]
    busy = span - us["idle"]
    assert plain["busy_us"] - busy == pytest.approx(186), "what sync events cover beside all other work"


@pytest.mark.parametrize("name", FILES)
def test_steps_are_a_partition_of_all_device_events(name):
    """In these files no device work lies outside the steps, so that the sums of both are the same."""
    trace = read_kineto(FOLDER / f"{name}.json.gz")
    steps, whole = figures(trace, "steps"), figures(trace, "all")
    assert steps[1] == pytest.approx(whole[1])
    assert steps[0] == pytest.approx(whole[0])
    assert len(measure(trace).windows) == max(len(expected(name)["profiler_steps"]), 1)


def test_two_ranks_of_a_run():
    analysis = analyse([FOLDER / "sampled_rank-1.json.gz", FOLDER / "sampled_rank-0.json.gz"])
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert {rank.world_size for rank in analysis.ranks} == {128}
    assert set(analysis.mean.kinds) == {"other"}, "these old kernels name no group"
    assert not analysis.skew.aligned, "SendRecv of different partners ends at different times"


@pytest.mark.parametrize("name", FILES)
def test_few_kernels_are_unknown(name):
    (rank,) = analyse([FOLDER / f"{name}.json.gz"]).ranks
    total = sum(use.kernel_ns for use in rank.classes.values())
    assert sum(use.kernel_ns for use in rank.unknown.values()) < 0.01 * total
