"""Rules over columns, asked of one configuration: the sizes it states become a table of one row.

The formulae of the two grids, of divisibility and of the batch are written once, in `advisor.rules.grid` and its
neighbours. A configuration rarely states everything, so a rule is asked only where the settings it reads are known.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from advisor.rules import experts, grid, pipeline, speed
from advisor.rules.lint.form import ConfigRule, Hit
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.texts import layout_text
from advisor.rules.rule import Case, Row, Rule, partial_columns
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Knobs, Layout
from advisor.spec.model import DenseMlp, ExpertMlp, GroupedQueryAttention, Layer, Model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

COLUMNS: dict[str, tuple[str, ...]] = {
    "world-divides-model-grid": ("gpus",),
    "expert-grid-divides-world": ("gpus",),
    "heads-divide-by-tp": ("num_attention_heads",),
    "kv-groups-multiple-or-divisor": ("num_query_groups",),
    "ffn-divides-by-tp": ("ffn_hidden_size",),
    "expert-ffn-divides-by-etp": ("moe_ffn_hidden_size", "experts"),
    "moe-tp-needs-sp": ("experts", "sp"),
    "sequence-divides-by-tp": ("seq", "sp"),
    "sequence-divides-by-cp": ("seq",),
    "gbs-divides-by-mbs-dp": ("gpus", "dp", "mbs", "gbs"),
    "experts-divide-by-ep": ("experts",),
    "ep-needs-experts": ("no experts",),
    "interleave-needs-pp": ("pp",),
    "microbatches-divide-by-pp": ("gpus", "dp", "mbs", "gbs"),
    "microbatches-below-pp": ("gpus", "dp", "mbs", "gbs"),
    "tp-inside-nvlink": ("domain",),
    "ep-straddles-domains": ("domain", "experts"),
}
"""Column rules that a configuration can be asked, and what must be known of it."""
ONE_STAGE = PipelineSplit(1, 1, (0,))
STAGE = {"num_attention_heads": "transformer", "num_query_groups": "transformer", "ffn_hidden_size": "transformer"}


def _ready(setup: Setup, needs: tuple[str, ...]) -> bool:
    for need in needs:
        if need == "gpus":
            ready = bool(setup.gpus)
        elif need == "dp":
            ready = setup.dp is not None
        elif need == "domain":
            ready = bool(setup.nvlink_domain)
        elif need == "no experts":
            ready = setup.known("experts") and not setup.number("experts") and setup.given("ep")
        elif need == "sp":
            ready = setup.known("sp")
        else:
            ready = (setup.number(need) or 0) > 0
        if not ready:
            return False
    return True


def _number(setup: Setup, key: str) -> int:
    """A count, 0 where it is unknown: 0 divides by everything."""
    return int(setup.number(key) or 0)


def _model(setup: Setup) -> Model:
    heads = _number(setup, "num_attention_heads")
    attention = GroupedQueryAttention(heads, _number(setup, "num_query_groups") or heads, 1, 1)
    count = _number(setup, "experts")
    parts = [Layer(attention, DenseMlp(_number(setup, "ffn_hidden_size")))]
    if count:
        parts = [Layer(attention, ExpertMlp(count, 1, _number(setup, "moe_ffn_hidden_size")))]
    layers = max(1, min(_number(setup, "layers"), 10_000))
    return Model("the model", "", 1, 1, tuple(parts), (0,) * layers, False)


def row_of(setup: Setup) -> tuple[Case, Row]:
    """The configuration as a table of one row, unknown sizes 1, and the same as a row for messages."""
    dp = setup.dp or 1
    mbs, gbs = max(1, _number(setup, "mbs")), max(1, _number(setup, "gbs"))
    sizes: dict[str, Any] = {
        "tp": setup.tp, "pp": setup.pp, "vpp": setup.vpp, "cp": setup.cp, "ep": setup.ep, "etp": setup.etp,
        "dp": dp, "edp": 1, "mbs": mbs, "gbs": gbs, "num_microbatches": gbs // (mbs * dp), "sp": setup.on("sp"),
    }  # fmt: skip
    columns: dict[str, Array] = {name: np.array([value]) for name, value in sizes.items()}
    # The order of ranks and the wiring beyond the domain matter to none of the rules above.
    cluster = cast(
        Cluster,
        SimpleNamespace(
            gpus=setup.gpus or 0, used_per_domain=setup.nvlink_domain or 1, rank_order="tp-cp-ep-dp-pp"
        ),
    )  # fmt: skip
    model, workload = _model(setup), Workload(seq_len=max(1, _number(setup, "seq")))
    split = _split(setup)
    columns["split"] = np.zeros(1, dtype=np.int64)
    layout = Layout(**{name: sizes[name] for name in sizes if name != "num_microbatches"}, split=split)
    case = Case(model, cluster, workload, partial_columns(columns, (split,)))
    return case, Row(model, cluster, workload, layout, Knobs())


def _split(setup: Setup) -> PipelineSplit:
    """Stages without layers: the rules asked here read their number and the microbatch group only."""
    group = _number(setup, "microbatch_group_size_per_vp_stage") or None
    chunks = setup.pp * setup.vpp
    return PipelineSplit(setup.pp, setup.vpp, (0,) * chunks, group=group) if chunks < 10_000 else ONE_STAGE


def _asked(one: Rule, needs: tuple[str, ...]) -> ConfigRule:
    def broken(setup: Setup) -> Hit | None:
        if not _ready(setup, needs):
            return None
        case, row = row_of(setup)
        return Hit(one.message(row), one.fix(row)) if bool(np.asarray(one.broken(case)).any()) else None

    stage = STAGE.get(needs[0], "grid")
    return ConfigRule(one.id, one.severity, stage, one.targets, one.source, broken, *layout_text(one.id),
                      f"megatron-core {one.versions}")  # fmt: skip


def column_rules() -> tuple[ConfigRule, ...]:
    """The column rules of `COLUMNS` as rules over a configuration, in the order of the table."""
    every = (*grid.WORLD, *grid.SHAPES, *grid.BATCH, *pipeline.SPLIT, *pipeline.CONTEXT, *experts.SIZES, *speed.SPEED)
    by_id = {one.id: one for one in every}
    return tuple(_asked(by_id[id], needs) for id, needs in COLUMNS.items())
