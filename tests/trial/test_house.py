"""Who may import what: the worker is a program of its own, and only it knows torch and megatron."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "advisor"
WORKER = PACKAGE / "trial" / "worker"
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_nobody_else_imports_torch_megatron_or_the_worker():
    for path in MODULES:
        if WORKER not in path.parents:
            found = imported(path)
            assert not {name for name in found if name.split(".")[0] in {"torch", "megatron"}}, path
            assert not {name for name in found if f"{name}.".startswith("advisor.trial.worker.")}, path


def test_the_worker_knows_no_plan():
    for path in WORKER.glob("*.py"):
        own = {name for name in imported(path) if name.startswith("advisor.")}
        assert all(name.startswith(("advisor.trial.worker", "advisor.trial.guard")) for name in own), path.name
