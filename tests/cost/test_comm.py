from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost import comm
from advisor.cost.placement import Span, span, spans
from advisor.cost.profile import load_profile
from advisor.spec.layout import Dispatcher
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import ExpertMlp
from advisor.spec.workload import Workload

COLLECTIVES = (comm.all_gather, comm.reduce_scatter, comm.all_reduce, comm.all_to_all, comm.send_recv)


def place(system="dgx-h100", gpus=64, **kwargs):
    cluster = make_cluster(load_system(system), gpus, **kwargs)
    return load_profile(cluster.gpu), cluster


def group(cluster, stride, size) -> Span:
    return span(cluster, np.array([stride]), np.array([size]))


def bus_GBps(seconds, n_bytes, ranks, factor=1):
    return factor * n_bytes * (ranks - 1) / ranks / float(seconds[0]) / 1e9


# measured: nccl tables of aiconfigurator-core 0.12.0, bus bandwidth in GB/s at 512 MiB
@pytest.mark.parametrize(
    ("system", "gpus", "op", "ranks", "factor", "measured"),
    [
        ("dgx-h100", 8, comm.all_gather, 8, 1, 335.2),
        ("dgx-h100", 8, comm.all_reduce, 8, 2, 445),
        ("dgx-h100", 8, comm.all_to_all, 8, 1, 315),
        ("dgx-b200", 8, comm.all_gather, 8, 1, 617),
        ("dgx-b200", 8, comm.all_reduce, 8, 2, 704),
        ("gb200-nvl72", 4, comm.all_to_all, 4, 1, 488),
    ],
)
def test_inside_a_domain_the_measured_bandwidth_comes_back(system, gpus, op, ranks, factor, measured):
    profile, cluster = place(system, gpus)
    n_bytes = 512 * 2.0**20
    seconds = op(profile, cluster, np.array([n_bytes]), group(cluster, 1, ranks))
    assert bus_GBps(seconds, n_bytes, ranks, factor) == pytest.approx(measured, rel=0.01)


# measured: two nodes of 8 H100; GCP A3 Mega (8 x 200 Gb/s) and InfiniBand (8 x 400 Gb/s, torch benchmark)
@pytest.mark.parametrize(
    ("system", "n_bytes", "measured", "tolerance"),
    [
        ("gcp-a3-mega", 8 * 2.0**30, 338.8, 0.06),
        ("gcp-a3-mega", 2.0**30, 297.9, 0.20),
        ("dgx-h100", 1024e6, 435.0, 0.15),
        ("dgx-h100", 10e6, 124.9, 0.15),
        ("dgx-h100", 1e6, 22.3, 0.15),
    ],
)
def test_two_node_all_reduce_is_near_the_measured(system, n_bytes, measured, tolerance):
    profile, cluster = place(system, 16)
    seconds = comm.all_reduce(profile, cluster, np.array([n_bytes]), group(cluster, 1, 16))
    assert bus_GBps(seconds, n_bytes, 16, 2) == pytest.approx(measured, rel=tolerance)


def test_all_to_all_across_nodes_runs_at_n_over_n_minus_1_of_the_card():
    profile, cluster = place(gpus=32)
    n_bytes = 2.0**32
    seconds = comm.all_to_all(profile, cluster, np.array([n_bytes]), group(cluster, 1, 32))
    expected = comm.network_Bps(profile, cluster) * 4 / 3
    assert n_bytes / float(seconds[0]) == pytest.approx(expected, rel=1e-3)


def test_a_strided_group_has_a_whole_card_per_rank_but_no_help_from_its_node():
    profile, cluster = place(gpus=64)
    n_bytes = np.array([2.0**32])
    strided = comm.all_gather(profile, cluster, n_bytes, group(cluster, 8, 8))
    assert float(strided[0]) == pytest.approx(2.0**32 * 7 / 8 / comm.network_Bps(profile, cluster), rel=1e-3)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_one_rank_costs_nothing(op):
    profile, cluster = place()
    assert op(profile, cluster, np.array([1e9]), group(cluster, 1, 1)).tolist() == [0.0]


@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("system", ["dgx-h100", "gb200-nvl72", "l40s-8x-pcie", "vr200-nvl72"])
@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.floats(0, 1e12), st.floats(0, 1e12)),
    shape=st.sampled_from([(1, 2), (1, 3), (1, 4), (1, 8), (2, 16), (8, 4), (64, 2), (1, 64)]),
)
def test_more_bytes_never_take_less_time(op, system, sizes, shape):
    profile, cluster = place(system, 128)
    found = group(cluster, *shape)
    small, large = (float(op(profile, cluster, np.array([size]), found)[0]) for size in sorted(sizes))
    assert 0 < small <= large


@pytest.mark.parametrize("op", COLLECTIVES)
@settings(max_examples=20, deadline=None)
@given(n_bytes=st.floats(0, 1e11), slower=st.floats(1, 20), shape=st.sampled_from([(1, 8), (1, 64), (8, 8), (2, 8)]))
def test_less_bandwidth_never_helps(op, n_bytes, slower, shape):
    profile, cluster = place(gpus=64)
    _, narrow = place(gpus=64, oversubscription=slower)
    found = group(cluster, *shape)
    before, after = (float(op(profile, one, np.array([n_bytes]), found)[0]) for one in (cluster, narrow))
    assert after >= before * (1 - 1e-12)


def test_a_slower_link_than_the_tables_were_measured_on_counts():
    profile, cluster = place("h100-pcie-8x", 8)
    fast_profile, fast = place("dgx-h100", 8)
    n_bytes = np.array([2.0**30])
    slow = comm.all_gather(profile, cluster, n_bytes, group(cluster, 1, 2))
    assert float(slow[0]) > float(comm.all_gather(fast_profile, fast, n_bytes, group(fast, 1, 2))[0])


def test_without_nvlink_the_node_is_the_domain_and_pcie_its_link(tmp_path):
    path = tmp_path / "pcie.yaml"
    path.write_text("{gpu: h100, nic_gbps_per_gpu: 100, nvlink_domain: 1}")
    cluster = make_cluster(load_system(path), 16)
    assert comm.link_Bps(cluster) == 64e9
    assert group(cluster, 1, 16).inside.tolist() == [8]


@pytest.mark.parametrize(
    ("experts", "topk", "units", "expected"),
    [(256, 8, 8, 5.30), (256, 8, 32, 7.27), (256, 8, 4, 3.61), (256, 8, 64, 7.68), (128, 8, 16, 6.60), (8, 2, 8, 2.0)],
)
def test_distinct_destinations_of_uniform_routing(experts, topk, units, expected):
    mlp = ExpertMlp(experts=experts, topk=topk, ffn=1)
    assert float(comm.distinct(mlp, np.array([units]))[0]) == pytest.approx(expected, abs=0.011)


@pytest.mark.parametrize("units", [2, 4, 8, 16, 64])
def test_distinct_destinations_of_group_limited_routing_match_a_simulation(units):
    rng = np.random.default_rng(units)
    mlp = ExpertMlp(experts=64, topk=6, ffn=1, groups=8, group_topk=3)
    total = 0
    for _ in range(4000):
        groups = rng.choice(8, 3, replace=False)
        pool = (groups[:, None] * 8 + np.arange(8)).ravel()
        total += len(set(rng.choice(pool, 6, replace=False) * units // 64))
    assert float(comm.distinct(mlp, np.array([units]))[0]) == pytest.approx(total / 4000, rel=0.02)


def exchange(system, gpus, ep, dispatcher, workload=None, mlp=None, tokens=4096):
    profile, cluster = place(system, gpus)
    one = {"tp": 1, "cp": 1, "pp": 1, "dp": gpus, "etp": 1, "ep": ep, "edp": gpus // ep, "mbs": 1}
    columns = SimpleNamespace(**{k: np.array([v]) for k, v in one.items()}, dispatcher=np.array([int(dispatcher)]))
    mlp = mlp or ExpertMlp(experts=256, topk=8, ffn=2048)
    workload = workload or Workload(seq_len=tokens)
    model = SimpleNamespace(hidden=7168)
    found = comm.expert_exchange(profile, cluster, model, workload, columns, mlp, spans(cluster, columns))
    return float(found[0])


# measured: HybridEP and all-to-all dispatch, h 7168, 4096 tokens, 256 experts, top-8 (measurements: us)
@pytest.mark.parametrize(
    ("system", "ep", "dispatcher", "measured_us"),
    [
        ("dgx-h100", 8, Dispatcher.alltoall, 1265),
        ("dgx-h100", 64, Dispatcher.alltoall, 9164),
        ("dgx-h100", 8, Dispatcher.hybridep, 661),
        ("dgx-h100", 64, Dispatcher.hybridep, 4626),
        ("gb200-nvl72", 64, Dispatcher.alltoall, 930),
        ("gb200-nvl72", 64, Dispatcher.hybridep, 675),
    ],
)
def test_expert_dispatch_is_near_the_measured(system, ep, dispatcher, measured_us):
    factor = load_profile("h100").value("ep_volume_factor")
    got = exchange(system, 64, ep, dispatcher) / factor
    assert got * 1e6 == pytest.approx(measured_us, rel=0.25)


def test_deduplicated_copies_beat_all_to_all_across_nodes():
    assert exchange("dgx-h100", 32, 32, Dispatcher.deepep) < 0.6 * exchange("dgx-h100", 32, 32, Dispatcher.alltoall)


def test_one_expert_rank_exchanges_nothing_and_no_dispatcher_is_free_of_it():
    for dispatcher in Dispatcher:
        assert exchange("dgx-h100", 8, 1, dispatcher) == 0.0
        assert exchange("dgx-h100", 8, 8, dispatcher) > 0.0


@pytest.mark.parametrize("dispatcher", [Dispatcher.deepep, Dispatcher.hybridep])
def test_few_tokens_cost_the_latency_and_more_of_it_across_nodes(dispatcher):
    value = load_profile("h100").value
    inside = exchange("dgx-h100", 16, 8, dispatcher, tokens=1) / value("ep_volume_factor")
    across = exchange("dgx-h100", 16, 16, dispatcher, tokens=1) / value("ep_volume_factor")
    assert inside == pytest.approx(value(f"{dispatcher.name}_latency_s"), rel=0.05)
    assert across - inside == pytest.approx(value(f"{dispatcher.name}_network_latency_s"), rel=0.05)


def test_skew_slows_the_exchange_and_a_capacity_bounds_it():
    plain = exchange("dgx-h100", 8, 8, Dispatcher.alltoall)
    skewed = exchange("dgx-h100", 8, 8, Dispatcher.alltoall, Workload(router_skew=3.0))
    drops = Workload(router_skew=3.0, capacity_factor=1.5, routing="token-drop")
    capped = exchange("dgx-h100", 8, 8, Dispatcher.alltoall, drops)
    assert skewed == pytest.approx(3 * plain)
    assert capped == pytest.approx(1.5 * plain)


def test_limited_groups_cut_the_network_share():
    free = exchange("dgx-h100", 64, 64, Dispatcher.hybridep)
    limited = ExpertMlp(experts=256, topk=8, ffn=2048, groups=8, group_topk=4)
    assert exchange("dgx-h100", 64, 64, Dispatcher.hybridep, mlp=limited) < 0.8 * free


@settings(max_examples=40, deadline=None)
@given(
    op=st.sampled_from(COLLECTIVES),
    rows=st.lists(st.tuples(st.sampled_from([1, 2, 8, 64]), st.integers(1, 64), st.floats(0, 1e11)), min_size=1),
)
def test_a_column_equals_its_rows(op, rows):
    profile, cluster = place(gpus=64)
    stride, size, n_bytes = (np.array(one) for one in zip(*rows, strict=True))
    whole = op(profile, cluster, n_bytes, span(cluster, stride, size))
    single = [
        op(profile, cluster, n_bytes[i : i + 1], span(cluster, stride[i : i + 1], size[i : i + 1]))[0]
        for i in range(len(rows))
    ]
    np.testing.assert_array_equal(whole, single)
