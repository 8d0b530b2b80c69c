"""Pages of the rules: all of them, and one explained."""

from __future__ import annotations

from typing import Any

from advisor.cli.document import Column, Document, Facts, Line, Table
from advisor.errors import UnknownNameError
from advisor.rules import Rule
from advisor.rules.lint import ConfigRule, rules_by_id
from advisor.rules.lint.texts import layout_text
from advisor.rules.rule import AnyRule
from advisor.spec.load.fields import did_you_mean

LIST_COLUMNS = (
    Column("rule", "name"), Column("severity", "name"), Column("whose", "name"), Column("asked of", "text"),
    Column("what is wrong", "text"),
)  # fmt: skip
MEANING = {
    "stop": "refused, crashes or hangs",
    "silent": "accepted, but not what was asked for",
    "slow": "runs and wastes time",
    "info": "worth knowing",
}


def list_document() -> Document:
    """All rules by id."""
    records = [_record(id, forms) for id, forms in sorted(rules_by_id().items())]
    rows = tuple(
        (one["id"], one["severity"], " ".join(one["targets"]), ", ".join(one["asked_of"]), one["says"])
        for one in records
    )
    return Document((Table("", LIST_COLUMNS, rows),), {"schema_version": 1, "rules": records}, records)


def show_document(id: str) -> Document:
    """One rule. UnknownNameError for an id that no rule has."""
    forms = rules_by_id().get(id)
    if forms is None:
        raise UnknownNameError(f"no rule has the id {id!r}", hint=did_you_mean(id, rules_by_id()) or "advisor rules")
    record = _record(id, forms)
    facts = Facts(
        "",
        (
            ("severity", record["severity"], MEANING[record["severity"]]),
            ("what is wrong", record["says"], ""),
            ("fix", record["fix"] or "-", ""),
            ("enforced by", " ".join(record["targets"]), record["versions"]),
            ("asked of", ", ".join(record["asked_of"]), ""),
            ("stage of a check", record["stage"] or "-", ""),
            ("source", record["source"], ""),
        ),
    )
    return Document((Line(id, "heading"), facts), {"schema_version": 1, **record}, [record])


def _record(id: str, forms: tuple[AnyRule, ...]) -> dict[str, Any]:
    config = next((one for one in forms if isinstance(one, ConfigRule)), None)
    first = config or forms[0]
    asked = ["layouts"] if any(isinstance(one, Rule) for one in forms) else []
    return {
        "id": id,
        "severity": first.severity,
        "targets": list(first.targets),
        "versions": first.versions,
        "asked_of": [*asked, *(["configurations"] if config else [])],
        "stage": config.stage if config else "",
        "says": config.summary if config else layout_text(id)[0],
        "fix": config.hint if config else layout_text(id)[1],
        "source": first.source,
    }
