"""Clock offsets and waiting of ranks, known by construction."""

from __future__ import annotations

import pytest

from advisor.trace.analysis import analyse
from tests.trace.synthetic import NCCL, collective, kernel, mark, write

US = 1e-6


def rank_events(offset, arrivals, ends, *, group="dp", ranks="[0, 1]"):
    """Collectives that this rank begins at `arrivals` and that end at `ends`, on a clock ahead by `offset`."""
    found = [mark(1, offset, 10_000)]
    for arrival, end in zip(arrivals, ends, strict=True):
        found += [kernel(offset + arrival - 50, 50), collective(offset + arrival, end - arrival, group, ranks=ranks)]
    return found


def test_clock_offset_is_found_and_the_late_rank_named(tmp_path):
    ends = [1000 * index + 500 for index in range(1, 8)]
    early, late = [end - 400 for end in ends], [end - 100 for end in ends]
    write(tmp_path / "rank-0.json", rank_events(0, early, ends), rank=0)
    write(tmp_path / "rank-1.json", rank_events(7_000_000, late, ends), rank=1)
    skew = analyse([tmp_path]).skew
    assert skew.aligned
    assert skew.slowest == 1
    assert skew.ranks[1].offset_s == pytest.approx(7.0)
    assert skew.ranks[0].waited_s == pytest.approx(7 * 300 * US)
    assert (skew.ranks[0].last, skew.ranks[1].last) == (0, 7)
    assert skew.ranks[1].waited_s == pytest.approx(0)


def test_nobody_waits_longer_than_its_call_lasts(tmp_path):
    """One call of rank 0 is over before rank 1 begins its own: it cannot have waited for that."""
    ends = [1000 * index + 500 for index in range(1, 8)]
    begins = [end - 100 for end in ends]
    short = [*ends[:-1], begins[-1] + 10]
    write(tmp_path / "rank-0.json", rank_events(0, begins, short), rank=0)
    write(tmp_path / "rank-1.json", rank_events(0, [*begins[:-1], begins[-1] + 70], ends), rank=1)
    assert analyse([tmp_path]).skew.ranks[0].waited_s == pytest.approx(10 * US)


def test_clocks_are_tied_over_other_ranks(tmp_path):
    """0 and 1 share a group, 1 and 2 another: 2 is tied to 0 over 1."""
    first, second = [1000, 2000, 3000, 4000], [5000, 6000, 7000, 8000]
    one = rank_events(0, [t - 100 for t in first], first, group="tp", ranks="[0, 1]")
    two = rank_events(10**6, [t - 100 for t in first], first, group="tp", ranks="[0, 1]")
    two += rank_events(10**6, [t - 50 for t in second], second, group="dp", ranks="[1, 2]")[1:]
    three = rank_events(3 * 10**6, [t - 90 for t in second], second, group="dp", ranks="[1, 2]")
    for rank, events in enumerate((one, two, three)):
        write(tmp_path / f"rank-{rank}.json", events, rank=rank)
    skew = analyse([tmp_path]).skew
    assert [skew.ranks[rank].offset_s for rank in range(3)] == pytest.approx([0, 1, 3])


@pytest.mark.parametrize("why", ["too few", "ends do not agree", "other counts", "point to point of known groups"])
def test_clocks_that_cannot_be_tied_stay_apart(tmp_path, why):
    ends = [1000 * index + 500 for index in range(1, 8)]
    begins = [end - 100 for end in ends]
    other_ends, other_begins = list(ends), list(begins)
    if why == "too few":
        ends, begins, other_ends, other_begins = ends[:2], begins[:2], ends[:2], begins[:2]
    if why == "other counts":
        other_ends, other_begins = ends[1:], begins[1:]
    if why == "ends do not agree":
        other_ends = [end + 9_000_000 * (index % 3) for index, end in enumerate(ends)]
    one, two = rank_events(0, begins, ends), rank_events(0, other_begins, other_ends)
    if why == "point to point of known groups":
        for event in (*one, *two):
            if "Collective name" in event.get("args", {}):
                event["args"]["Collective name"] = "send"
                event["name"] = NCCL.replace("AllReduce_Sum_bf16", "SendRecv")
    write(tmp_path / "rank-0.json", one, rank=0)
    write(tmp_path / "rank-1.json", two, rank=1)
    skew = analyse([tmp_path]).skew
    assert not skew.aligned
    assert skew.slowest is None
    assert skew.ranks[1].offset_s is None
    assert skew.ranks[1].waited_s is None


def test_equal_ranks_have_no_slowest_by_luck(tmp_path):
    ends = [1000 * index + 500 for index in range(1, 8)]
    for rank in range(2):
        write(tmp_path / f"rank-{rank}.json", rank_events(0, [end - 100 for end in ends], ends), rank=rank)
    skew = analyse([tmp_path]).skew
    assert skew.aligned
    assert skew.slowest is None


def test_one_rank(tmp_path):
    skew = analyse([write(tmp_path / "rank-0.json", [kernel(0, 5)])]).skew
    assert (skew.slowest, skew.ranks[0].offset_s) == (None, 0.0)
