"""A report as SARIF 2.1.0, the form that CI systems show beside the lines of a file.

Source: OASIS Static Analysis Results Interchange Format (SARIF) Version 2.1.0; what GitHub's code scanning needs
beyond it is a line, a full description, and a fingerprint of every result that survives moved lines.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from advisor.check.run import Found, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"stop": "error", "silent": "warning", "slow": "warning", "info": "note"}
ROOT = "%SRCROOT%"
PROBLEMS = {"error": "error", "warning": "warning", "note": "recommendation"}


def sarif(report: Report, version: str, folder: Path | None = None) -> dict[str, Any]:
    """The report as one SARIF log with one run of the tool's `version`.

    Files below the repository that holds `folder` (default: where we are) are told relative to it. A finding about a
    whole file points at its first line.
    """
    root = root_of(folder or Path.cwd())
    rules: dict[str, Found] = {}
    for one in report.findings:
        rules.setdefault(one.rule, one)
    order = list(rules)
    driver = {"name": "advisor", "version": version, "rules": [_rule(one) for one in rules.values()]}
    seen: Counter[str] = Counter()
    results = [_result(one, order.index(one.rule), root, seen) for one in report.findings]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": f"{root.as_uri()}/"}},
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def root_of(folder: Path) -> Path:
    """The repository that holds a folder, else the folder."""
    here = folder.resolve()
    return next((one for one in (here, *here.parents) if (one / ".git").exists()), here)


def _rule(one: Found) -> Mapping[str, Any]:
    words = one.rule.replace("-", " ")
    fix = f"fix: {one.fix or 'see the source'}; source: {one.source or 'advisor'}"
    level = LEVELS[one.severity]
    return {
        "id": one.rule,
        "name": "".join(word.capitalize() for word in re.split(r"\W+", one.rule)),
        "shortDescription": {"text": words},
        "fullDescription": {"text": f"{words}; advisor rules {one.rule} explains it"},
        "help": {"text": fix},
        "defaultConfiguration": {"level": level},
        "properties": {"severity": one.severity, "stage": one.stage, "problem.severity": PROBLEMS[level]},
    }


def _result(one: Found, index: int, root: Path, seen: Counter[str]) -> Mapping[str, Any]:
    place = _place(one.file, root)
    return {
        "ruleId": one.rule,
        "ruleIndex": index,
        "level": LEVELS[one.severity],
        "message": {"text": f"{one.message}. fix: {one.fix}" if one.fix else one.message},
        "locations": [{"physicalLocation": {"artifactLocation": place, "region": {"startLine": max(one.line, 1)}}}],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(one, place["uri"], seen)},
    }


def _place(file: str, root: Path) -> dict[str, str]:
    path = Path(file).resolve()
    if path.is_relative_to(root):
        return {"uri": quote(path.relative_to(root).as_posix()), "uriBaseId": ROOT}
    return {"uri": path.as_uri()}


def _fingerprint(one: Found, uri: str, seen: Counter[str]) -> str:
    """Same for the same finding in the same file, wherever its line moves; a count tells equal ones apart."""
    said = re.sub(r"\d+", "#", one.message)
    digest = hashlib.sha256("\0".join((one.rule, uri, said)).encode()).hexdigest()[:16]
    seen[digest] += 1
    return f"{digest}:{seen[digest]}"
