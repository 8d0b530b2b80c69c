"""Interleaving, the split of layers over stages, prediction modules, and what a context-parallel exchange can carry."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from advisor.rules.grid import attention_heads, key_groups, mixers
from advisor.rules.rule import ARG, CPY, NEVER, PS, SCH, TC, Case, Row, Rule, divisors, nearest
from advisor.spec.layout import Array, CpComm
from advisor.spec.model import CompressedAttention, GroupedQueryAttention, LatentAttention, Model
from advisor.spec.split import PipelineSplit

LAYOUT_FILE = "ML:megatron/core/transformer/pipeline_parallel_layer_layout.py"


def _short(case: Case) -> Array:
    x = case.columns
    mask: Array = x.pp * x.vpp - 2 > np.maximum(case.model.num_layers, x.pp * 0 + 1)
    return mask


def _over_splits(case: Case, broken: Callable[[PipelineSplit], bool]) -> Array:
    """`broken` asked once per distinct split and spread over the rows."""
    answers = np.array([broken(split) for split in case.columns.splits], dtype=np.bool_)
    return answers[case.columns.split] if answers.any() else NEVER


def _deals_all(model: Model, split: PipelineSplit) -> bool:
    return sum(split.layers) == model.num_layers and min(split.layers) >= 0


def _form_holds(split: PipelineSplit) -> bool:
    """Whether Megatron builds exactly these chunks from what the form can express."""
    layers = list(split.layers)
    if split.form == "even":
        return len(set(layers)) == 1
    if split.form == "account":
        layers[0] += split.account_embedding
        layers[-1] += split.account_loss
        return len(set(layers)) == 1
    if split.form == "uneven":
        first, last = layers[:: split.pp], layers[split.pp - 1 :: split.pp]
        middle = {layers[chunk] for chunk in range(len(layers)) if 0 < chunk % split.pp < split.pp - 1}
        alike = len(set(first)) == len(set(last)) == 1 and len(middle) <= 1
        return split.pp > 1 and alike and min(layers) > 0
    return True


def _modules_misplaced(split: PipelineSplit) -> bool:
    if split.mtp_chunk is None:
        return False
    chunk, chunks = split.mtp_chunk, split.pp * split.vpp
    if split.form != "layout":
        return chunk != chunks - 1
    first_rank = split.pp > 1 and split.vpp > 1 and chunk % split.pp == 0
    return chunk < chunks - split.pp or first_rank or sum(split.layers[chunk + 1 :]) > 0


def _hybrid_form(case: Case) -> Array:
    if not case.model.is_hybrid:
        return NEVER
    return _over_splits(case, lambda split: split.form not in {"even", "pattern"})


def _microbatches(case: Case) -> Array:
    """Microbatches come in groups of N (pp unless the split says otherwise): pp <= N <= m, rest 0 or at least pp."""
    x, splits = case.columns, case.columns.splits
    group = x.pp
    if any(split.group for split in splits):
        group = np.array([split.group or split.pp for split in splits])[x.split]
    rest = x.num_microbatches % group
    mask: Array = (x.vpp > 1) & ((group < x.pp) | (x.num_microbatches < group) | ((rest > 0) & (rest < x.pp)))
    return mask


def _fewer_vpp(row: Row) -> str:
    layers = row.model.num_layers
    return nearest("vpp", row.layout.vpp, range(1, max((layers + 2) // max(row.layout.pp, 1), 1) + 1))


def _microbatch_fix(row: Row) -> str:
    per_rank = row.layout.gbs // row.layout.dp if row.layout.dp else 0
    return nearest("mbs", row.layout.mbs, [m for m in divisors(per_rank) if (per_rank // m) % row.layout.pp == 0],
                   "vpp=1")  # fmt: skip


SPLIT = (
    Rule(
        "interleave-needs-pp", "stop", ("pp", "vpp"), f"{PS}:827",
        lambda c: (c.columns.vpp > 1) & (c.columns.pp <= 1),
        lambda r: f"vpp {r.layout.vpp} interleaves a pipeline, pp is {r.layout.pp}",
        lambda r: "vpp=1",
    ),
    Rule(
        "layers-fill-stages", "stop", ("pp", "vpp"), f"{LAYOUT_FILE}:25-151", _short,
        lambda r: f"{r.model.num_layers} layers cannot fill pp {r.layout.pp} x vpp {r.layout.vpp}"
        f" = {r.layout.pp * r.layout.vpp} stages (the first may hold the embedding alone, the last the loss)",
        _fewer_vpp,
        targets=("advisor",),
    ),
    Rule(
        "pp2-interleave-needs-overlap", "stop", ("pp", "vpp", "overlap_p2p"), f"{ARG}:1000-1009",
        lambda c: (c.columns.vpp > 1) & (c.columns.pp == 2) & ~c.columns.overlap_p2p,
        lambda r: "interleaving over pp 2 needs the overlap of point-to-point transfers, which is off",
        lambda r: "overlap_p2p=true",
        targets=("megatron-lm",),
    ),
    Rule(
        "microbatches-divide-by-pp", "stop", ("pp", "vpp", "num_microbatches"), f"{SCH}:1160-1180", _microbatches,
        lambda r: f"interleaving over pp {r.layout.pp} takes microbatches in groups of"
        f" {r.layout.split.group or r.layout.pp}, there are {r.layout.num_microbatches}",
        _microbatch_fix,
    ),
    Rule(
        "split-deals-all-layers", "stop", ("split",), f"{LAYOUT_FILE}:121-124",
        lambda c: _over_splits(c, lambda split: not _deals_all(c.model, split)),
        lambda r: f"the split deals {sum(r.layout.split.layers)} layers, the model has {r.model.num_layers}",
        lambda r: "leave the split to the advisor",
    ),
    Rule(
        "layers-divide-by-pp", "stop", ("split",), f"{TC}:2229-2415",
        lambda c: _over_splits(c, lambda split: not _form_holds(split)),
        lambda r: f"{r.model.num_layers} layers as {list(r.layout.split.layers)} cannot be written in form"
        f" {r.layout.split.form!r}",
        lambda r: "use a layout string",
    ),
    Rule(
        "modules-on-last-virtual-stage", "stop", ("split",), f"{LAYOUT_FILE}:128-151",
        lambda c: _over_splits(c, _modules_misplaced),
        lambda r: f"prediction modules on stage {r.layout.split.mtp_chunk} of {len(r.layout.split.layers)}: they must"
        " follow all layers, on the last virtual stage of a rank, not of the first one",
        lambda r: f"mtp stage {len(r.layout.split.layers) - 1}",
    ),
    Rule(
        "hybrid-split-by-pattern", "stop", ("split",), f"{ARG}:787-862", _hybrid_form,
        lambda r: f"a hybrid model takes its stages from | in the layer pattern, not from form"
        f" {r.layout.split.form!r}",
        lambda r: "put | into hybrid_layer_pattern",
        targets=("megatron-lm",),
    ),
)  # fmt: skip


def _windows(model: Model) -> list[int]:
    return [m.window for m in mixers(model) if isinstance(m, GroupedQueryAttention | CompressedAttention) and m.window]


def _sinks(model: Model) -> bool:
    return any(m.sinks for m in mixers(model) if isinstance(m, GroupedQueryAttention))


def _indexed(model: Model) -> bool:
    softmax = (GroupedQueryAttention, LatentAttention, CompressedAttention)
    return any(m.indexer is not None for m in mixers(model) if isinstance(m, softmax))


def _is(case: Case, *kinds: CpComm) -> Array:
    """Entries that run context parallelism with one of these exchanges."""
    x = case.columns
    return (x.cp > 1) & np.isin(x.cp_comm, [int(kind) for kind in kinds])


def _a2a_heads(case: Case) -> Array:
    x = case.columns
    broken = np.zeros(np.broadcast_shapes(x.tp.shape, x.cp.shape), dtype=np.bool_)
    for count in (*attention_heads(case.model), *key_groups(case.model)):
        broken = broken | (np.maximum(count // x.tp, 1) % x.cp != 0)
    return _is(case, CpComm.a2a) & broken


def _two_levels(case: Case) -> Array:
    """a2a+p2p needs a product of two sizes above 1."""
    cp = case.columns.cp
    sizes, which = np.unique(cp, return_inverse=True)
    composite = np.array([len(divisors(int(size))) > 2 for size in sizes])
    mask: Array = _is(case, CpComm.a2a_p2p) & ~composite[which].reshape(cp.shape)
    return mask


CONTEXT = (
    Rule(
        "sequence-divides-by-cp", "stop", ("cp",), f"{ARG}:1335-1357",
        lambda c: (c.columns.cp > 1) & (c.workload.seq_len % (2 * c.columns.cp) != 0),
        lambda r: f"{r.workload.seq_len} tokens do not divide by 2 x cp {r.layout.cp}: each rank takes two chunks",
        lambda r: nearest("cp", r.layout.cp, [1, *divisors(r.workload.seq_len // 2)]),
    ),
    Rule(
        "cp-a2a-heads", "stop", ("tp", "cp", "cp_comm"), f"{CPY}:4224-4249", _a2a_heads,
        lambda r: f"cp_comm a2a deals the heads of a tp rank ({', '.join(map(str, attention_heads(r.model)))} heads,"
        f" {', '.join(map(str, key_groups(r.model)))} groups over tp {r.layout.tp}) to cp {r.layout.cp} ranks,"
        " which does not divide",
        lambda r: "cp_comm=all_gather" if _windows(r.model) else "cp_comm=p2p",
        targets=("te",),
    ),
    Rule(
        "a2a-p2p-needs-hierarchy", "stop", ("cp", "cp_comm"), f"{TC}:1030-1044", _two_levels,
        lambda r: f"cp_comm a2a+p2p needs cp as a product of two sizes, cp is {r.layout.cp}",
        lambda r: "cp_comm=p2p",
    ),
    Rule(
        "cp-window-needs-all-keys", "stop", ("cp", "cp_comm"), f"{CPY}:5057",
        lambda c: _is(c, CpComm.p2p, CpComm.a2a_p2p) if _windows(c.model) else NEVER,
        lambda r: f"sliding windows ({', '.join(map(str, sorted(set(_windows(r.model)))))} keys) do not run over the"
        f" {r.knobs.cp_comm.name} exchange",
        lambda r: "cp_comm=a2a" if _sinks(r.model) else "cp_comm=all_gather",
        targets=("te",),
    ),
    Rule(
        "cp-sinks-need-a2a", "stop", ("cp", "cp_comm"), f"{CPY}:5065",
        lambda c: _is(c, CpComm.p2p, CpComm.all_gather, CpComm.a2a_p2p) if _sinks(c.model) else NEVER,
        lambda r: f"attention sinks run over the a2a exchange only, not over {r.knobs.cp_comm.name}",
        lambda r: "cp_comm=a2a",
        targets=("te",),
    ),
    Rule(
        "cp-indexer-needs-all-gather", "stop", ("cp", "cp_comm"), f"{TC}:3162",
        lambda c: _is(c, CpComm.p2p, CpComm.a2a, CpComm.a2a_p2p) if _indexed(c.model) else NEVER,
        lambda r: f"sparse attention with an indexer needs cp_comm all_gather, not {r.knobs.cp_comm.name}",
        lambda r: "cp_comm=all_gather",
        versions=">=0.17 (0.16 refuses any cp > 1)",
    ),
)  # fmt: skip
