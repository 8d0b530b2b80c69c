"""A report as SARIF 2.1.0, the form that CI systems show beside the lines of a file.

Source: OASIS Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from advisor.check.run import Found, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"stop": "error", "silent": "warning", "slow": "warning", "info": "note"}


def sarif(report: Report, version: str) -> dict[str, Any]:
    """The report as one SARIF log with one run of the tool's `version`; findings without a line point at the file."""
    rules: dict[str, Found] = {}
    for one in report.findings:
        rules.setdefault(one.rule, one)
    order = list(rules)
    driver = {
        "name": "advisor",
        "version": version,
        "rules": [_rule(one) for one in rules.values()],
    }
    results = [_result(one, order.index(one.rule)) for one in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(one: Found) -> Mapping[str, Any]:
    return {
        "id": one.rule,
        "shortDescription": {"text": one.rule.replace("-", " ")},
        "help": {"text": f"fix: {one.fix or 'see the source'}; source: {one.source or 'advisor'}"},
        "defaultConfiguration": {"level": LEVELS[one.severity]},
        "properties": {"severity": one.severity, "stage": one.stage},
    }


def _result(one: Found, index: int) -> Mapping[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(Path(one.file).as_posix())}}
    if one.line > 0:
        location["region"] = {"startLine": one.line}
    return {
        "ruleId": one.rule,
        "ruleIndex": index,
        "level": LEVELS[one.severity],
        "message": {"text": f"{one.message}. fix: {one.fix}" if one.fix else one.message},
        "locations": [{"physicalLocation": location}],
    }
