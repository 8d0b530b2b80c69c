"""Seconds of collectives and of expert dispatch, as columns.

`n_bytes` is always the full tensor: what all ranks hold after an all-gather, before a reduce-scatter, in an all-reduce,
and all that one rank sends in an all-to-all, its own share included. Bytes on the wire per rank are then X (n-1)/n for
all-gather, reduce-scatter and all-to-all and twice that for all-reduce.

Inside an NVLink domain the measured size tables of the profile hold (piecewise linear, latency below the smallest
size, constant bandwidth above the largest). A group that spans domains is hierarchical: its `inside` ranks of a domain
share their network cards, the part inside runs at the same time on NVLink, the slower of both counts, and the network
adds its latency; where a cluster was measured across domains (`cost.network`), its curve takes the place of both.
Checked on two H100 nodes, all-reduce bus bandwidth measured / by this rule in GB/s: 8 x 200 Gb/s 339 / 352 at 8 GB;
8 x 400 Gb/s 435 / 479 at 1 GB, 125 / 137 at 10 MB, 22 / 25 at 1 MB. Every function rises with bytes and falls with
bandwidth.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from advisor.cost.elementwise import ZERO
from advisor.cost.placement import Span, Spans, distinct_values
from advisor.cost.profile import Profile
from advisor.cost.router import load_factor
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns, Dispatcher
from advisor.spec.model import ExpertMlp, Model
from advisor.spec.workload import Workload
from advisor.units import gbs_to_bps

PROBABILITY_BYTES, COUNT_BYTES = 4.0, 8.0


def link_Bps(cluster: Cluster) -> float:
    """Bandwidth of one GPU inside the fast domain, one direction: NVLink, or PCIe where there is none."""
    return cluster.nvlink_Bps if cluster.system.nvlink_domain > 1 else gbs_to_bps(cluster.gpu.pcie_uni_gbs)


def network_Bps(profile: Profile, cluster: Cluster) -> float:
    """What collectives reach of the network bandwidth of one GPU."""
    return cluster.network_Bps * profile.value("network_share")


def _inside_s(profile: Profile, cluster: Cluster, op: str, n_bytes: Array, ranks: Array) -> Array:
    faster = profile.table_link_Bps / link_Bps(cluster)
    return profile.collectives[op].seconds(n_bytes * faster, ranks)


def _across_s(profile: Profile, cluster: Cluster, n_bytes: Array, span: Span) -> Array:
    """Seconds to bring the other domains' share of `n_bytes` in through the cards of the ranks of one domain."""
    away = (span.ranks - span.inside) / (span.ranks * span.inside)
    return np.asarray(n_bytes * (away / network_Bps(profile, cluster)))


def _ring_hops(domains: Array) -> Array:
    """Domains that a ring passes beyond the first two."""
    return np.asarray(np.maximum(domains - 2, 0))


def _tree_hops(domains: Array) -> Array:
    """Levels of a tree over domains beyond the first, up and down."""
    return np.asarray(2 * np.log2(np.maximum(domains / 2, 1)))


def _ring_latency_s(profile: Profile, span: Span) -> Array:
    hops = profile.value("network_hop_s") * _ring_hops(span.domains)
    return np.where(span.domains > 1, profile.value("network_latency_s") + hops, 0.0)


def _tree_latency_s(profile: Profile, span: Span) -> Array:
    hops = profile.value("network_hop_s") * _tree_hops(span.domains)
    return np.where(span.domains > 1, 2 * profile.value("network_latency_s") + hops, 0.0)


def _measured_s(profile: Profile, cluster: Cluster, op: str, per_card: Array, span: Span) -> Array:
    """Seconds of the part across domains as it was measured on this cluster, at full bisection."""
    hops = _tree_hops if op == "all_reduce" else _ring_hops
    loaded = per_card * cluster.oversubscription
    return profile.network[op].seconds(loaded, span.domains, hops, profile.value("network_hop_s"))


def all_gather(profile: Profile, cluster: Cluster, n_bytes: Array, span: Span) -> Array:
    """Seconds to gather `n_bytes` (the full tensor) over the group; 0 for a group of one."""
    return _one_way(profile, cluster, "all_gather", n_bytes, span)


def reduce_scatter(profile: Profile, cluster: Cluster, n_bytes: Array, span: Span) -> Array:
    """Seconds to reduce and scatter `n_bytes` (the full tensor) over the group; 0 for a group of one."""
    return _one_way(profile, cluster, "reduce_scatter", n_bytes, span)


def _one_way(profile: Profile, cluster: Cluster, op: str, n_bytes: Array, span: Span) -> Array:
    inside = _inside_s(profile, cluster, op, n_bytes, span.inside)
    if op in profile.network:
        return np.maximum(inside, _measured_s(profile, cluster, op, n_bytes / span.inside, span))
    return np.maximum(inside, _across_s(profile, cluster, n_bytes, span)) + _ring_latency_s(profile, span)


def all_reduce(profile: Profile, cluster: Cluster, n_bytes: Array, span: Span) -> Array:
    """Seconds to all-reduce `n_bytes` over the group; 0 for a group of one."""
    inside = _inside_s(profile, cluster, "all_reduce", n_bytes, span.inside)
    if "all_reduce" in profile.network:
        return np.maximum(inside, _measured_s(profile, cluster, "all_reduce", n_bytes / span.inside, span))
    across: Array = 2 * _across_s(profile, cluster, n_bytes, span)
    return np.maximum(inside, across) + _tree_latency_s(profile, span)


def all_to_all(profile: Profile, cluster: Cluster, n_bytes: Array, span: Span) -> Array:
    """Seconds of an all-to-all in which a rank sends `n_bytes` in total (own share included); 0 for a group of one.

    Across domains a rank sends (n - inside) / n of it through its own card: bus bandwidth N / (N - 1) x card.
    """
    kept = span.inside / span.ranks
    inside = _inside_s(profile, cluster, "all_to_all", n_bytes * kept, span.inside)
    if "all_to_all" in profile.network:
        return np.maximum(inside, _measured_s(profile, cluster, "all_to_all", n_bytes, span))
    across = n_bytes * ((1 - kept) / network_Bps(profile, cluster))
    return np.maximum(inside, across) + _ring_latency_s(profile, span)


def send_recv(profile: Profile, cluster: Cluster, n_bytes: Array, span: Span) -> Array:
    """Seconds of one message of `n_bytes` between neighbours of the group, the slowest pair; 0 for a group of one."""
    leaves = span.domains > 1
    inside_Bps = link_Bps(cluster) * profile.value("p2p_link_share")
    rate = np.where(leaves, network_Bps(profile, cluster), inside_Bps)
    latency = np.where(leaves, profile.value("network_latency_s"), profile.value("p2p_latency_s"))
    return np.where(span.ranks > 1, n_bytes / rate + latency, 0.0)


def expert_exchange(  # noqa: PLR0917 (the order of Setting)
    profile: Profile, cluster: Cluster, model: Model, workload: Workload, columns: Columns, mlp: ExpertMlp, spans: Spans
) -> Array:
    """Seconds of one dispatch (or one combine) of a micro-batch through one expert layer; 0 at ep 1.

    A rank holds seq * mbs / (cp * tp) tokens of `width` elements, 2 bytes each in every format but fp32. all-to-all
    sends `topk` copies of each; DeepEP and HybridEP one copy per distinct domain over the network and one per distinct
    rank over NVLink; all-gather sends every token everywhere. The fullest rank sets the pace, so times grow with the
    router skew, bounded by a capacity.
    """
    width = mlp.latent if mlp.latent is not None else model.hidden
    rows = columns.mbs * (workload.seq_len / (columns.cp * columns.tp))
    n_bytes = rows * (workload.precision.activation_bytes * width)
    span = spans.ep
    copies = all_to_all(profile, cluster, n_bytes * mlp.topk, span)
    everywhere = all_gather(profile, cluster, n_bytes * span.ranks, span)
    ranks_hit, domains_hit = distinct(mlp, span.ranks), distinct(mlp, span.domains)
    inside = n_bytes * ranks_hit * ((span.inside - 1) / span.inside)
    across = n_bytes * domains_hit * ((span.domains - 1) / span.domains)
    deepep = _flex_s(profile, cluster, inside, across, span, name="deepep")
    hybridep = _flex_s(profile, cluster, inside, across, span, name="hybridep")
    kind = columns.dispatcher
    seconds = np.where(kind == Dispatcher.deepep, deepep, np.where(kind == Dispatcher.hybridep, hybridep, copies))
    seconds = seconds * load_factor(workload)
    seconds = np.where(kind == Dispatcher.allgather, everywhere, seconds)
    return np.where(span.ranks > 1, seconds * profile.value("ep_volume_factor"), 0.0)


def expert_messages(  # noqa: PLR0917 (the order of Setting)
    profile: Profile, cluster: Cluster, workload: Workload, columns: Columns, mlp: ExpertMlp, spans: Spans
) -> tuple[Array, Array]:
    """Seconds of the short messages beside the tokens of an all-to-all: router probabilities (each way), token counts.

    The dispatch sends the probability of every copy after the token, the combine's gradient sends it back, and every
    rank gathers how many tokens each expert gets (ML:megatron/core/transformer/moe/token_dispatcher.py, preprocess and
    token_dispatch). `ep_side_messages` of it shows: none on GPUs, where the fitted volume and the wait for counts hold
    it, all of it where a short message takes as long as a long one.
    """
    if profile.value("ep_side_messages") == 0:
        return ZERO, ZERO
    share = np.where(columns.dispatcher == Dispatcher.alltoall, profile.value("ep_side_messages"), 0.0)
    rows = columns.mbs * (workload.seq_len / (columns.cp * columns.tp))
    shares = all_to_all(profile, cluster, PROBABILITY_BYTES * mlp.topk * rows, spans.ep)
    counts = all_gather(profile, cluster, COUNT_BYTES * mlp.experts * spans.ep.ranks, spans.ep)
    return share * shares, share * counts


def _flex_s(
    profile: Profile, cluster: Cluster, inside: Array, across: Array, span: Span, *, name: Literal["deepep", "hybridep"]
) -> Array:
    link = link_Bps(cluster) * profile.value(f"{name}_link_share")
    network = cluster.network_Bps * profile.value(f"{name}_network_share")
    beyond = np.where(span.domains > 1, profile.value(f"{name}_network_latency_s"), 0.0)
    latency = profile.value(f"{name}_latency_s") + beyond
    return np.maximum(inside / link, across / network) + latency


def distinct(mlp: ExpertMlp, units: Array) -> Array:
    """Expected number of distinct units (ranks, domains) that the `topk` experts of a token lie on (columns).

    Experts are spread evenly over `units` and chosen uniformly without repetition; with expert groups a token first
    picks `group_topk` of `groups` groups uniformly and then its experts among theirs. Exact for both; e.g. 256 experts,
    top-8: 5.30 of 8, 7.27 of 32.
    """
    found, index = distinct_values(units)
    per = mlp.experts / found
    groups, picked = mlp.groups or 1, mlp.group_topk or mlp.groups or 1
    in_group = mlp.experts / groups
    reach = np.maximum(per / in_group, 1.0)
    missed = np.zeros(len(found))
    for hit in range(picked + 1):
        weight = _hypergeometric(hit, groups, picked, reach)
        missed = missed + weight * _none_of(hit * per / reach, picked * in_group, mlp.topk)
    return np.asarray((found * (1 - missed))[index])


def _none_of(covered: Array, pool: float, draws: int) -> Array:
    """Probability that `draws` draws from `pool` without repetition avoid `covered` of them."""
    j = np.arange(draws, dtype=np.float64)
    ratio = np.maximum(pool - covered[:, None] - j, 0.0) / np.maximum(pool - j, 1.0)
    return np.asarray(ratio.prod(axis=1))


def _hypergeometric(hit: int, groups: int, picked: int, reach: Array) -> Array:
    """Probability that `hit` of `picked` random groups are among the `reach` groups of a unit (reach real)."""
    out = np.ones_like(reach)
    for j in range(hit):
        out = out * np.maximum(reach - j, 0.0) * (picked - j) / (j + 1) / (groups - j)
    for j in range(picked - hit):
        out = out * np.maximum(groups - reach - j, 0.0) / max(groups - hit - j, 1)
    return out
