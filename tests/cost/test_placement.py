import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from advisor.cost.placement import Span, domain_ranks, span, spans
from advisor.spec.hardware import Cluster
from advisor.spec.load.system import load_system, make_cluster, ranks_per_node

FIELDS = ("tp", "cp", "pp", "dp", "etp", "ep", "edp")


def columns(rows):
    return SimpleNamespace(**{name: np.array([row[name] for row in rows]) for name in FIELDS})


def row(tp, cp, pp, dp, etp, ep, edp):
    return dict(zip(FIELDS, (tp, cp, pp, dp, etp, ep, edp), strict=True))


def random_rows(world, count, rng, same_dp=False):
    rows = []
    divisors = [d for d in range(1, world + 1) if world % d == 0]
    while len(rows) < count:
        pp = rng.choice(divisors)
        stage = world // pp
        tp, cp, etp, ep = (int(rng.choice([d for d in divisors if stage % d == 0])) for _ in range(4))
        if stage % (tp * cp) or stage % (etp * ep) or (same_dp and pp > 1 and tp * cp != etp * ep):
            continue
        rows.append(row(tp, cp, int(pp), stage // (tp * cp), etp, ep, stage // (etp * ep)))
    return rows


def grid_groups(dims, vary):
    """All groups of ranks over which the dimensions in `vary` run; `dims` is (name, size), fastest first."""
    strides, at = {}, 1
    for name, size in dims:
        strides[name] = at
        at *= size
    sizes = dict(dims)
    others = [name for name, _ in dims if name not in vary]
    for fixed in itertools.product(*(range(sizes[name]) for name in others)):
        base = sum(i * strides[name] for i, name in zip(fixed, others, strict=True))
        yield sorted(
            base + sum(i * strides[name] for i, name in zip(index, vary, strict=True))
            for index in itertools.product(*(range(sizes[name]) for name in vary))
        )


def brute(groups, block):
    most, fewest = 0, 10**9
    for group in groups:
        blocks = [rank // block for rank in group]
        counts = [blocks.count(one) for one in set(blocks)]
        most, fewest = max(most, len(counts)), min(fewest, *counts)
    return most, fewest


def groups_of(one, order):
    dense = [("tp", one["tp"]), ("cp", one["cp"]), ("dp", one["dp"])]
    expert = [("etp", one["etp"]), ("ep", one["ep"]), ("edp", one["edp"])]
    where = 3 if order == "tp-cp-ep-dp-pp" else 2
    dense.insert(where, ("pp", one["pp"]))
    expert.insert(where, ("pp", one["pp"]))
    return {
        "tp": (dense, ["tp"]),
        "cp": (dense, ["cp"]),
        "tp_cp": (dense, ["tp", "cp"]),
        "dp": (dense, ["dp"]),
        "dp_cp": (dense, ["cp", "dp"]),
        "pp": (dense, ["pp"]),
        "etp": (expert, ["etp"]),
        "ep": (expert, ["ep"]),
        "etp_ep": (expert, ["etp", "ep"]),
        "edp": (expert, ["edp"]),
    }


def cluster_of(system, gpus, order="tp-cp-ep-dp-pp", used=None) -> Cluster:
    return make_cluster(load_system(system), gpus, rank_order=order, used_per_domain=used)


CASES = [
    ("dgx-h100", 64, None), ("dgx-h100", 96, None), ("dgx-h100", 48, None), ("dgx-h100", 8, None),
    ("dgx-h100", 6, None),
    ("gb200-nvl72", 144, 72), ("gb200-nvl72", 288, 72), ("gb200-nvl72", 128, 64), ("gb200-nvl72", 192, 48),
    ("gb200-nvl72", 36, None), ("h100-pcie-8x", 16, None), ("l40s-8x-pcie", 32, None),
]  # fmt: skip


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
@pytest.mark.parametrize(("system", "gpus", "used"), CASES)
def test_spans_equal_the_enumeration_of_all_groups(system, gpus, used, order):
    cluster = cluster_of(system, gpus, order, used)
    rng = np.random.default_rng(gpus)
    rows = random_rows(gpus, 25, rng, same_dp=order != "tp-cp-ep-dp-pp")
    found = spans(cluster, columns(rows))
    node = ranks_per_node(cluster.system, cluster.used_per_domain)
    for i, one in enumerate(rows):
        for name, (dims, vary) in groups_of(one, order).items():
            groups = list(grid_groups(dims, vary))
            got = getattr(found, name)
            assert got.ranks[i] == len(groups[0])
            domains, inside = brute(groups, domain_ranks(cluster))
            nodes, _ = brute(groups, node)
            seen = (int(got.domains[i]), int(got.inside[i]), int(got.nodes[i]))
            if name == "dp_cp" and order == "tp-cp-ep-pp-dp":
                assert seen[0] >= min(domains, got.ranks[i]), (one, name)
            else:
                assert seen == (domains, inside, nodes), (one, name)


def test_strides_that_cross_a_domain_at_odd_places_equal_the_enumeration():
    rng = np.random.default_rng(3)
    for _ in range(300):
        used = int(rng.integers(1, 19)) * 4
        cluster = make_cluster(load_system("gb200-nvl72"), used * int(rng.integers(2, 8)), used_per_domain=used)
        stride, size = int(rng.integers(1, 40)), int(rng.integers(1, 40))
        high = cluster.gpus // (stride * size)
        if not high:
            continue
        groups = [[low + stride * (size * h + j) for j in range(size)] for h in range(high) for low in range(stride)]
        got = span(cluster, np.array([stride]), np.array([size]))
        assert (int(got.domains[0]), int(got.inside[0])) == brute(groups, used), (used, cluster.gpus, stride, size)


def test_aligned_dp_cp_in_the_other_order_is_exact():
    cluster = cluster_of("dgx-h100", 64, "tp-cp-ep-pp-dp")
    rows = [row(2, 2, 2, 8, 2, 2, 8), row(1, 2, 1, 32, 1, 2, 32), row(4, 2, 4, 2, 8, 1, 2)]
    found = spans(cluster, columns(rows)).dp_cp
    for i, one in enumerate(rows):
        dims, vary = groups_of(one, "tp-cp-ep-pp-dp")["dp_cp"]
        assert (found.domains[i], found.inside[i]) == brute(list(grid_groups(dims, vary)), 8)


def test_expert_group_of_32_straddles_racks_only_where_72_gpus_are_used():
    one = [row(1, 1, 1, 576, 1, 32, 18)]
    whole = spans(cluster_of("gb200-nvl72", 576, used=72), columns(one)).ep
    part = spans(cluster_of("gb200-nvl72", 576), columns(one)).ep
    assert (whole.domains[0], whole.inside[0]) == (2, 8)
    assert (part.domains[0], part.inside[0]) == (1, 32)
    assert part.nodes[0] == 8


def test_expert_groups_do_not_depend_on_tensor_and_context_parallelism():
    cluster = cluster_of("dgx-h100", 64)
    found = spans(cluster, columns([row(4, 2, 1, 8, 1, 8, 8), row(1, 1, 1, 64, 1, 8, 8)]))
    assert found.ep.domains.tolist() == [1, 1]


def test_shapes_broadcast():
    cluster = cluster_of("dgx-h100", 64)
    got = span(cluster, np.array([[1], [2]]), np.array([2, 4, 8]))
    assert isinstance(got, Span)
    assert got.domains.shape == got.nodes.shape == got.inside.shape == (2, 3)


@pytest.mark.real
def test_groups_are_those_of_the_installed_rank_generator():
    generator = pytest.importorskip("megatron.core.parallel_state").RankGenerator
    rng = np.random.default_rng(0)
    for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"):
        for one in random_rows(64, 25, rng, same_dp=order != "tp-cp-ep-dp-pp"):
            dense = generator(tp=one["tp"], ep=1, dp=one["dp"], pp=one["pp"], cp=one["cp"], order=order)
            expert = generator(tp=one["etp"], ep=one["ep"], dp=one["edp"], pp=one["pp"], cp=1, order=order)
            names = {"tp": "tp", "cp": "cp", "dp": "dp", "dp_cp": "dp-cp", "pp": "pp", "tp_cp": "tp-cp"}
            for name, token in names.items():
                dims, vary = groups_of(one, order)[name]
                assert sorted(grid_groups(dims, vary)) == sorted(sorted(g) for g in dense.get_ranks(token))
            for name, token in {"ep": "ep", "etp": "tp", "etp_ep": "tp-ep", "edp": "dp"}.items():
                dims, vary = groups_of(one, order)[name]
                assert sorted(grid_groups(dims, vary)) == sorted(sorted(g) for g in expert.get_ranks(token))
