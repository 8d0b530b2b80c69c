"""Gains of overlaps on a job with a public measurement: Qwen3-30B-A3B on 16 H100, 41.25 s, 31.31 s and 31.20 s."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from advisor.configure.gain import Gain, gains
from advisor.configure.job import Job
from advisor.cost.pairs import pair_errors
from advisor.spec.layout import Dispatcher, Knobs, Layout
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload


def found(model: str = "qwen3-30b-a3b", ep: int = 16, **knobs: object) -> dict[str, Gain]:
    card = load_model(model)
    split = PipelineSplit(1, 1, (card.num_layers,))
    layout = Layout(tp=1, pp=1, vpp=1, cp=1, ep=ep, etp=1, dp=16, edp=16 // ep, mbs=1, gbs=1024, sp=False, split=split)
    cluster = make_cluster(load_system("dgx-h100"), 16)
    held = replace(Knobs(dispatcher=Dispatcher.alltoall), **knobs)  # type: ignore[arg-type]
    return {one.name: one for one in gains(Job(card, cluster, Workload(seq_len=4096), layout, held))}


def test_putting_off_weight_gradients_brings_a_little_beside_the_overlap_of_experts() -> None:
    by_name = found()
    overlap, delayed = by_name["ep_overlap"], by_name["delay_wgrad"]
    assert delayed.without_s == pytest.approx(overlap.with_s), "beside the overlap that it needs"
    assert 0.05 < overlap.saved_s / overlap.without_s < 0.35
    assert 0.0005 < delayed.saved_s / delayed.without_s < 0.02
    assert not delayed.now
    assert delayed.low_s < delayed.saved_s < delayed.high_s
    width = pair_errors()["turned"][1]["width"]
    assert overlap.low_s < overlap.saved_s < overlap.high_s
    ends = [(overlap.without_s - end) / overlap.with_s for end in (overlap.low_s, overlap.high_s)]
    assert ends[0] * ends[1] == pytest.approx(1.0), "a factor either way"
    assert 0.02 < math.log(ends[0]) / width < 0.5, "half widths of one prediction's interval"


def test_a_job_that_puts_them_off_already_says_so_and_has_the_same_gain() -> None:
    by_name = found(ep_overlap=True, delay_wgrad=True)
    assert by_name["delay_wgrad"].now
    assert by_name["delay_wgrad"].saved_s == pytest.approx(found()["delay_wgrad"].saved_s)


def test_without_an_exchange_there_is_nothing_to_put_off() -> None:
    one = found(ep=1)["delay_wgrad"]
    assert one.saved_s is None
    assert "EP is 1" in one.note
