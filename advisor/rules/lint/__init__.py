"""Rules over somebody's configuration: the same ids, severities and sources as the rules over columns."""

from __future__ import annotations

from advisor.rules.lint.catalogue import CONFIG_RULES, STAGES, ask, rules_by_id
from advisor.rules.lint.form import ConfigRule, Hit
from advisor.rules.lint.setup import Setup, Value

__all__ = ["CONFIG_RULES", "STAGES", "ConfigRule", "Hit", "Setup", "Value", "ask", "rules_by_id"]
