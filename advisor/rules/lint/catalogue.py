"""All rules over configurations in the order of stages, and how they are asked."""

from __future__ import annotations

from advisor.rules import RULES
from advisor.rules.lint.arguments import ARGUMENTS
from advisor.rules.lint.columns import column_rules
from advisor.rules.lint.experts import EXPERTS
from advisor.rules.lint.form import ConfigRule, Hit, fill, rule
from advisor.rules.lint.frame import FRAME
from advisor.rules.lint.grid import GRID
from advisor.rules.lint.launch import LAUNCH
from advisor.rules.lint.lessons import LESSON_RULES
from advisor.rules.lint.overlap import OVERLAP_RULES
from advisor.rules.lint.resilience import RESILIENCE
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import TRANSFORMER
from advisor.rules.rule import AnyRule

STAGES = ("read", "arguments", "grid", "transformer", "overlap", "environment", "launch", "checkpoint", "resiliency")
"""Stages of a check: what was read, then from the arguments to what happens while the job runs."""

READ_RULES = (
    rule("unknown-flag", "stop", "read", "bridge megatron-lm", "presets/launch/megatron_arguments.json",
         lambda c: None, "a flag that is almost one that exists (info where nothing is like it)", "the closest name"),
    rule("unknown-field", "stop", "read", "bridge", "presets/check/bridge_fields.json (bridge 0.3.1 and 0.6.2)",
         lambda c: None, "a field that no configuration class has: refused as an override, lost when assigned in "
         "Python",
         "the closest name"),
    rule("argument-value", "stop", "read", "megatron-lm", "presets/launch/megatron_arguments.json",
         lambda c: None, "a value that the argument parser refuses", "a value of the kind or choices shown"),
)  # fmt: skip
"""Rules that readers apply while they read a file; here for their explanation."""

_EVERY = (
    *column_rules(),
    *GRID,
    *ARGUMENTS,
    *TRANSFORMER,
    *EXPERTS,
    *FRAME,
    *OVERLAP_RULES,
    *LAUNCH,
    *LESSON_RULES,
    *RESILIENCE,
)
CONFIG_RULES: tuple[ConfigRule, ...] = tuple(sorted(_EVERY, key=lambda one: STAGES.index(one.stage)))


def ask(one: ConfigRule, setup: Setup) -> Hit | None:
    """The complete finding of one rule, or None: message and fix with values, file and line of what it looked at."""
    setup.asked.clear()
    found = one.broken(setup) if one.applies(setup) else None
    if not found:
        return None
    hit = found if isinstance(found, Hit) else Hit(found if isinstance(found, str) else "")
    file, line = (hit.file, hit.line) if hit.line else setup.place(setup.asked)
    return Hit(hit.message or fill(one.says, setup), fill(hit.fix or one.fix, setup), file, line)


def rules_by_id() -> dict[str, tuple[AnyRule, ...]]:
    """Every rule under its id: the form over columns, the form over configurations, or both; ids of readers too."""
    found: dict[str, tuple[AnyRule, ...]] = {}
    every: tuple[AnyRule, ...] = (*RULES, *CONFIG_RULES, *READ_RULES)
    for one in every:
        found[one.id] = (*found.get(one.id, ()), one)
    return found
