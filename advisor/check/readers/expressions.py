"""Constants of Python source: numbers, text, lists, arithmetic, torch dtypes; everything else is UNKNOWN."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any, Final


class _Unknown:
    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = _Unknown()
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
_DTYPES = {
    "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.half": "fp16", "torch.float32": "fp32",
    "torch.float": "fp32", "torch.uint8": "fp8",
}  # fmt: skip
_LARGEST = 10**15
_DEEPEST = 40


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` as text; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def constant(node: ast.expr, names: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """The value of a constant expression; `names` are local variables that may stand in it."""
    if isinstance(node, ast.Constant):
        return node.value
    if depth > _DEEPEST:
        return UNKNOWN
    if isinstance(node, ast.Name):
        return (names or {}).get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        name = dotted(node) or ""
        member = name.rpartition(".")
        scope = "Graph" in member[0].rpartition(".")[2] or member[0].endswith("Backend")
        return _DTYPES.get(name, member[2] if scope else UNKNOWN)
    if isinstance(node, ast.UnaryOp):
        inner = constant(node.operand, names, depth + 1)
        if isinstance(node.op, ast.USub) and isinstance(inner, int | float):
            return -inner
        return not inner if isinstance(node.op, ast.Not) and isinstance(inner, bool) else UNKNOWN
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _arithmetic(node, names, depth)
    if isinstance(node, ast.Tuple | ast.List):
        return [constant(one, names, depth + 1) for one in node.elts]
    return UNKNOWN


def _arithmetic(node: ast.BinOp, names: Mapping[str, Any] | None, depth: int) -> Any:
    left, right = constant(node.left, names, depth + 1), constant(node.right, names, depth + 1)
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return UNKNOWN
    try:
        value = _OPERATORS[type(node.op)](left, right)
    except (ZeroDivisionError, OverflowError):
        return UNKNOWN
    return value if abs(value) <= _LARGEST else UNKNOWN
