"""Reads a shell script without running it: words of its commands with the variables that the script itself defines.

Enough of the shell to follow launch scripts: comments, quotes, continued lines, `NAME=value`, arrays and `+=`,
`$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME[@]}` and integer `$(( ))`. Conditions are not evaluated, nothing is
executed, and the environment of this process is never looked at.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from advisor.errors import InputError

_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?]")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_LONGEST_SCRIPT = 1_000_000
_DEEPEST = 4
_LARGEST_NUMBER = 10**12


@dataclass(slots=True)
class Script:
    """What a script says: its commands as expanded words, its variables, and names it uses without defining them."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    undefined: set[str] = field(default_factory=set)
    conditional: bool = False


@dataclass(slots=True)
class _Word:
    """A word as (text, quote) pieces; quote is '"', "'" or '' ; `operator` marks separators and brackets."""

    pieces: list[tuple[str, str]] = field(default_factory=list)
    operator: bool = False

    @property
    def raw(self) -> str:
        return "".join(text for text, _ in self.pieces)


def _closing(text: str, at: int, opening: str, closing: str) -> int:
    """Index after the bracket that closes the one at `at`; the end of the text if none does."""
    depth = 0
    while at < len(text):
        depth += (text[at] == opening) - (text[at] == closing)
        at += 1
        if depth == 0:
            break
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Content of the double-quoted piece that starts at `at`, and the index after it."""
    out, at = "", at + 1
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in '"\\$`\n':
            out += "" if text[at + 1] == "\n" else ("\\$" if text[at + 1] == "$" else text[at + 1])
            at += 2
        elif text.startswith("$(", at):
            end = _closing(text, at + 1, "(", ")")
            out, at = out + text[at:end], end
        else:
            out, at = out + text[at], at + 1
    if at >= len(text):
        raise InputError('a double quote (") is opened and never closed')
    return out, at + 1


def _lex(text: str) -> Iterator[_Word]:
    """Words and operators of a script; a newline is the operator ';'."""
    word, at = _Word(), 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            if text[at + 1 : at + 2] not in ("", "\n"):
                word.pieces.append((text[at + 1], "'"))
            at += 2
        elif char == "#" and not word.pieces:
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise InputError("a single quote (') is opened and never closed")
            word.pieces.append((text[at + 1 : end], "'"))
            at = end + 1
        elif char == '"':
            piece, at = _quoted(text, at)
            word.pieces.append((piece, '"'))
        elif char == "$" and text[at + 1 : at + 2] in ("(", "{"):
            end = _closing(text, at + 1, text[at + 1], {"(": ")", "{": "}"}[text[at + 1]])
            word.pieces.append((text[at:end], ""))
            at = end
        elif char == "`":
            end = text.find("`", at + 1)
            end = len(text) if end < 0 else end + 1
            word.pieces.append((text[at:end], ""))
            at = end
        elif char in " \t\r\n;&|()<>":
            if word.pieces:
                yield word
                word = _Word()
            if char not in " \t\r":
                yield _Word([(";" if char == "\n" else char, "")], operator=True)
            at += 1
        else:
            end = at + 1
            while end < len(text) and text[end] not in " \t\r\n;&|()<>\\'\"$`":
                end += 1
            word.pieces.append((text[at:end], ""))
            at = end
    if word.pieces:
        yield word


class Reader:
    """Walks over a script and collects what it says into a `Script`."""

    def __init__(self) -> None:
        self.script = Script()

    def read(self, text: str, depth: int = 0) -> None:
        """Take over the assignments and commands of `text`; a command given as one string is read as a script too."""
        if len(text) > _LONGEST_SCRIPT:
            raise InputError(f"the script has {len(text)} characters, more than {_LONGEST_SCRIPT}")
        words = list(_lex(text))
        statement: list[_Word] = []
        brackets = 0
        for word in words:
            if word.operator:
                brackets = max(0, brackets + (word.raw == "(") - (word.raw == ")"))
            if word.operator and word.raw in ";&|<>" and brackets == 0:
                self._statement(statement, depth)
                statement = []
            else:
                statement.append(word)
        self._statement(statement, depth)

    def _statement(self, words: list[_Word], depth: int) -> None:
        while (
            words
            and not words[0].operator
            and words[0].raw in ("export", "local", "readonly", "declare", "then", "else", "do")
        ):
            words = words[1:]
            while words and words[0].raw in ("-a", "-x", "-r", "-g", "-i"):
                words = words[1:]
        if words and words[0].raw in ("if", "case", "elif", "while", "for"):
            self.script.conditional = True
        while words and not words[0].operator and (found := _ASSIGNMENT.match(words[0].raw)) is not None:
            words = self._assign(found[1], bool(found[2]), words)
        command: list[str] = []
        for word in words:
            if not word.operator:
                command.extend(self._expand(word))
        if command:
            self.script.commands.append(command)
        for text in command:
            if depth < _DEEPEST and " " in text.strip() and (".py" in text):
                self.read(text, depth + 1)

    def _assign(self, name: str, append: bool, words: list[_Word]) -> list[_Word]:
        """Store the assignment that `words` start with; the words that follow it."""
        before = self.script.variables.get(name, []) if append else []
        if words[0].raw.endswith("=") and len(words) > 1 and words[1].operator and words[1].raw == "(":
            values, at = [], 2
            while at < len(words) and not (words[at].operator and words[at].raw == ")"):
                if not words[at].operator:
                    values.extend(self._expand(words[at]))
                at += 1
            self.script.variables[name] = before + values
            return words[at + 1 :]
        first, quote = words[0].pieces[0]
        rest = first.partition("=")[2]
        pieces = ([(rest, quote)] if rest else []) + words[0].pieces[1:]
        text = "".join(piece if kind == "'" else self._substitute(piece) for piece, kind in pieces)
        self.script.variables[name] = [" ".join(before) + text]
        return words[1:]

    def _expand(self, word: _Word) -> list[str]:
        """The words that a word becomes: variables filled in, unquoted values split at blanks."""
        only = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word.raw)
        if only is not None and len(word.pieces) == 1:
            values = self._lookup(only[1])
            return list(values) if word.pieces[0][1] else [part for value in values for part in value.split()]
        out = [""]
        for text, quote in word.pieces:
            value = text if quote == "'" else self._substitute(text)
            if quote or value == text:
                out[-1] += value
            else:
                parts = value.split()
                out[-1] += parts[0] if parts else ""
                out.extend(parts[1:])
        return [part for part in out if part or any(quote for _, quote in word.pieces)]

    def _lookup(self, name: str) -> list[str]:
        if name not in self.script.variables:
            self.script.undefined.add(name)
            return []
        return self.script.variables[name]

    def _substitute(self, text: str) -> str:
        """`text` with `$NAME`, `${...}` and `$((...))` filled in; what is not defined stays as it is written."""
        out, at = "", 0
        while at < len(text):
            if text[at] == "\\" and text[at + 1 : at + 2] == "$":
                out, at = out + "$", at + 2
            elif text[at] != "$":
                out, at = out + text[at], at + 1
            elif text.startswith("$((", at):
                end = _closing(text, at + 1, "(", ")")
                out, at = out + self._arithmetic(text[at:end]), end
            elif text.startswith("$(", at):
                end = _closing(text, at + 1, "(", ")")
                out, at = out + text[at:end], end
            elif text.startswith("${", at):
                end = _closing(text, at + 1, "{", "}")
                out, at = out + self._braced(text[at:end]), end
            elif (found := _NAME.match(text, at + 1)) is not None:
                out, at = out + self._value(found[0], text[at : found.end()]), found.end()
            else:
                out, at = out + "$", at + 1
            if len(out) > _LONGEST_SCRIPT:
                raise InputError("the variables of the script expand to more text than a script can hold")
        return out

    def _value(self, name: str, written: str) -> str:
        if name in self.script.variables:
            return " ".join(self.script.variables[name])
        self.script.undefined.add(name)
        return written

    def _braced(self, written: str) -> str:
        found = re.fullmatch(r"\$\{(\w+)(?:\[[@*]\])?(?::?([-=])(.*))?\}", written, re.DOTALL)
        if found is None:
            return written
        name, kind, default = found.groups()
        if kind and not self.script.variables.get(name):
            value = self._substitute(default.strip("\"'"))
            if kind == "=":
                self.script.variables[name] = [value]
            return value
        return self._value(name, written)

    def _arithmetic(self, written: str) -> str:
        inner = written[3:].removesuffix("))")
        filled = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", lambda name: self._value(name[1], name[0]), inner)
        try:
            return str(_evaluate(ast.parse(filled.strip().replace("/", "//"), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return written


def _evaluate(node: ast.expr) -> int:
    """Value of an integer expression of + - * / %; ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _LARGEST_NUMBER:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = int(_OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right)))
        if abs(value) < _LARGEST_NUMBER:
            return value
    raise ValueError("not an integer expression")


def read_script(text: str) -> Script:
    """Commands and variables of a shell script. InputError for an open quote or an enormous script."""
    reader = Reader()
    reader.read(text)
    return reader.script
