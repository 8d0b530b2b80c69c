"""Bare layout flags (`--gpus 64 --tp 2 --recompute moe_act`) as settings: their names are those of our options."""

from __future__ import annotations

from advisor.check.subject.form import place
from advisor.rules.lint import Setup
from advisor.rules.lint.setup import SHORT
from advisor.search.dials import KNOB_DIALS
from advisor.search.sources import Setting

RENAMED = {"recompute_granularity": "recompute", "recompute_module": "recompute", "flex_backend": "dispatcher"}
"""Flags of the vendor's tables whose value is one of our settings under another name."""
NAMES = (
    "precision", "task", "optimizer", "routing", "capacity_factor", "fp8_params", "bucket_size", "mtp_depth",
    "attention_impl", "vocab_size", "vocab_divisor", "rank_order", "usable_gib", "headroom", "used_per_domain",
    "oversubscription", "router_skew", *KNOB_DIALS,
)  # fmt: skip
SIZES = {**{name: name for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "mbs", "gbs")}, "seq_len": "seq"}


def words(setup: Setup) -> dict[str, Setting]:
    """Settings by our names with the line of each flag; a model that the flags name comes along."""
    found: dict[str, Setting] = {}
    for name, short in SIZES.items():
        stated = setup.values.get(SHORT[short])
        if stated is not None and stated.value is not None:
            found[name] = Setting(stated.value, place(stated.file, stated.line))
    layout = setup.values.get("model.pipeline_model_parallel_layout")
    if layout is not None:
        found["pipeline_layout"] = Setting(layout.value, place(layout.file, layout.line))
    for key, stated in setup.values.items():
        section, _, name = key.partition(".")
        name = RENAMED.get(name, name)
        if section == "knob" and name in NAMES:
            value = ",".join(map(str, stated.value)) if isinstance(stated.value, list) else stated.value
            found[name] = Setting(value, place(stated.file, stated.line))
    recipe = setup.facts.get("recipe_flag")
    if recipe is not None:
        found["model"] = Setting(recipe.value, place(recipe.file, recipe.line))
    return found
