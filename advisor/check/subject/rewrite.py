"""Applies edits to the text of a configuration: flags and overrides in scripts, keys in YAML and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.check.subject.edits import Edit, override
from advisor.check.subject.form import Subject
from advisor.check.subject.rewrite_python import rewrite_python
from advisor.check.subject.variables import exported
from advisor.errors import InputError
from advisor.export.words import Code, plain
from advisor.spec.load.megatron import arguments as megatron

_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|(?!--)[^\s\\"'()]+)"""


def rewritten(subject: Subject, changes: Sequence[Edit]) -> str:
    """The text of the subject's file with the edits applied. InputError for a plan, whose text nobody edits."""
    kind, name = subject.reading.kind, subject.reading.file
    if kind == "plan":
        raise InputError(f"{name!r} is a plan: it is made anew, not edited", "advisor plan ... --fix NAME=VALUE")
    text = Path(name).read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    text = exported(text, {edit.key: edit.value for edit in changes if edit.variable})
    changes = [edit for edit in changes if not edit.variable]
    if kind == "bridge-python":
        return rewrite_python(name, text, changes)
    if kind in ("bridge-config", "megatron-yaml") or text.lstrip().startswith("{"):
        return _mapping(text, changes, nested=kind == "bridge-config")
    if subject.setup.framework == "bridge":
        return _overrides(text, changes)
    return _flags(text, changes, megatron_lm=subject.setup.framework == "megatron-lm")


def _replaced(text: str, pattern: str, words: Callable[[bool], str]) -> tuple[str, int]:
    """Every match outside comments replaced, and how many; `words` is told whether a match stands in double quotes."""
    made, end, done = [], 0, 0
    for found in re.finditer(pattern, text):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if line.lstrip().startswith("#"):
            continue
        made += [text[end : found.start()], words(_quoted(text, found.start()))]
        end, done = found.end(), done + 1
    return "".join([*made, text[end:]]), done


def _quoted(text: str, at: int) -> bool:
    """Whether a place stands between double quotes, where further quotes are taken as they are."""
    before = "\n".join(row for row in text[:at].split("\n") if not row.lstrip().startswith("#"))
    return len(re.findall(r"(?<!\\)\"", before)) % 2 == 1


def _constant(words: str) -> Callable[[bool], str]:
    return lambda _quoted: words


def _spellings(flag: str) -> str:
    """A flag with dashes or underscores between its words."""
    return re.escape(flag).replace(r"\-", "[-_]")


def _flags(text: str, changes: Sequence[Edit], *, megatron_lm: bool) -> str:
    for edit in changes:
        found = megatron.flags().get(edit.key)
        several = found is not None and found.values == "many"
        values = rf"(?:[ \t]+{_WORD})*" if several else rf"[ \t]+{_WORD}"
        tail = "" if found is not None and found.values == 0 else rf"(?:={_WORD}|{values})?"
        pattern = rf"(?<![\w-])--{_spellings(edit.key)}(?![\w-]){tail}"
        if edit.drop:
            text, _ = _replaced(text, rf"{pattern}[ \t]?", _constant(""))
            continue
        text, hits = _replaced(text, pattern, edit.flag)
        if not hits and not megatron_lm:
            text, hits = _replaced(text, rf"(?<![\w-]){re.escape(edit.key)}[= :]?\d+(?![\w-])", edit.flag)
        if not hits:
            text = _inserted(text, edit.flag, r"(?<![\w-])--[a-zA-Z][\w-]*", megatron_lm)
    return text


def _inserted(text: str, words: Callable[[bool], str], pattern: str, megatron_lm: bool) -> str:
    """`words` in front of the last flag of the training command that the text spells out."""
    best: int | None = None
    for found in re.finditer(pattern, text):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        name = found[0].lstrip("-").replace("_", "-")
        if not line.lstrip().startswith("#") and (not megatron_lm or name in megatron.flags()):
            best = found.start()
    if best is None:
        return f"{text.rstrip()} {words(False)}\n"
    return f"{text[:best]}{words(_quoted(text, best))} {text[best:]}"


def _overrides(text: str, changes: Sequence[Edit]) -> str:
    missing: list[str] = []
    for edit in changes:
        words = [f'"{word}"' if re.search(r"[\[\]{}']", word) else word for word in override(edit).split()]
        word = "" if edit.drop else " ".join(words)
        name = rf"\+{{0,2}}{re.escape(edit.key)}="
        bare = rf"{name}(?:\[[^\]\n]*\]|{_WORD}|)"
        pattern = rf"(?<![\w.+~-])(?:\"{name}[^\"\n]*\"|'{name}[^'\n]*'|{bare})"
        # A setting that is cleared first and then made stands twice: the last place is kept.
        text, hits = _replaced(text, rf"{pattern}[ \t]+(?={pattern})", _constant(""))
        text, hits = _replaced(text, pattern, _constant(word))
        if not hits and not edit.drop:
            missing.append(word)
    if not missing:
        return text
    rows = text.split("\n")
    marks = [at for at, row in enumerate(rows) if re.search(r"(?<![\w.])[a-z_]+(?:\.\w+)+=", row) and
             not row.lstrip().startswith("#")]  # fmt: skip
    if marks:
        found = re.search(r"[\"']?\+{0,2}(?<![\w.])[a-z_]+(?:\.\w+)+=", rows[marks[0]])
        at = found.start() if found is not None else 0
        rows[marks[0]] = f"{rows[marks[0]][:at]}{' '.join(missing)} {rows[marks[0]][at:]}"
        return "\n".join(rows)
    start = r"(?<![\w-])--(?:recipe|model|mode|model-recipe-name)(?![\w-])"
    return _inserted(text, _constant(" ".join(missing)), start, False)


def _mapping(text: str, changes: Sequence[Edit], *, nested: bool) -> str:
    if text.lstrip().startswith("{"):
        return _json(text, changes, nested=nested)
    for edit in changes:
        section, _, name = edit.key.rpartition(".") if nested else ("", "", edit.key)
        text = _yaml_key(text, section, name, edit)
    return text


def _value(edit: Edit, *, saved: bool = False) -> str:
    """A value as YAML; in a file that Bridge saved, dtypes are the objects that it writes."""
    if isinstance(edit.value, Code) and saved and edit.value.text.startswith("torch."):
        return f"{{_target_: {edit.value.text}, _call_: false}}"
    if isinstance(edit.value, Mapping):
        return json.dumps(plain(edit.value))
    if len(edit.words) > 1:
        return "[" + ", ".join(edit.words) + "]"
    if not edit.words:
        return "true"
    return edit.words[0]


def _yaml_key(text: str, section: str, name: str, edit: Edit) -> str:
    """One key at its value: replaced where it stands, removed, or added beside the other keys of its section."""
    rows = text.split("\n")
    saved = any(row.startswith("_target_:") for row in rows)
    start, end = _block(rows, section)
    key = re.compile(rf"^(\s*)([\"']?(?:--)?{_spellings(name)}[\"']?)\s*:(?:\s.*|)$")
    at = next((i for i in range(start, end) if key.match(rows[i])), None)
    if at is not None:
        found = key.match(rows[at])
        indent = found[1] if found else ""
        after = at + 1
        while after < end and (rows[after].startswith((f"{indent} ", f"{indent}- ")) and rows[after].strip()):
            after += 1
        line = [] if edit.drop else [f"{indent}{found[2] if found else name}: {_value(edit, saved=saved)}"]
        return "\n".join([*rows[:at], *line, *rows[after:]])
    if edit.drop:
        return text
    beside = next((row for row in rows[start:end] if row.strip() and not row.lstrip().startswith("#")), "  x:")
    indent = beside[: len(beside) - len(beside.lstrip())]
    dashed = re.match(r"\s*[\"']?--", beside) is not None
    written = f"--{name}" if dashed else name.replace("-", "_") if not section and "_" in beside.split(":")[0] else name
    rows.insert(start, f"{indent}{written}: {_value(edit, saved=saved)}")
    if start > len(rows) - 2 and section:
        rows.insert(start, f"{section}:")
    return "\n".join(rows)


def _block(rows: Sequence[str], section: str) -> tuple[int, int]:
    """First line after the head of a section, and the line behind its last; MODEL_ARGS is one of its own."""
    head = section or "MODEL_ARGS"
    for at, row in enumerate(rows):
        if re.match(rf"^{re.escape(head)}\s*:\s*$", row):
            end = at + 1
            while end < len(rows) and (not rows[end].strip() or rows[end][0] in " -#"):
                end += 1
            return at + 1, end
    return (len(rows), len(rows)) if section else (0, len(rows))


def _json(text: str, changes: Sequence[Edit], *, nested: bool) -> str:
    whole: dict[str, Any] = json.loads(text)
    for edit in changes:
        holder: dict[str, Any] = whole.get("MODEL_ARGS", whole)
        name = edit.key
        if nested and "." in edit.key:
            section, _, name = edit.key.partition(".")
            inner = whole.get(section)
            holder = inner if isinstance(inner, dict) else whole.setdefault(section, {})
        known = {key.lstrip("-").replace("_", "-"): key for key in holder}
        key = known.get(name.replace("_", "-"), name)
        if edit.drop:
            holder.pop(key, None)
        else:
            holder[key] = _json_value(edit)
    return json.dumps(whole, indent=2) + "\n"


def _json_value(edit: Edit) -> Any:
    if isinstance(edit.value, Mapping | list | tuple | bool) or edit.value is None:
        return plain(edit.value)
    return list(edit.words) if len(edit.words) > 1 else plain(edit.value)
