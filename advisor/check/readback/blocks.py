"""Blocks of lines that belong together: Bridge's summary and YAML, what a launcher was given, scores of GPUs.

A block takes the lines after its head one by one and says whether it wants more; other lines may stand between.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from advisor.check.readback.observed import How, Place
from advisor.check.readback.values import jsonable, value_of
from advisor.check.readback.wording import core_defaults
from advisor.check.readers.mapping import load_mapping, read_mapping
from advisor.errors import InputError
from advisor.export.bridge_values import OVERLAP_FIELDS

Found = tuple[str, Any, Place, How]
Writer = tuple[int | None, int | None, str | None]
"""Rank, local rank and node, as far as the log tells."""
_RULE = re.compile(r"\s*={20,}\s*$")
_SECTION = re.compile(r"\s*\[(?P<name>\w+)\](?: Non-default values|:\s*$)")
_DIFFERS = re.compile(r"\s{1,4}(?P<name>\w+): (?P<value>.*?)  \(Mcore default: .*\)\s*$")
_HELD = re.compile(r"\s{1,4}(?P<name>\w+): (?P<value>.*)$")
_YAML_LINE = re.compile(r"\s*(?:- |-$|[\w.'\"/-]+:(?:\s|$))|\s{2,}\S|\.\.\.$")
_YAML_KEY = re.compile(r"(?P<inner> {0,3})(?P<name>\w+):")
_LAUNCHED = re.compile(r"\s*(?P<name>nproc_per_node|min_nodes|max_nodes)\s*: (?P<count>\d{1,6})\s*$")
_SCORE = re.compile(r"\s*Rank=(?P<rank>\d+) Node=(?P<node>\S+) Score=(?P<score>\d{1,9}(?:\.\d{1,9})?)")
FROM_CORE = ("model", "optimizer", "ddp")


class BlockReader(ABC):
    """Reads the lines after a head; `most` bounds them."""

    most = 4000

    def __init__(self, head: Place, writer: Writer) -> None:
        self.head, self.writer, self.left = head, writer, self.most

    @abstractmethod
    def take(self, rest: str, line: Place) -> None:
        """Read a line, `rest` without its tags; `left` becomes 0 where the block ends."""

    @abstractmethod
    def found(self) -> Iterator[Found]:
        """Settings of the whole block."""


class Summary(BlockReader):
    """`Configuration Summary (Non-Default Values vs Megatron Core)`: it stands between three rules of `=`."""

    def __init__(self, head: Place, writer: Writer) -> None:
        super().__init__(head, writer)
        self._section, self._rules = "", 0
        self._found: dict[str, Found] = {}

    def take(self, rest: str, line: Place) -> None:
        """Read a line."""
        if _RULE.match(rest):
            self._rules += 1
            self.left = 0 if self._rules == 2 else self.left
        elif section := _SECTION.match(rest):
            self._section = section["name"]
        elif self._section and (match := _DIFFERS.match(rest) or _HELD.match(rest)):
            key = f"{self._section}.{match['name']}"
            self._found[key] = (key, value_of(match["value"]), line, "summary")

    def found(self) -> Iterator[Found]:
        """What the summary lists, and, where it is whole, the defaults that it leaves out."""
        yield from self._found.values()
        if self._rules == 2:
            for key, value in core_defaults().items():
                if key not in self._found:
                    yield key, value, self.head, "default"


class Yaml(BlockReader):
    """A ConfigContainer as YAML, from its `_target_` to the first line that is none."""

    def __init__(self, head: Place, writer: Writer) -> None:
        super().__init__(head, writer)
        self._lines = ["_target_: ConfigContainer"]
        self._section = ""
        self._places: dict[str, Place] = {}

    def take(self, rest: str, line: Place) -> None:
        """Read a line."""
        if not _YAML_LINE.match(rest):
            self.left = 0
            return
        self._lines.append(rest)
        if key := _YAML_KEY.match(rest):
            self._section = self._section if key["inner"] else key["name"]
            name = f"{self._section}.{key['name']}" if key["inner"] else self._section
            self._places.setdefault(name, line)

    def found(self) -> Iterator[Found]:
        """All settings; what CommOverlapConfig decides later is left out, since the YAML only asks for it."""
        text = "\n".join(self._lines)
        try:
            mapping = load_mapping(self.head.file, text)
            reading = read_mapping(self.head.file, text, mapping) if mapping else None
        except InputError:
            reading = None
        if reading is None:
            return
        asked = set(OVERLAP_FIELDS.values()) if any(key.startswith("comm_overlap.") for key in reading.values) else ()
        for key, value in reading.values.items():
            if key not in asked:
                place = self._places.get(".".join(key.split(".")[:2]), self.head)
                yield key, jsonable(value.value), place, "dump"


class Launched(BlockReader):
    """What torchrun or ft_launcher was given: nodes and processes of a node."""

    most = 30

    def __init__(self, head: Place, writer: Writer) -> None:
        super().__init__(head, writer)
        self._counts: dict[str, tuple[int, Place]] = {}

    def take(self, rest: str, line: Place) -> None:
        """Read a line."""
        if match := _LAUNCHED.match(rest):
            self._counts[match["name"]] = (int(match["count"]), line)

    def found(self) -> Iterator[Found]:
        """The number of processes, where the number of nodes is fixed."""
        least, most, each = (self._counts.get(name) for name in ("min_nodes", "max_nodes", "nproc_per_node"))
        if least and most and each and least[0] == most[0]:
            yield "gpus", most[0] * each[0], each[1], "record"


class Scores(BlockReader):
    """Scores of GPUs, the worst first."""

    most = 20

    def __init__(self, head: Place, writer: Writer) -> None:
        super().__init__(head, writer)
        self.worst: tuple[float, str, Place] | None = None

    def take(self, rest: str, line: Place) -> None:
        """Read a line."""
        if match := _SCORE.match(rest):
            score = float(match["score"])
            if self.worst is None or score < self.worst[0]:
                self.worst = (score, f"rank {match['rank']} on {match['node']}", line)

    def found(self) -> Iterator[Found]:
        """No settings."""
        return iter(())
