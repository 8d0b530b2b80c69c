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
_COUNTS = frozenset({
    "gpus", "nodes", "gpus_per_node", "layout.dp", "layout.edp", "train.micro_batch_size", "train.global_batch_size",
    *(f"model.{name}" for name in (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "seq_length",
        "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "num_moe_experts", "moe_router_topk",
    )),
})  # fmt: skip
"""Settings that are counted."""
_LONGEST_PAIRS = 10_000
_REMARK = re.compile(r"#.*$", re.MULTILINE)
_PAIR = re.compile(r"(?<![\w.$-])([A-Za-z][\w-]*)\s*[=:]\s*(\[[^\]\n]*\]|\"[^\"\n]*\"|'[^'\n]*'|[^\s,;=]+(?=[\s,;]|$))")


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
    layout = found["layout"] | {word: found["layout"][name] for word, name in found["aliases"].items()}
    return {"layout": layout, "bridge": found["bridge"], "names": names | found["renamed"]}


def key_of(dest: str) -> str:
    """The key of a Bridge configuration that holds what a Megatron-LM destination name holds."""
    key: str = tables()["names"].get(dest, f"model.{dest}")
    return key


def read(reading: Reading, words: Sequence[str], lines: Where, *, bridge: bool) -> None:
    """Take over flags: layout flags if every flag is one, else those of Bridge's scripts or of Megatron-LM."""
    words = _split(words)
    names = [word[2:].partition("=")[0].replace("_", "-") for word in words if word.startswith("--") and word != "--"]
    layout, scripts = tables()["layout"], tables()["bridge"]
    if bridge or are_layout(names):
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


def are_layout(names: Sequence[str]) -> bool:
    """Whether flags are bare layout flags: most are known here, and Megatron-LM has not all of them.

    A flag that only Megatron-LM has says the opposite.
    """
    known = {*tables()["layout"], *tables()["bridge"]}
    plain = [name if name in known else name.removeprefix("no-") for name in names]
    theirs = megatron.flags()
    if not names or any(name in theirs and one not in known for name, one in zip(names, plain, strict=True)):
        return False
    own = sum(one in known and name not in theirs for name, one in zip(names, plain, strict=True))
    return own > 0 and 2 * sum(one in known for one in plain) > len(names)


def pairs(text: str) -> list[str]:
    """`tp=4, pp=2` or `TP: 4` as flags, where sizes of a layout are among nothing but such pairs; else []."""
    if len(text) > _LONGEST_PAIRS:
        return []
    body = _REMARK.sub("", text)
    found = [(name.lower().replace("_", "-"), value.strip("'\"")) for name, value in _PAIR.findall(body)]
    if _PAIR.sub("", body).strip(" \t\n,;") or not all(name in tables()["layout"] for name, _ in found):
        return []
    sized = any(_WORD.match(f"{name}1") for name, _ in found)
    return [word for name, value in found for word in (f"--{name}", value)] if sized else []


def is_size(word: str) -> bool:
    """Whether a word is a size by itself: TP4, pp=2."""
    return _WORD.match(word) is not None


def _split(words: Sequence[str]) -> list[str]:
    """`TP4 pp=2`, `-tp 4` and `--tp 4,` as `--tp 4 --pp 2 --tp 4 --tp 4`."""
    out: list[str] = []
    words = [word[:-1] if re.fullmatch(r"(?:--?)?[\w.=-]+,", word) else word for word in words]
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
        forms = (f"--{name}", f"-{name}", name, name.upper(), name.replace("-", "_"))
        line = next((at for at in map(lines.of, forms) if at), 0)
        name = name.replace("_", "-")
        key = known.get(name)
        off = name not in known and name.startswith("no-") and name[3:] in known
        if off:
            key = known.get(name[3:])
            raw = raw or "false"
        if name not in known and not off:
            _unknown(reading, name, list(known), line, "info")
        elif key is not None and "$" not in raw:
            value = scalar(raw) if raw else True
            if key in _COUNTS and value not in (None, "none") and not _is_count(key, value):
                said = f"is {raw[:40]!r}" if raw else "has no value"
                reading.note("argument-value", "stop", f"--{name} {said}: a whole number from 1 is needed", "", line)
            else:
                _place(reading, key, None if key in _COUNTS and value == "none" else value, line)


def _is_count(key: str, value: Any) -> bool:
    """Whether a value is a whole number; sizes below 1 have a rule of their own, counts of GPUs and nodes have none."""
    return type(value) is int and (value > 0 or key.startswith(("model.", "train.", "layout.")))


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
