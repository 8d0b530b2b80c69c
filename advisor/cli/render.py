"""The only module that prints: documents to stdout or a file, hints and errors to stderr.

Colour is off when stdout is no terminal or NO_COLOR is set, on with FORCE_COLOR; `--color` wins. Text is set for
terminals of 120 columns (the width of a wider or narrower terminal is taken where there is one).
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from advisor import files
from advisor.cli.document import Bars, Block, Document, Facts, Line, Table
from advisor.cli.figures import figure
from advisor.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Format = Literal["table", "json", "csv", "md"]
ColorMode = Literal["auto", "always", "never"]

WIDTH = 120
BAR_WIDTH = 40
SUFFIXES: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "md", ".txt": "table"}
STYLES = {"plain": "", "heading": "bold", "good": "green", "bad": "red", "dim": "dim"}
_LONG_WORD = re.compile(r"\S{161,}")
_ASCII = str.maketrans({"\u202f": " ", "█": "#", "✓": "*", "·": "-", "→": ">", "×": "x", "…": "."})


class ReaderGoneError(Exception):
    """Whoever read the output has stopped reading, as `head` does."""


@dataclass(frozen=True, slots=True)
class Output:
    """What the output options of a verb say; `out` has one of `SUFFIXES`."""

    form: Format = "table"
    out: Path | None = None
    quiet: bool = False
    verbose: bool = False


_color: dict[str, ColorMode] = {"mode": "auto"}


def choose_color(mode: ColorMode) -> None:
    """Remember `--color` for everything printed later, errors included."""
    _color["mode"] = mode


def prepare_streams() -> None:
    """Never fail on a terminal that cannot show a character, and forget the colour of an earlier run."""
    choose_color("auto")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def colored(stream: TextIO) -> bool:
    """Whether `stream` gets escape sequences."""
    if _color["mode"] != "auto":
        return _color["mode"] == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _write(text: str, stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII)
    try:
        stream.write(text if text.endswith("\n") else text + "\n")
        stream.flush()
    except BrokenPipeError as problem:
        raise ReaderGoneError from problem


def let_go() -> None:
    """Nothing more can be written to stdout, whose reader has gone, and its closing says nothing about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _styled(text: str, style: str, stream: TextIO) -> str:
    codes = {"error": "1;31", "dim": "2"}
    return f"\x1b[{codes[style]}m{text}\x1b[0m" if colored(stream) else text


def plain(text: str) -> None:
    """A result that is text already, to stdout."""
    _write(text, sys.stdout)


def notice(text: str) -> None:
    """A hint, to stderr."""
    _write(_styled(text, "dim", sys.stderr), sys.stderr)


def status(text: str, fresh: bool) -> None:
    """Where something that runs is, to stderr: in place on a terminal (no text clears it), elsewhere when `fresh`."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text[: _width(sys.stderr) - 1]}")
        sys.stderr.flush()
    elif fresh:
        notice(text)


def error(message: str, hint: str | None) -> None:
    """One error with its fix, to stderr; what was typed is cut to a readable length."""
    _write(f"{_styled('error:', 'error', sys.stderr)} {_LONG_WORD.sub(_cut, message)}", sys.stderr)
    if hint:
        _write(f"  fix: {_LONG_WORD.sub(_cut, hint)}", sys.stderr)


def _cut(word: re.Match[str]) -> str:
    return f"{word[0][:60]}...({len(word[0])} characters)"


def fault(problem: Exception) -> None:
    """A fault of advisor itself, in one line, and how to report it."""
    what = " ".join(str(problem).split())[:200]
    error(
        f"this is a fault of advisor, not of your input: {type(problem).__name__}: {what}",
        "report the command, `advisor --version` and what ADVISOR_TRACEBACK=1 prints",
    )


def click_error(problem: click.ClickException) -> None:
    """What click found wrong on the command line, in the house style."""
    message = getattr(problem, "message", None) or problem.format_message()
    if isinstance(problem, click.BadParameter):
        message = problem.format_message()
    close = (getattr(problem, "possibilities", None) or ())[:2]
    context = getattr(problem, "ctx", None)
    hint = f"did you mean {' or '.join(close)}?" if close else ""
    if not hint and context is not None:
        hint = f"see {context.command_path} --help"
    error(message.strip(), hint or None)


def show(document: Document, output: Output) -> None:
    """Print `document` as asked, write it to the file if there is one, then its hints."""
    if output.out is not None:
        write_atomically(output.out, _text(document, SUFFIXES[output.out.suffix], None))
    _write(_text(document, output.form, sys.stdout), sys.stdout)
    if not output.quiet:
        for hint in document.hints:
            notice(hint)


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, so that a reader never meets half of it."""
    try:
        files.write_text(path, text if text.endswith("\n") else text + "\n")
    except OSError as problem:
        raise InputError(f"--out {path}: {problem.strerror}") from problem


def _text(document: Document, form: Format, stream: TextIO | None) -> str:
    if form == "json":
        return json.dumps(document.record, indent=2, allow_nan=False)
    if form == "csv":
        return csv_text(document.rows)
    if form == "md":
        return "\n\n".join(_markdown(block) for block in document.blocks)
    return table_text(document.blocks, stream)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Records as csv in full precision: nested names joined by dots, empty cells for null, JSON where rows nest."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            nested = any(isinstance(one, Mapping) for one in value)
            yield f"{prefix}{name}", json.dumps(value, default=str) if nested else "+".join(map(str, value))
        else:
            yield f"{prefix}{name}", value


def _markdown(block: Block) -> str:
    if isinstance(block, Line):
        return f"## {block.text}" if block.style == "heading" else block.text
    if isinstance(block, Table):
        heads = tuple(column.head for column in block.columns)
        rule = tuple("--:" if column.holds == "figure" else "---" for column in block.columns)
        return _titled(block.title, (heads, rule, *block.rows))
    if isinstance(block, Facts):
        return _titled(block.title, (("", "", ""), ("---", "---", "---"), *block.rows))
    bars = tuple((name, figure(size), remark) for name, size, remark in block.rows)
    return _titled(block.title, (("", block.unit, ""), ("---", "--:", "---"), *bars))


def _titled(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " / ") for cell in row) + " |" for row in rows]
    return "\n".join([f"**{title}**", "", *lines] if title else lines)


def table_text(blocks: Iterable[Block], stream: TextIO | None) -> str:
    """Blocks as aligned text, with escape sequences where `stream` takes them."""
    from rich.console import Console

    out = io.StringIO()
    color = stream is not None and colored(stream)
    console = Console(
        file=out, width=_width(stream), force_terminal=color, color_system="standard" if color else None,
        no_color=not color, highlight=False, emoji=False, markup=False, legacy_windows=False,
    )  # fmt: skip
    previous: Block | None = None
    for block in blocks:
        if previous is not None and not (isinstance(previous, Line) and isinstance(block, Line)):
            console.print()
        _print_block(console, block)
        previous = block
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _width(stream: TextIO | None) -> int:
    if stream is None or not stream.isatty():
        return WIDTH
    return max(80, min(os.get_terminal_size(stream.fileno()).columns, 160))


def _print_block(console: Console, block: Block) -> None:
    from rich.text import Text

    if isinstance(block, Line):
        # textwrap knows that a thin space is no place to break a number; rich does not.
        for line in textwrap.wrap(block.text, console.width, break_on_hyphens=False, break_long_words=False):
            console.print(Text(line, style=STYLES[block.style]), soft_wrap=True)
        return
    if block.title:
        console.print(Text(block.title, style="bold"))
    console.print(_grid(block))


def _grid(block: Facts | Table | Bars) -> RenderableType:
    from rich.table import Table as RichTable

    if isinstance(block, Table):
        return _table(block)
    grid = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    if isinstance(block, Facts):
        grid.add_column(overflow="fold")
        grid.add_column(style="dim", overflow="fold")
        for row in block.rows:
            grid.add_row(*row)
        return grid
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, width=BAR_WIDTH, style="blue")
    grid.add_column(style="dim", overflow="fold")
    whole = max((block.whole, *(size for _, size, _ in block.rows)))
    for name, size, remark in block.rows:
        length = round(BAR_WIDTH * size / whole) if whole > 0 else 0
        grid.add_row(name, figure(size), "█" * length, remark)
    return grid


def _table(block: Table) -> RenderableType:
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False, header_style="bold"
    )
    lines = max(column.head.count("\n") for column in block.columns)
    for column in block.columns:
        head = "\n" * (lines - column.head.count("\n")) + column.head
        justify: Literal["left", "right"] = "right" if column.holds == "figure" else "left"
        table.add_column(head, justify=justify, no_wrap=column.holds != "text", overflow="fold")
    for index, row in enumerate(block.rows):
        table.add_row(*row, style="bold" if index == block.marked else None)
    return table
