"""Parameter types of the command line.

Values are checked once, by the Python functions; here stands only what is typed differently on a command line: lists of
GPU counts, files to write, and words that the shell completes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

Counts = tuple[int, ...] | Literal["auto"]
MOST_GPUS = 1_048_576
MOST_COUNTS = 64


class Text(click.ParamType[str]):
    """Any text, shown as `name` on the help page; the shell completes the words that `known` lists."""

    def __init__(self, name: str, known: Callable[[], Iterable[str]] = tuple) -> None:
        self.name = name
        self.known = known

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """What the help page shows."""
        return self.name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Known words that begin with what is typed."""
        return [CompletionItem(word) for word in self.known() if word.startswith(incomplete)]


class OneOf(click.Choice[str]):
    """One of a few words; a wrong one gets the closest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, or a sentence with all of them."""
        try:
            return str(super().convert(value, param, ctx))
        except click.BadParameter:
            words = [str(choice) for choice in self.choices]
            close = difflib.get_close_matches(str(value), words, n=1)
            tip = f" Did you mean {close[0]!r}?" if close else ""
            self.fail(f"{shorten(value)} is not one of {', '.join(words)}.{tip}", param, ctx)


class Gpus(click.ParamType[Counts]):
    """GPU counts: one, `auto`, or several to scale over (`64,128,256`, or `64,128,...,2048` with one step or ratio)."""

    name = "gpus"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """What the help page shows."""
        return "N|auto|N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Counts:
        """`auto` or the counts in the order given."""
        if value == "auto":
            return "auto"
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if "..." not in words:
            counts = tuple(self._whole(word, param, ctx) for word in words)
        else:
            at = words.index("...")
            before = [self._whole(word, param, ctx) for word in words[:at]]
            after = [self._whole(word, param, ctx) for word in words[at + 1 :]]
            if len(before) < 2 or len(after) != 1:
                self.fail("'...' needs two counts before it and one after it, as in 64,128,...,2048.", param, ctx)
            counts = self._filled(before, after[0], param, ctx)
        if len(counts) > MOST_COUNTS:
            self.fail(f"{len(counts)} counts are more than the {MOST_COUNTS} that one call takes.", param, ctx)
        if len(set(counts)) < len(counts):
            self.fail(f"{shorten(value)} names a count twice.", param, ctx)
        return counts

    def _whole(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(word)
        except ValueError:
            self.fail(f"{shorten(word)} is not a whole number.", param, ctx)
        if not 1 <= number <= MOST_GPUS:
            self.fail(f"{shorten(word)} is not between 1 and {MOST_GPUS}.", param, ctx)
        return number

    def _filled(
        self, before: list[int], last: int, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The counts up to `last`, by the ratio of the two before the dots or else by their difference."""
        first, second = before[-2:]
        ratio, step = second / first, second - first
        for times, plus in ((ratio, 0), (1.0, step)):
            counts = list(before)
            while step > 0 and counts[-1] < last and len(counts) <= MOST_COUNTS:
                counts.append(round(counts[-1] * times) + plus)
            if counts[-1] == last:
                return tuple(counts)
        self.fail(f"{last} is not reached from {first}, {second} by one ratio or one step.", param, ctx)


class OneCount(Text):
    """A single GPU count; a list, which only a plan takes, is no number with commas in it."""

    def __init__(self) -> None:
        super().__init__("N")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, without a comma."""
        if "," in str(value):
            self.fail(f"{shorten(value)} is a list; one count is needed here (a plan takes lists).", param, ctx)
        return str(value)


class OutFile(click.ParamType[Path]):
    """A file to write, in the format of its suffix."""

    name = "FILE"

    def __init__(self, suffixes: Iterable[str]) -> None:
        self.suffixes = tuple(suffixes)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, when its folder exists and its suffix is known."""
        path = Path(value)
        try:
            folder_missing, is_folder = not path.parent.is_dir(), path.is_dir()
        except (OSError, ValueError) as problem:
            self.fail(f"{shorten(value)}: {problem}.", param, ctx)
        if is_folder:
            self.fail(f"{shorten(value)} is a directory.", param, ctx)
        if folder_missing:
            self.fail(f"the folder {shorten(path.parent)} does not exist.", param, ctx)
        if path.suffix not in self.suffixes:
            self.fail(f"{shorten(value)} does not end in one of {' '.join(self.suffixes)}.", param, ctx)
        return path


def shorten(value: object, most: int = 60) -> str:
    """What was typed, quoted and cut to a length that fits an error."""
    text = repr(str(value))
    return text if len(text) <= most else f"{text[:most]}..."
