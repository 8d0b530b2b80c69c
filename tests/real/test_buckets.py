"""Buckets that the cost model counts against those that megatron-core's DDP really cuts, on the meta device."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("megatron.core")

from advisor.cost import buckets
from advisor.cost.profile import load_profile
from advisor.cost.step import setting_of
from advisor.spec.layout import Dispatcher, Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.workload import Workload
from tests.cost.layouts import layout_of
from tests.real.megatron_model import Build, bucket_counts

pytestmark = pytest.mark.real

LAYOUTS = {
    "llama3-8b": {"tp": 1},
    "llama3-70b": {"tp": 4, "pp": 2, "vpp": 2},
    "qwen3-30b-a3b": {"ep": 8},
    "deepseek-v2-lite": {"tp": 2, "pp": 3, "ep": 4},
}
GPUS = {"deepseek-v2-lite": 24}
SIZES = (100_000, 10_000_000, 40_000_000, buckets.BRIDGE_BUCKET, 400_000_000, 10**11)
MIXED = 2
"""Buckets of one whole: norms are fp32 in this stand-in without Transformer Engine and have a buffer of their own."""


def counted(name: str, layout: Layout, size: int) -> tuple[float, float]:
    model, cluster = load_model(name), make_cluster(load_system("dgx-h100"), layout.gpus)
    columns = table([layout], [Knobs(dispatcher=Dispatcher.alltoall if model.is_moe else Dispatcher.none)])
    job = setting_of(model, cluster, Workload(), columns, load_profile(cluster.gpu))
    dense, expert = buckets.bucket_counts(job, np.asarray(size))
    return float(dense[0]), float(expert[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_as_many_buckets_are_counted_as_megatron_cuts(name: str) -> None:
    sizes, gpus = LAYOUTS[name], GPUS.get(name, 16)
    model, build = load_model(name), Build(rank=0, world=gpus, **sizes)
    layout = layout_of(model, gpus, **sizes)
    for size in SIZES:
        (first, *others) = bucket_counts(model, build, size)
        for real, said in zip(first, counted(name, layout, size), strict=True):
            assert abs(said - real) <= max(MIXED, 0.3 * real), (size, real, said)
        assert all(max(one) <= MIXED for one in others), "chunks after the first are not cut"


def test_ranks_behind_the_first_are_not_cut() -> None:
    model = load_model("llama3-70b")
    (last,) = bucket_counts(model, Build(rank=8, world=16, tp=4, pp=2), 100_000)
    assert max(last) <= MIXED


def test_the_framework_takes_forty_million_parameters_and_more_on_many_ranks() -> None:
    """None is what megatron-core's rule gives: as many buckets as with that number stated."""
    model = load_model("llama3-8b")
    for world, rule in ((16, 40_000_000), (128, 128_000_000)):
        build = Build(rank=0, world=world)
        assert bucket_counts(model, build, None) == bucket_counts(model, build, rule)
        assert bucket_counts(model, build, None) != bucket_counts(model, build, 2 * rule)
        cluster = make_cluster(load_system("dgx-h100"), world)
        columns = table([layout_of(model, world)], [Knobs()])
        job = setting_of(model, cluster, Workload(software="megatron-lm"), columns, load_profile(cluster.gpu))
        assert buckets.framework_bucket(job).tolist() == [rule]
