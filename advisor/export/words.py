"""Values as the words of a target: Python literals, Hydra overrides, shell words; and templates."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_BARE = re.compile(r"[A-Za-z_][\w./+-]*|-?\d+(\.\d+)?(e-?\d+)?")
_RESERVED = {"true", "false", "null", "nan", "inf"}


@dataclass(frozen=True, slots=True)
class Code:
    """A Python expression, and the same thing as the text that an override gives."""

    python: str
    text: str


def python(value: Any) -> str:
    """A value as a Python literal; tuples become lists, as configuration fields want them."""
    if isinstance(value, Code):
        return value.python
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(python, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{python(str(key))}: {python(one)}" for key, one in value.items()) + "}"
    return repr(value)


def hydra(value: Any) -> str:
    """A value in Hydra's override grammar: quoted where its lexer would take it for something else."""
    if isinstance(value, Code):
        return hydra(value.text)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(hydra, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra(one)}" for key, one in value.items()) + "}"
    text = str(value)
    if not isinstance(value, str) or (_BARE.fullmatch(text) and text.lower() not in _RESERVED):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def plain(value: Any) -> Any:
    """A value as YAML and JSON hold it."""
    if isinstance(value, Code):
        return value.text
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


@lru_cache(maxsize=1)
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("advisor.export", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (texts are Python, shell and YAML, quoted by the filters below)
    )
    made.filters.update(
        {"python": python, "shell": lambda value: shlex.quote(str(value)), "comment": comment, "docstring": docstring}
    )
    return made


def comment(text: object) -> str:
    """Text for a comment: one line, whatever it holds."""
    return " ".join(str(text).split())


def docstring(text: object) -> str:
    """Text for a docstring: one line that cannot end it."""
    return comment(text).replace("\\", "\\\\").replace('"', "'")


def fill(template: str, **values: Any) -> str:
    """A template of advisor/export/templates with its values."""
    return _templates().get_template(template).render(**values)
