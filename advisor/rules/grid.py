"""World size, the two grids of parallel folding, tensor shapes and the batch.

Attention ranks form the grid tp x cp x dp x pp, expert ranks etp x ep x edp x pp; both fill the world, so the smallest
world is pp * lcm(tp * cp, etp * ep) and ep does not appear in dp.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from advisor.rules.rule import ARG, MPC, NEVER, PS, TC, Case, Row, Rule, always, divisors, nearest, nearest_grid
from advisor.spec.layout import Array
from advisor.spec.model import (
    CompressedAttention,
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    GroupedQueryAttention,
    LatentAttention,
    Mamba,
    Mixer,
    Model,
)


def mixers(model: Model) -> tuple[Mixer, ...]:
    """The distinct mixers of a model."""
    return tuple(dict.fromkeys(layer.mixer for layer in model.kinds if layer.mixer is not None))


def dense_widths(model: Model) -> tuple[int, ...]:
    """Widths of dense feed-forward parts."""
    return tuple({layer.mlp.ffn for layer in model.kinds if isinstance(layer.mlp, DenseMlp)})


def expert_parts(model: Model) -> tuple[ExpertMlp, ...]:
    """The distinct expert parts of a model."""
    return tuple(dict.fromkeys(layer.mlp for layer in model.kinds if isinstance(layer.mlp, ExpertMlp)))


def attention_heads(model: Model) -> tuple[int, ...]:
    """Query head counts of softmax attention."""
    kinds = (GroupedQueryAttention, LatentAttention, CompressedAttention)
    return tuple({mixer.heads for mixer in mixers(model) if isinstance(mixer, kinds)})


def key_groups(model: Model) -> tuple[int, ...]:
    """Key-value head counts of grouped-query attention."""
    return tuple({mixer.kv_heads for mixer in mixers(model) if isinstance(mixer, GroupedQueryAttention)})


def indivisible(counts: Iterable[int], by: Array) -> Array:
    """True where one of `counts` does not divide by `by`."""
    broken = np.zeros(by.shape, dtype=np.bool_)
    for count in counts:
        broken = broken | (count % np.maximum(by, 1) != 0)
    return broken


def _common(counts: Iterable[int]) -> list[int]:
    return divisors(int(np.gcd.reduce(list(counts))))


def _tp_sizes(row: Row) -> list[int]:
    """What tp can be: heads, widths and the sequence divide by it, and the grid fits the world if it can.

    A configuration may leave sizes open: counts of 0 and a sequence of 1 bound nothing.
    """
    model, x = row.model, row.layout
    tokens = row.workload.seq_len // x.cp if x.sp and row.workload.seq_len > 1 else 0
    split = (*attention_heads(model), *_mamba_heads(model), *dense_widths(model), tokens)
    sizes = _common([*split, *(part.shared_ffn for part in expert_parts(model))]) or divisors(row.cluster.gpus)
    sizes = [n for n in sizes if all(n % kv == 0 or kv % n == 0 for kv in key_groups(model) if kv)]
    sizes = [n for n in sizes if all(heads % (n * x.cp) == 0 for heads in _linear_heads(model))]
    return [n for n in sizes if row.cluster.gpus % (n * x.pp * x.cp) == 0] or sizes


def _cp_sizes(row: Row) -> list[int]:
    """What cp can be above 1: each rank takes two chunks of the sequence, if that is stated."""
    if row.workload.seq_len <= 1:
        return divisors(row.cluster.gpus)
    return [n for n in divisors(row.workload.seq_len) if row.workload.seq_len % (2 * n) == 0]


def _expert_sizes(row: Row) -> dict[str, list[int]]:
    """What ep and etp can be in this model."""
    parts = expert_parts(row.model)
    widths = [1] if any(part.bias for part in parts) else _common([0, *(part.ffn for part in parts)])
    return {"ep": _common([0, *(part.experts for part in parts)]), "etp": widths}


def _grid(case: Case) -> Array:
    x = case.columns
    mask: Array = case.cluster.gpus % (x.tp * x.pp * x.cp) != 0
    return mask


def _expert_grid(case: Case) -> Array:
    x = case.columns
    mask: Array = case.cluster.gpus % (x.etp * x.ep * x.pp) != 0
    return mask


def _pp_inside(case: Case) -> Array:
    x = case.columns
    if case.cluster.rank_order.endswith("pp"):
        return NEVER
    mask: Array = (x.pp > 1) & (x.tp * x.cp != x.etp * x.ep)
    return mask


def _groups(case: Case) -> Array:
    tp = case.columns.tp
    broken = np.zeros(tp.shape, dtype=np.bool_)
    for groups in key_groups(case.model):
        broken = broken | ((groups % tp != 0) & (tp % groups != 0))
    return broken


def _linear_heads(model: Model) -> list[int]:
    return [heads for m in mixers(model) if isinstance(m, DeltaNet) for heads in (m.key_heads, m.value_heads)]


def _mamba_heads(model: Model) -> list[int]:
    return [count for m in mixers(model) if isinstance(m, Mamba) for count in (m.heads, m.groups)]


def _mamba_cp(case: Case) -> Array:
    x = case.columns
    broken = np.zeros(np.broadcast_shapes(x.tp.shape, x.cp.shape), dtype=np.bool_)
    for mixer in mixers(case.model):
        if isinstance(mixer, Mamba):
            groups = np.maximum(mixer.groups // x.tp, 1)
            broken = broken | (mixer.heads // x.tp % x.cp != 0) | ((groups % x.cp != 0) & (x.cp % groups != 0))
    return broken


def _batch(case: Case) -> Array:
    x = case.columns
    mask: Array = (x.gbs < x.mbs * x.dp) | (x.gbs % (x.mbs * x.dp) != 0)
    return mask


def _moe_sp(case: Case) -> Array:
    if not case.model.is_moe or case.workload.mode != "train":
        return NEVER
    return (case.columns.tp > 1) & ~case.columns.sp


def _beyond_positions(case: Case) -> Array:
    length = case.model.position_embeddings
    return always(0 < length < case.workload.seq_len)


def _multiple(value: int, unit: int) -> int:
    """The multiple of `unit` closest to `value`, at least one."""
    return unit * max(1, round(value / unit))


def _tp_message(what: str, counts: Iterable[int]) -> str:
    return f"{what} {', '.join(str(count) for count in sorted(set(counts)))} do not divide by"


WORLD = (
    Rule(
        "world-divides-model-grid", "stop", ("tp", "pp", "cp"), f"{PS}:815-825", _grid,
        lambda r: f"{r.cluster.gpus} GPUs are no multiple of tp {r.layout.tp} x pp {r.layout.pp} x cp {r.layout.cp}"
        f" = {r.layout.tp * r.layout.pp * r.layout.cp}",
        lambda r: nearest_grid(r.cluster.gpus, {"tp": _tp_sizes(r), "cp": _cp_sizes(r)},
                               tp=r.layout.tp, pp=r.layout.pp, cp=r.layout.cp),
    ),
    Rule(
        "expert-grid-divides-world", "stop", ("etp", "ep", "pp"), f"{PS}:870-884", _expert_grid,
        lambda r: f"{r.cluster.gpus} GPUs are no multiple of etp {r.layout.etp} x ep {r.layout.ep} x pp {r.layout.pp}"
        f" = {r.layout.etp * r.layout.ep * r.layout.pp}",
        lambda r: nearest_grid(r.cluster.gpus, _expert_sizes(r), ep=r.layout.ep, etp=r.layout.etp, pp=r.layout.pp),
    ),
    Rule(
        "pp-inside-needs-equal-dp", "stop", ("tp", "cp", "ep", "etp", "pp"), f"{PS}:898-902", _pp_inside,
        lambda r: f"rank order {r.cluster.rank_order} with pp {r.layout.pp} needs equal attention and expert data"
        f" parallelism, they are {r.layout.dp} and {r.layout.edp}",
        lambda r: nearest("ep", r.layout.ep, [max(1, r.layout.tp * r.layout.cp // r.layout.etp)],
                          "rank order tp-cp-ep-dp-pp"),
    ),
)  # fmt: skip

SHAPES = (
    Rule(
        "heads-divide-by-tp", "stop", ("tp",), f"{TC}:1446",
        lambda c: indivisible(attention_heads(c.model), c.columns.tp),
        lambda r: f"{_tp_message('attention heads', attention_heads(r.model))} tp {r.layout.tp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r)),
    ),
    Rule(
        "kv-groups-multiple-or-divisor", "stop", ("tp",), f"{TC}:1461", _groups,
        lambda r: f"{', '.join(map(str, key_groups(r.model)))} key-value groups are neither a multiple nor a divisor"
        f" of tp {r.layout.tp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r)),
    ),
    Rule(
        "linear-heads-divide-by-tp-cp", "stop", ("tp", "cp"), f"{TC}:1500-1509",
        lambda c: indivisible(_linear_heads(c.model), c.columns.tp * c.columns.cp),
        lambda r: f"{_tp_message('linear-attention heads', _linear_heads(r.model))}"
        f" tp {r.layout.tp} x cp {r.layout.cp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r), "cp=1"),
        versions=">=0.17 (0.16 has no context parallelism here)",
    ),
    Rule(
        "mamba-heads-divide-by-tp", "stop", ("tp",), "ML:megatron/core/ssm/mamba_mixer.py:260-268",
        lambda c: indivisible(_mamba_heads(c.model), c.columns.tp),
        lambda r: f"{_tp_message('mamba heads and groups', _mamba_heads(r.model))} tp {r.layout.tp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r)),
    ),
    Rule(
        "mamba-heads-divide-by-cp", "stop", ("tp", "cp"), "ML:megatron/core/ssm/mamba_context_parallel.py:106-130",
        _mamba_cp,
        lambda r: f"mamba heads and groups of a tp rank (tp {r.layout.tp}) do not divide over cp {r.layout.cp}",
        lambda r: "cp=1",
    ),
    Rule(
        "ffn-divides-by-tp", "stop", ("tp",), "ML:megatron/core/utils.py:590-599",
        lambda c: indivisible(dense_widths(c.model), c.columns.tp),
        lambda r: f"{_tp_message('dense feed-forward widths', dense_widths(r.model))} tp {r.layout.tp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r)),
    ),
    Rule(
        "shared-ffn-divides-by-tp", "stop", ("tp",), "ML:megatron/core/utils.py:590-599",
        lambda c: indivisible([e.shared_ffn for e in expert_parts(c.model)], c.columns.tp),
        lambda r: f"{_tp_message('shared-expert widths', [e.shared_ffn for e in expert_parts(r.model)])}"
        f" tp {r.layout.tp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r)),
    ),
    Rule(
        "expert-ffn-divides-by-etp", "stop", ("etp",), "ML:megatron/core/utils.py:590-599",
        lambda c: indivisible([e.ffn for e in expert_parts(c.model)], c.columns.etp),
        lambda r: f"{_tp_message('expert widths', [e.ffn for e in expert_parts(r.model)])} etp {r.layout.etp}",
        lambda r: nearest("etp", r.layout.etp, _common([e.ffn for e in expert_parts(r.model)])),
    ),
    Rule(
        "sp-needs-tp", "stop", ("sp", "tp"), f"{MPC}:__post_init__",
        lambda c: c.columns.sp & (c.columns.tp <= 1),
        lambda r: f"sequence parallelism needs tp > 1, tp is {r.layout.tp}",
        lambda r: "sp=false",
    ),
    Rule(
        "moe-tp-needs-sp", "stop", ("sp", "tp"), "ML:megatron/core/transformer/moe/moe_layer.py:636", _moe_sp,
        lambda r: f"training experts with tp {r.layout.tp} needs sequence parallelism, which is off",
        lambda r: "sp=true",
    ),
    Rule(
        "sequence-divides-by-tp", "stop", ("tp", "cp", "sp"), "ML:megatron/core/tensor_parallel/mappings.py:74,178",
        lambda c: c.columns.sp & (c.workload.seq_len // c.columns.cp % c.columns.tp != 0),
        lambda r: f"{r.workload.seq_len} tokens over cp {r.layout.cp} leave {r.workload.seq_len // r.layout.cp},"
        f" which does not divide by tp {r.layout.tp}",
        lambda r: nearest("tp", r.layout.tp, _tp_sizes(r)),
    ),
    Rule(
        "learned-positions-cover-sequence", "stop", (), f"{ARG}:1335-1357",
        _beyond_positions,
        lambda r: f"the position table has {r.model.position_embeddings} entries, the sequence"
        f" {r.workload.seq_len} tokens",
        lambda r: f"seq_len={r.model.position_embeddings}",
        targets=("megatron-lm",),
    ),
)  # fmt: skip


BATCH = (
    Rule(
        "gbs-divides-by-mbs-dp", "stop", ("gbs", "mbs", "dp"),
        "ML:megatron/core/num_microbatches_calculator.py:381-391", _batch,
        lambda r: f"gbs {r.layout.gbs} is no multiple of mbs {r.layout.mbs} x dp {r.layout.dp}"
        f" = {r.layout.mbs * r.layout.dp}",
        lambda r: f"gbs={_multiple(r.layout.gbs, r.layout.mbs * r.layout.dp)}",
    ),
)  # fmt: skip
