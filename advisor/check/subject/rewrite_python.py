"""Applies edits to a Bridge configuration in Python: values where they stand, keywords, or new assignments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.check.readers.expressions import dotted
from advisor.check.readers.python import section_of
from advisor.check.subject.edits import NAMED_PRECISION, Edit
from advisor.errors import InputError
from advisor.export.words import python as as_python

IMPORTS = {
    "torch.": "import torch",
    NAMED_PRECISION: f"from megatron.bridge.training.mixed_precision import {NAMED_PRECISION}",
}
"""Imports that a written value needs, by what it looks like."""


@dataclass(frozen=True, slots=True)
class _Patch:
    """Text that takes the place of a piece of the source (offsets in characters)."""

    start: int
    end: int
    text: str


def rewrite_python(name: str, text: str, changes: Sequence[Edit]) -> str:
    """The source with every edit applied. InputError where the file shows no configuration to assign to."""
    for edit in changes:
        source = _Source(text)
        patches = source.patches(edit)
        if not patches:
            raise InputError(f"{name!r} shows no configuration to write {edit.key} to", f"write it by hand: {edit.key}")
        for patch in sorted(patches, key=lambda one: -one.start):
            text = text[: patch.start] + patch.text + text[patch.end :]
    for word, statement in IMPORTS.items():
        if any(word in as_python(edit.value) for edit in changes) and statement not in text:
            text = _with_import(text, statement)
    return text


def _with_import(text: str, statement: str) -> str:
    """The source with an import in front of its first one, behind docstring and __future__."""
    body = ast.parse(text).body
    later = [node for node in body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    if later and isinstance(later[0], ast.Expr) and isinstance(later[0].value, ast.Constant):
        later = later[1:]
    rows = text.split("\n")
    rows.insert(later[0].lineno - 1 if later else len(rows), statement)
    return "\n".join(rows)


class _Source:
    """A parsed file, and where in its text things stand."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        starts = [0]
        for row in text.encode().splitlines(keepends=True):
            starts.append(starts[-1] + len(row))
        self.starts, self.raw = starts, text.encode()

    def at(self, line: int, column: int) -> int:
        """Character offset of a position that ast gives in bytes."""
        return len(self.raw[: self.starts[line - 1] + column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node stands."""
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def patches(self, edit: Edit) -> list[_Patch]:
        """Every place that states the setting; else a keyword of the object that holds it; else a new assignment."""
        value = as_python(edit.value)
        stated = [_Patch(*self.span(node), value) for node in self._stated(edit.key)]
        if stated:
            return stated
        section, _, name = edit.key.partition(".")
        for call in self._calls(section) if name else ():
            end = self.span(call)[1] - 1
            inside = self.text[:end].rstrip()
            comma = "" if inside.endswith(("(", ",")) else ","
            lead = comma + ("" if inside.endswith("(") else " ")
            return [_Patch(len(inside), len(inside), f"{lead}{name}={value}")]
        return self._assigned(edit.key, value)

    def _stated(self, key: str) -> Iterator[ast.expr]:
        section, _, name = key.partition(".")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                yield from self._targets(node, key)
            elif isinstance(node, ast.Call) and name and section_of(dotted(node.func) or "") == section:
                yield from (one.value for one in node.keywords if one.arg == name)
            elif isinstance(node, ast.Call) and not name:
                kind = (dotted(node.func) or "").rpartition(".")[2]
                yield from (one.value for one in node.keywords if kind == "ConfigContainer" and one.arg == section)

    def _targets(self, node: ast.Assign, key: str) -> Iterator[ast.expr]:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    if (dotted(one) or "").endswith(f".{key}"):
                        yield value
            elif (dotted(target) or "").endswith(f".{key}"):
                yield node.value

    def _calls(self, section: str) -> Iterator[ast.Call]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and section_of(dotted(node.func) or "") == section:
                yield node

    def _assigned(self, key: str, value: str) -> list[_Patch]:
        """A line behind the last assignment to the configuration: its name is what stands before a section."""
        last: tuple[ast.stmt, str] | None = None
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign):
                continue
            root = self._root(node)
            if root and (last is None or node.lineno >= last[0].lineno):
                last = (node, root)
        if last is None:
            return []
        statement, root = last
        end = self.span(statement)[1]
        indent = " " * statement.col_offset
        return [_Patch(end, end, f"\n{indent}{root}.{key} = {value}")]

    @staticmethod
    def _root(node: ast.Assign) -> str:
        """The name of the configuration that a statement makes or writes to; "" for other statements."""
        first = node.targets[0]
        names = [dotted(one) or "" for one in (first.elts if isinstance(first, ast.Tuple) else [first])]
        made = node.value
        called = (dotted(made.func) or "").rpartition(".")[2] if isinstance(made, ast.Call) else ""
        if called == "ConfigContainer" or (called.endswith("_config") and called != "get_mixed_precision_config"):
            return names[0] if "." not in names[0] else ""
        parts = names[0].split(".")
        return parts[0] if len(parts) > 1 and parts[1] in _SECTIONS else ""


_SECTIONS = frozenset({"model", "train", "optimizer", "ddp", "comm_overlap", "mixed_precision", "dist", "rng",
                       "checkpoint", "dataset", "scheduler", "logger", "rerun_state_machine"})  # fmt: skip
