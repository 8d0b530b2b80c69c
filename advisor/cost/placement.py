"""Where communication groups lie: how many NVLink domains and nodes each spans, by alignment and not by size.

Megatron numbers ranks by a mixed radix, leftmost dimension of the rank order fastest (megatron_core 0.16.1
core/parallel_state.py, RankGenerator). With the default tp-cp-ep-dp-pp
    attention rank = i_t + t * (i_c + c * (i_D + D * i_p))
    expert rank    = i_te + te * (i_e + e * (i_De + De * i_p))
so every group is an arithmetic progression `low + stride * (size * high + j)`, j = 0 .. size - 1, with low < stride.
Ranks fill the used GPUs of one NVLink domain after the other, so rank r lies in domain r // used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns
from advisor.spec.load.system import ranks_per_node


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """One kind of group for every row; the worst of its groups counts.

    `ranks` members, `stride` between neighbours, `domains` and `nodes` the most that a group touches, `inside` the
    fewest members that a touched domain holds (= ranks where the group never leaves a domain): these members share
    their network cards for all traffic to the others.
    """

    ranks: Array
    stride: Array
    inside: Array
    domains: Array
    nodes: Array


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Spans of all groups of a table. `pp` is a pipeline; `dp_cp` shards dense, `edp` expert optimizer state."""

    tp: Span
    cp: Span
    tp_cp: Span
    dp: Span
    dp_cp: Span
    pp: Span
    etp: Span
    ep: Span
    etp_ep: Span
    edp: Span


def domain_ranks(cluster: Cluster) -> int:
    """Ranks in one fast domain: the used GPUs of an NVLink domain, or of a node where GPUs have no NVLink."""
    if cluster.system.nvlink_domain > 1:
        return cluster.used_per_domain
    return ranks_per_node(cluster.system, cluster.used_per_domain)


def spans(cluster: Cluster, columns: Columns, ep_domain: int | None = None) -> Spans:
    """Spans of all groups; arrays have the broadcast shape of the layout columns they depend on.

    `ep_domain` is how many neighbouring ranks the exchange of experts takes for one domain, None those that are.
    In the order tp-cp-ep-pp-dp the group dp x cp is no progression; its span is the product of both, exact where
    domains and extents divide each other and an upper bound on domains elsewhere.
    """
    tp, cp, pp, dp = columns.tp, columns.cp, columns.pp, columns.dp
    etp, ep, edp = columns.etp, columns.ep, columns.edp
    one = np.ones_like(tp)
    dense, expert = tp * cp, etp * ep
    pp_last = cluster.rank_order == "tp-cp-ep-dp-pp"
    groups = {
        "tp": (one, tp),
        "cp": (tp, cp),
        "tp_cp": (one, dense),
        "dp": (dense if pp_last else dense * pp, dp),
        "dp_cp": (tp, cp * dp),
        "pp": (dense * dp if pp_last else dense, pp),
        "etp": (one, etp),
        "ep": (etp, ep),
        "etp_ep": (one, expert),
        "edp": (expert if pp_last else expert * pp, edp),
    }
    # One call for all groups: it costs dozens of operations whatever it works on.
    stacked = np.stack(np.broadcast_arrays(*(size for group in groups.values() for size in group)))
    every = span(cluster, stacked[0::2], stacked[1::2])
    found = {name: Span(*(getattr(every, field.name)[i] for field in fields(Span))) for i, name in enumerate(groups)}
    if ep_domain is not None:
        found["ep"] = span(cluster, etp, ep, ep_domain)
    return Spans(**found if pp_last else found | {"dp_cp": _product(found["cp"], found["dp"])})


def span(cluster: Cluster, stride: Array, size: Array, domain: int | None = None) -> Span:
    """Span of the groups `low + stride * (size * high + j)`; `stride` and `size` broadcast.

    `domain` is the number of neighbouring ranks that count as one domain, None those of `domain_ranks`.
    """
    stride, size = np.broadcast_arrays(stride, size)
    steps, step_index = distinct_values(stride)
    sizes, size_index = distinct_values(size)
    pairs, inverse = distinct_values(step_index * len(sizes) + size_index)
    step, ranks = steps[pairs // len(sizes)], sizes[pairs % len(sizes)]
    domains, inside = _worst(step, ranks, domain or domain_ranks(cluster), cluster.gpus)
    nodes, _ = _worst(step, ranks, ranks_per_node(cluster.system, cluster.used_per_domain), cluster.gpus)
    return Span(size, stride, inside[inverse], domains[inverse], nodes[inverse])


def distinct_values(values: Array) -> tuple[Array, Array]:
    """Sorted distinct values of small non-negative integers and the index of each value among them.

    As np.unique with return_inverse, without sorting: layouts have many rows and few different sizes.
    """
    present = np.zeros(values.max(initial=0) + 1, dtype=bool)
    present[values] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


def _worst(stride: Array, size: Array, block: int, gpus: int) -> tuple[Array, Array]:
    """Most blocks of `block` consecutive ranks that a group touches, and its fewest members in one of them.

    A group starts at residue x = low + (stride * size * high) mod block. The residues of its multiples of the extent
    repeat after block / gcd(extent, block) groups; the worst `low` of each is the largest that stays below the block
    end. With stride >= block all members lie apart.
    """
    extent = stride * size
    groups = np.maximum(gpus // extent, 1)
    period = np.minimum(groups, block // np.gcd(extent, block))
    high = np.arange(period.max(), dtype=np.int64)
    start = extent[:, None] * np.minimum(high, period[:, None] - 1) % block
    step, members, length = stride[:, None], size[:, None], (extent - stride)[:, None]
    latest = np.minimum(start + step - 1, block - 1)
    touched = (latest + length) // block + 1
    first = -((latest - block) // step)
    rest = (start + length) % block
    final = np.where(rest + step > block, 1, rest // step + 1)
    least = np.minimum(np.minimum(first, final), np.where(touched > 2, np.maximum(block // step, 1), members))
    least = np.where(touched > 1, np.minimum(least, members), members)
    apart = stride >= block
    return np.where(apart, size, touched.max(axis=1)), np.where(apart, 1, least.min(axis=1))


def _product(inner: Span, outer: Span) -> Span:
    return Span(
        ranks=inner.ranks * outer.ranks,
        stride=inner.stride,
        inside=inner.inside * outer.inside,
        domains=inner.domains * outer.domains,
        nodes=inner.nodes * outer.nodes,
    )
