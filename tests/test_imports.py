"""Rules of the house that no linter knows: what a verb may import, how formulae are written, how large things get."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.spec.layout import COLUMN_NAMES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "advisor"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "megatron", "pandas", "optuna", "scipy", "matplotlib")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_by(*args: str) -> set[str]:
    """Top-level packages that `advisor ARGS` has imported when it is done."""
    code = (
        "import sys; from advisor.cli.main import run; code = run(sys.argv[1:]);"
        "print(code, *sorted({n.split('.')[0] for n in sys.modules}), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=300, check=True)
    code_line = ran.stderr.splitlines()[-1].split()
    assert code_line[0] in {"0", "1"}, ran.stderr
    return set(code_line[1:])


@pytest.mark.parametrize("args", [["--help"], ["plan", "--help"], ["estimate", "--help"], ["--version"]])
def test_help_imports_no_numpy(args):
    found = imported_by(*args)
    assert not found & {"numpy", "pydantic", "yaml", "rich", *HEAVY}


@pytest.mark.parametrize(
    "args",
    [
        ["plan", "--model", "minimax-m2", "--gpus", "64"],
        ["estimate", "--model", "minimax-m2", "--gpus", "64", "--ep", "32"],
        ["why", "--model", "qwen3-8b", "--gpus", "8", "--tp", "8"],
        ["models", "list"],
    ],
)
def test_verbs_import_nothing_heavy(args):
    found = imported_by(*args)
    assert "numpy" in found
    assert not found & set(HEAVY)


def test_the_package_itself_is_light():
    code = "import sys, advisor; print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_sizes(path):
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400, f"{name_of(path)} has more than 400 lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FUNCTIONS):
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"


def test_only_render_prints():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            stream = isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.stdout", "sys.stderr"}
            stream = stream and path.name != "main.py"
            if path.name != "render.py":
                assert not named_print, f"{name_of(path)}:{node.lineno} prints"
                assert not stream, f"{name_of(path)}:{node.lineno} uses a standard stream"


class ScalarUse(ast.NodeVisitor):
    """Finds scalar control flow on columns: `if`, `and`/`or`/`not`, max(), min(), int(), math.* on `columns.<field>`.

    A column is an attribute of something called columns or at with the name of a layout or knob field, or a local name
    assigned from one.
    """

    holders = frozenset({"columns", "at"})
    scalar_calls = frozenset({"max", "min", "int", "float", "bool", "round", "sum", "any", "all"})

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.local: list[set[str]] = [set()]

    def is_column(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return isinstance(node.value, ast.Name) and node.value.id in self.holders and node.attr in COLUMN_NAMES
        return isinstance(node, ast.Name) and node.id in self.local[-1]

    def uses_column(self, node: ast.AST) -> bool:
        """Whether a value is computed from a column (a shape, a length, a decision over the whole table is not)."""
        if isinstance(node, ast.Attribute) and node.attr in {"shape", "ndim", "size", "dtype", "splits"}:
            return False
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in {"len", "isinstance", "all", "any"}:
                return False
        return self.is_column(node) or any(self.uses_column(child) for child in ast.iter_child_nodes(node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.local.append(set())
        self.generic_visit(node)
        self.local.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        pairs = []
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += list(zip(target.elts, node.value.elts, strict=False))
            else:
                pairs.append((target, node.value))
        for target, value in pairs:
            if isinstance(target, ast.Name) and self.is_column(value):
                self.local[-1].add(target.id)
        self.generic_visit(node)

    def check(self, node: ast.AST, test: ast.AST, what: str) -> None:
        if self.uses_column(test):
            self.found.append((node.lineno, what))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.check(node, node.test, "if")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.check(node, node.test, "if")

    def visit_While(self, node: ast.While) -> None:
        self.check(node, node.test, "while")

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.check(node, node, "and/or")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.check(node, node.operand, "not")
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        func = node.func
        scalar = isinstance(func, ast.Name) and func.id in self.scalar_calls
        mathematical = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "math"
        if (scalar or mathematical) and any(self.is_column(arg) or self.computed(arg) for arg in node.args):
            self.found.append((node.lineno, ast.unparse(func)))
        self.generic_visit(node)

    def computed(self, node: ast.AST) -> bool:
        """Whether an argument is itself column arithmetic (sum() over a Python list of columns is fine)."""
        return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare) and self.uses_column(node)


def scalar_uses(source: str) -> list[tuple[int, str]]:
    visitor = ScalarUse()
    visitor.visit(ast.parse(source))
    return visitor.found


@pytest.mark.parametrize("path", sorted((PACKAGE / "cost").rglob("*.py")), ids=name_of)
def test_formulae_are_written_over_columns(path):
    found = scalar_uses(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(f"{name_of(path)}:{line} uses {what} on a column" for line, what in found)


@pytest.mark.parametrize(
    ("body", "caught"),
    [
        ("return 1 if columns.tp > 1 else 2", ["if"]),
        ("if columns.sp:\n        return 1", ["if"]),
        ("tp = columns.tp\n    return tp > 1 and x", ["and/or"]),
        ("tp, pp = columns.tp, columns.pp\n    return max(pp, 1)", ["max"]),
        ("return math.log2(columns.ep)", ["math.log2"]),
        ("return int(columns.tp * 2)", ["int"]),
        ("return not columns.sp", ["not"]),
        ("return np.maximum(columns.tp, 1) * (columns.pp > 1)", []),
        ("if model.is_moe and x:\n        return columns.tp", []),
        ("if bool((columns.tp == 1).all()):\n        return 1", []),
        ("if len(columns.splits) > 1 or columns.tp.shape == ():\n        return columns.tp", []),
    ],
)
def test_the_rule_catches_what_it_should(body, caught):
    assert [what for _, what in scalar_uses(f"def f(columns, model, x):\n    {body}\n")] == caught
