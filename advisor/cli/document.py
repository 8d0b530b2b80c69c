"""A page as data: lines, facts, tables and bars. Pages are built from answers; `render` turns them into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Style = Literal["plain", "heading", "good", "bad", "dim"]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence of its own."""

    text: str
    style: Style = "plain"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their value and a remark (an origin, a kind, a source)."""

    title: str
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a table column, units included: a `figure` is set right, a `name` left and whole, a `text` may wrap."""

    head: str
    holds: Literal["figure", "name", "text"] = "figure"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, all strings; `marked` is the index of the row that was chosen."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Named sizes as bars that share one scale: (name, size, remark); `whole` is the length of a full bar."""

    title: str
    unit: str
    whole: float
    rows: tuple[tuple[str, float, str], ...]


Block = Line | Facts | Table | Bars


@dataclass(frozen=True, slots=True)
class Document:
    """One answer: `blocks` for people, `record` for JSON, `rows` for csv (nested is fine), `hints` for stderr."""

    blocks: tuple[Block, ...]
    record: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    hints: tuple[str, ...] = ()
