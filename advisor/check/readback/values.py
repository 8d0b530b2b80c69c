"""Values as logs print them: Python literals, torch dtypes, members of enumerations, records of dataclasses."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_CHARACTERS = 4000
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "torch.uint8": "fp8"}
_LONG = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "uint8": "fp8"}
_MEMBER = re.compile(r"<[A-Za-z_]\w*\.(\w+): [^<>]*>")
_NAMED = re.compile(r"[A-Z]\w*\.([a-z_]\w*)")
_FIELD = re.compile(r"([A-Za-z_]\w*)=")


def value_of(text: str) -> Any:
    """What a printed value means; text that is no literal stays text."""
    text = _MEMBER.sub(r"'\1'", text.strip()[:LONGEST_CHARACTERS])
    if text in _DTYPES:
        return _DTYPES[text]
    named = _NAMED.fullmatch(text)
    if named:
        return named[1]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return jsonable(value)


def jsonable(value: Any) -> Any:
    """A value as JSON has it: tuples are lists, and what JSON has no word for (sets, dates, infinities) is its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): jsonable(one) for key, one in value.items()}
    return str(value)


def fields_of(record: str) -> Iterator[tuple[str, Any]]:
    """Fields of a dataclass as Python prints it, `Name(a=1, b=[2, 3])`; nested records stay text."""
    body = record[record.find("(") + 1 : record.rfind(")")]
    depth, start, quote = 0, 0, ""
    for at, letter in enumerate(body + ","):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            name = _FIELD.match(body[start:at].strip())
            if name:
                yield name[1], value_of(body[start:at].strip()[name.end() :])
            start = at + 1


def plain(value: Any) -> Any:
    """A value in the one form that is compared.

    Every way to say "off" is None, dtypes are short, words are sorted, and a list of one is its member.
    """
    if isinstance(value, str):
        value = _DTYPES.get(value, _LONG.get(value, value))
    if isinstance(value, list | tuple):
        value = [plain(one) for one in value]
        if len(value) == 1:
            return value[0]
        if all(isinstance(one, str) for one in value):
            value = sorted(value)
    if value is None or value is False or value in ("none", "None", "", []):
        return None
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values mean the same."""
    return bool(plain(one) == plain(other))


def is_switch(value: Any) -> bool:
    """Whether a value turns something on, rather than giving a size."""
    return plain(value) is not None and (isinstance(value, bool | str | list | tuple))
