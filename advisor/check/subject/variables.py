"""Environment variables that the price of a job depends on: as its files set them, and written back into a script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from advisor.check.recipes import performance
from advisor.configure.prices import DEFAULT_CONNECTIONS
from advisor.rules.lint import Setup
from advisor.search.improve_turns import CONNECTIONS
from advisor.search.request import Request


def with_environment(setup: Setup, request: Request) -> Request:
    """The request with the number of hardware queues that the job's files ask for, where they say it."""
    found = connections(setup)
    if found is None:
        return request
    return request.replaced(workload=replace(request.workload, connections=found))


def connections(setup: Setup) -> int | None:
    """Hardware queues of a job; None where its files leave them open, or to a recipe, or would not start.

    Megatron-LM refuses every number but 1 where order matters, so that only 1 says something about a job that runs.
    Performance recipes of Bridge set the variable themselves unless it is set.
    """
    value = setup.variable(CONNECTIONS)
    if setup.framework == "megatron-lm":
        return 1 if value == "1" else None
    if value is not None:
        return int(value) if value.isdigit() and int(value) > 0 else None
    recipe = setup.facts.get("recipe")
    known = setup.framework == "bridge" and setup.unset(CONNECTIONS)
    return DEFAULT_CONNECTIONS if known and (recipe is None or str(recipe.value) not in performance()) else None


def exported(text: str, variables: Mapping[str, object]) -> str:
    """The text of a script with variables set: where they stand, else before the first command."""
    for name, value in variables.items():
        line = f"export {name}={value}"
        text, hits = re.subn(rf"(?m)^([ \t]*)unset[ \t]+{name}[ \t]*$", rf"\g<1>{line}", text)
        set_here = rf"(?m)^(?![ \t]*#)(.*?(?<![\w$]){name}=)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;]*)"
        text, more = re.subn(set_here, rf"\g<1>{value}", text) if not hits else (text, 0)
        if not hits and not more:
            rows = text.split("\n")
            first = next((at for at, row in enumerate(rows) if row.strip() and not row.lstrip().startswith("#")), 0)
            text = "\n".join([*rows[:first], line, *rows[first:]])
    return text
