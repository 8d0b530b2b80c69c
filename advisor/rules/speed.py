"""Layouts that run and waste time, and facts worth knowing."""

from __future__ import annotations

from advisor.rules.grid import mixers
from advisor.rules.rule import NEVER, SCH, TC, Case, Row, Rule, always, divisors, nearest
from advisor.spec.layout import Array
from advisor.spec.model import DeltaNet, Model

SHORTEST_CHUNK = 1024
"""Tokens per context-parallel rank below which the exchange cannot hide under attention (assumed)."""
DOCS = "ML:megatron/core/transformer/moe/README.md; MB:docs/performance-guide.md"


def _tp_domain(case: Case) -> Array:
    tp, domain = case.columns.tp, case.cluster.used_per_domain
    mask: Array = (tp > 1) & ((tp > domain) | (domain % tp != 0))
    return mask


def _etp_domain(case: Case) -> Array:
    etp, domain = case.columns.etp, case.cluster.used_per_domain
    if not case.model.is_moe:
        return NEVER
    mask: Array = (etp > 1) & ((etp > domain) | (domain % etp != 0))
    return mask


def _straddles(case: Case) -> Array:
    group, domain = case.columns.etp * case.columns.ep, case.cluster.used_per_domain
    if not case.model.is_moe:
        return NEVER
    mask: Array = (group > 1) & (group % domain != 0) & (domain % group != 0)
    return mask


def _inside(row: Row, name: str, value: int) -> str:
    return nearest(name, value, divisors(row.cluster.used_per_domain))


SPEED = (
    Rule(
        "tp-inside-nvlink", "slow", ("tp",), DOCS, _tp_domain,
        lambda r: f"tp {r.layout.tp} does not stay inside an NVLink domain of {r.cluster.used_per_domain} used GPUs:"
        " every layer waits for the network",
        lambda r: _inside(r, "tp", r.layout.tp),
        targets=("advisor",),
    ),
    Rule(
        "etp-inside-nvlink", "slow", ("etp",), DOCS, _etp_domain,
        lambda r: f"etp {r.layout.etp} does not stay inside an NVLink domain of {r.cluster.used_per_domain} used GPUs",
        lambda r: _inside(r, "etp", r.layout.etp),
        targets=("advisor",),
    ),
    Rule(
        "cp-chunk-too-short", "slow", ("cp",), "MB:docs/training/communication-overlap.md (start at one rank per 4096)",
        lambda c: (c.columns.cp > 1) & (c.workload.seq_len < SHORTEST_CHUNK * c.columns.cp),
        lambda r: f"cp {r.layout.cp} leaves {r.workload.seq_len // r.layout.cp} tokens per rank; below"
        f" {SHORTEST_CHUNK} the exchange cannot hide under attention",
        lambda r: nearest("cp", r.layout.cp, [n for n in divisors(r.layout.cp)
                                              if n == 1 or r.workload.seq_len >= SHORTEST_CHUNK * n]),
        targets=("advisor",),
    ),
    Rule(
        "ep-straddles-domains", "slow", ("ep", "etp"), "MB:docs/performance-guide.md (use 64 of 72 GPUs)", _straddles,
        lambda r: f"expert groups of etp {r.layout.etp} x ep {r.layout.ep} straddle NVLink domains of"
        f" {r.cluster.used_per_domain} used GPUs: some lie in one domain, some in two",
        lambda r: nearest("ep", r.layout.ep, divisors(max(1, r.cluster.used_per_domain // r.layout.etp))),
        targets=("advisor",),
    ),
    Rule(
        "microbatches-below-pp", "slow", ("pp", "num_microbatches"), f"{SCH} (bubble = (pp - 1) / (m vpp))",
        lambda c: (c.columns.num_microbatches < c.columns.pp) if c.workload.mode == "train" else NEVER,
        lambda r: f"{r.layout.num_microbatches} microbatches do not fill a pipeline of pp {r.layout.pp}",
        lambda r: nearest("mbs", r.layout.mbs, [n for n in divisors(r.layout.mbs)
                                                if r.layout.gbs // (n * r.layout.dp) >= r.layout.pp],
                          f"gbs={r.layout.pp * r.layout.mbs * r.layout.dp}"),
        targets=("advisor",),
    ),
)  # fmt: skip


def _young_context(model: Model) -> str:
    """The kind of attention for which megatron-core 0.16 refuses context parallelism."""
    found = mixers(model)
    if any(isinstance(mixer, DeltaNet) for mixer in found):
        return "gated delta-net"
    return "sparse attention with an indexer" if any(getattr(m, "indexer", None) for m in found) else ""


NOTES = (
    Rule(
        "context-parallel-needs-newer-core", "info", ("cp",), f"{TC}:1500-1509, 3162 (0.16.1 asserts cp == 1)",
        lambda c: c.columns.cp > 1 if _young_context(c.model) else NEVER,
        lambda r: f"megatron-core 0.16 refuses cp {r.layout.cp} with {_young_context(r.model)}; later releases take it",
        lambda r: "megatron-core>=0.19",
        versions="0.16",
    ),
    Rule(
        "expert-state-not-sharded", "info", ("edp", "ep"),
        "https://github.com/modelscope/ms-swift/issues/8084; ML:megatron/core/parallel_state.py:870-884",
        lambda c: (c.columns.edp == 1) & (c.columns.ep > 1) if c.workload.mode == "train" else NEVER,
        lambda r: "expert data parallelism is 1: each rank keeps the whole optimizer state of its experts"
        " (18 bytes per parameter with fp32 gradients)",
        lambda r: nearest("ep", r.layout.ep, [n for n in divisors(r.layout.ep) if n < r.layout.ep]),
    ),
    Rule(
        "sequence-beyond-training-length", "info", (), "max_position_embeddings of the model's configuration",
        lambda c: always(0 < c.model.max_position < c.workload.seq_len),
        lambda r: f"{r.workload.seq_len} tokens are more than the {r.model.max_position} that {r.model.name} was made"
        " for",
        lambda r: f"seq_len={r.model.max_position}",
        targets=("advisor",),
    ),
)  # fmt: skip
