"""Flags: of Megatron-LM (by its own table), of Bridge's scripts, and bare layout flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Protocol

import yaml

from advisor import data
from advisor.check.reading import Reading, scalar
from advisor.rules.lint import Value
from advisor.spec.load.megatron import arguments as megatron

_TYPO = 0.88
"""How alike an unknown name must be to a known one to be called a typing error."""
_WORD = re.compile(r"^(tp|pp|vpp|vp|cp|ep|etp|dp|edp|mbs|gbs|gpus|sp)[=: ]?(\d+)$", re.IGNORECASE)


class Where(Protocol):
    """Finds the line of a word."""

    def of(self, word: str) -> int:
        """The line; 0 if the word is not in the text."""


@lru_cache(maxsize=1)
def tables() -> Mapping[str, Mapping[str, Any]]:
    """`layout` and `bridge` flags, and `names`: Megatron destination -> key."""
    found: dict[str, Any] = {}
    for name in ("layout_flags.yaml", "megatron_names.yaml"):
        found |= yaml.safe_load(data.require("presets", f"check/{name}").read_text(encoding="utf-8"))
    names = {field: f"{section}.{field}" for section, fields in found["sections"].items() for field in fields}
    return {"layout": found["layout"], "bridge": found["bridge"], "names": names | found["renamed"]}


def key_of(dest: str) -> str:
    """The key of a Bridge configuration that holds what a Megatron-LM destination name holds."""
    key: str = tables()["names"].get(dest, f"model.{dest}")
    return key


def read(reading: Reading, words: Sequence[str], lines: Where, *, bridge: bool) -> None:
    """Take over flags: layout flags if every flag is one, else those of Bridge's scripts or of Megatron-LM."""
    words = _split(words)
    names = [word[2:].partition("=")[0].replace("_", "-") for word in words if word.startswith("--") and word != "--"]
    layout, scripts = tables()["layout"], tables()["bridge"]
    megatron_only = [name for name in names if name in megatron.flags() and name not in layout]
    if bridge or (names and not megatron_only and all(name in layout or name in scripts for name in names)):
        known = {**layout, **scripts} if bridge else {**scripts, **layout}
        _simple(reading, words, lines, known)
        bare = not bridge and not any(name in ("mode", "recipe") for name in names)
        if bare:
            reading.kind = "layout"
            reading.framework = reading.framework or "mcore"
            reading.know("bare_layout")
        else:
            reading.framework = "bridge"
            reading.kind = reading.kind if reading.launches else "bridge-overrides"
    elif names:
        _megatron(reading, words, lines, layout)


def is_size(word: str) -> bool:
    """Whether a word is a size by itself: TP4, pp=2."""
    return _WORD.match(word) is not None


def sizes(variables: Mapping[str, Sequence[str]]) -> list[str]:
    """`tp=4 pp=2` as flags, where a shell would see variables; [] if other variables are among them."""
    names = [name.lower().replace("_", "-") for name in variables]
    if not names or not all(name in tables()["layout"] for name in names) or any(name.isupper() for name in variables):
        return []
    return [word for name, values in zip(names, variables.values(), strict=True) for word in (f"--{name}", *values)]


def _split(words: Sequence[str]) -> list[str]:
    """`TP4 pp=2` and `-tp 4` as `--tp 4 --pp 2 --tp 4`."""
    out: list[str] = []
    for at, word in enumerate(words):
        short = _WORD.match(word)
        if short and (at == 0 or not words[at - 1].startswith("-")):
            out += [f"--{short[1].lower()}", short[2]]
        elif re.fullmatch(r"-[a-z]{2,3}", word):
            out.append(f"-{word}")
        else:
            out.append(word)
    return out


def _simple(reading: Reading, words: Sequence[str], lines: Where, known: Mapping[str, str | None]) -> None:
    """Flags with one value each, or none."""
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not word.startswith("--") or word == "--":
            continue
        name, equals, raw = word[2:].partition("=")
        if not equals and at < len(words) and not words[at].startswith("--"):
            raw, at = words[at], at + 1
        line = lines.of(f"--{name}") or lines.of(name)
        name = name.replace("_", "-")
        key = known.get(name)
        if name not in known:
            _unknown(reading, name, list(known), line, "info")
        elif key is not None and "$" not in raw:
            _place(reading, key, scalar(raw) if raw else True, line)


def _place(reading: Reading, key: str, value: Any, line: int) -> None:
    if key == "gpus":
        reading.gpus = value if isinstance(value, int) else reading.gpus
    elif key in ("nodes", "gpus_per_node"):
        reading.put(f"launch.{key}", value, line)
        nodes, per = reading.values.get("launch.nodes"), reading.values.get("launch.gpus_per_node")
        if nodes and per and isinstance(nodes.value, int) and isinstance(per.value, int):
            reading.gpus = nodes.value * per.value
    elif key == "system":
        reading.system = str(value)
    elif key == "recipe":
        reading.recipe = str(value)
        reading.know("recipe_flag", str(value), line)
    elif key == "mode":
        reading.know("mode", str(value), line)
    else:
        reading.put(key, value, line)


def _unknown(reading: Reading, name: str, known: Sequence[str], line: int, severity: Any) -> None:
    close = get_close_matches(name.replace("_", "-"), known, 1, _TYPO)
    fix = f"did you mean --{close[0]}?" if close else "check the spelling"
    reading.note("unknown-flag", "stop" if close else severity, f"--{name[:80]} is not a known flag", fix, line)


def _megatron(reading: Reading, words: Sequence[str], lines: Where, layout: Mapping[str, str]) -> None:
    """Megatron-LM flags, typed by Megatron's own table; flags of the launcher or of this tool stand beside them."""
    own = list(words)
    parsed = megatron.Arguments()
    for at, word in enumerate(own):
        if word in ("--gpus", "--system") and at + 1 < len(own):
            _place(reading, layout[word[2:]], scalar(own[at + 1]), lines.of(word))
            own[at] = own[at + 1] = ""
    megatron.from_words(parsed, [word for word in own if word])
    take(reading, parsed, lines)
    if not reading.launches:
        reading.kind = "megatron-args"


def take(reading: Reading, parsed: megatron.Arguments, lines: Where) -> None:
    """Settings, wrong values and unknown flags of parsed Megatron-LM arguments."""
    reading.framework = "megatron-lm"
    by_dest = megatron.by_dest()
    for dest, value in parsed.values.items():
        flag = by_dest[dest]
        line = lines.of(f"--{flag.name}") or lines.of(flag.name) or lines.of(dest)
        reading.put(key_of(dest), value, line)
    for dest, text in parsed.wrong.items():
        if "does not define" not in text and "$" not in text:
            reading.note("argument-value", "stop", text, "", lines.of(f"--{by_dest[dest].name}"))
        reading.values.pop(key_of(dest), None)
    for finding in parsed.findings:
        if finding.rule == "megatron-args.unknown-flag":
            name = finding.message.split(" ")[0].removeprefix("--")
            _unknown(reading, name, list(megatron.flags()), lines.of(f"--{name}"), "info")
    for name, value in parsed.environment.items():
        if name.isupper():
            reading.env.setdefault(name, Value(value, reading.file, lines.of(name)))
