"""Small languages inside Megatron arguments: layer lists like `([0]*3+[1]*58)` and hybrid layer patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from advisor.errors import InputError

_LONGEST_LIST = 100_000
_DEEPEST = 50
HYBRID_SYMBOLS = "MG*D+-E"


class _ListReader:
    """Recursive descent over `sum := product ('+' product)*`, `product := atom ('*' int)*`, atom a list or brackets."""

    def __init__(self, text: str) -> None:
        self.tokens = re.findall(r"\d+|[\[\](),+*]", text)
        if "".join(self.tokens) != re.sub(r"\s", "", text):
            raise ValueError("only digits, [ ] ( ) , + * are allowed")
        self.at = 0

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else "its end"
        if expected is not None and token != expected:
            raise ValueError(f"{expected!r} is expected before {token!r}")
        self.at += 1
        return token

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def number(self) -> int:
        token = self.take()
        if not token.isdigit() or len(token) > 6:
            raise ValueError(f"a number is expected, not {token!r}")
        return int(token)

    def total(self, depth: int = 0) -> list[int]:
        out = self.product(depth)
        while self.peek() == "+":
            self.take()
            out = out + self.product(depth)
        return out

    def product(self, depth: int) -> list[int]:
        out = self.atom(depth)
        while self.peek() == "*":
            self.take()
            times = self.number()
            if len(out) * times > _LONGEST_LIST:
                raise ValueError(f"the list is longer than {_LONGEST_LIST}")
            out = out * times
        return out

    def atom(self, depth: int) -> list[int]:
        if depth > _DEEPEST:
            raise ValueError("too many nested brackets")
        if self.peek() == "(":
            self.take()
            out = self.total(depth + 1)
            self.take(")")
            return out
        self.take("[")
        out = [self.number()]
        while self.peek() == ",":
            self.take()
            out.append(self.number())
        self.take("]")
        return out


def layer_list(text: str, num_layers: int) -> list[int]:
    """0/1 per layer of a frequency (`N`: every Nth layer starting with the first) or a list expression.

    Source: ML:megatron/training/arguments.py moe_freq_type; gpt_layer_specs.py expands N so that layer i has a 1 where
    i % N == 0. ValueError says what is wrong.
    """
    text = text.strip()
    if re.fullmatch(r"\d{1,6}", text):
        if int(text) < 1:
            raise ValueError("a frequency is 1 or more")
        return [int(layer % int(text) == 0) for layer in range(num_layers)]
    reader = _ListReader(text)
    out = reader.total()
    if reader.peek():
        raise ValueError(f"{reader.peek()!r} is left over")
    if len(out) != num_layers:
        raise ValueError(f"it describes {len(out)} layers, the model has {num_layers}")
    if set(out) - {0, 1}:
        raise ValueError("only 0 and 1 may be in the list")
    return out


@dataclass(frozen=True, slots=True)
class HybridPattern:
    """Sub-layers in model order, layer counts of the segments between `|`, and those of one prediction module."""

    layers: str
    segments: tuple[int, ...]
    module: str
    depth: int


def hybrid_pattern(text: str) -> HybridPattern:
    """Megatron's hybrid layer pattern `M-M*|M-M*/ME/ME`. InputError names the symbol or part that does not fit.

    Source: ML:megatron/core/models/hybrid/hybrid_layer_allocation.py@d98e8a64.
    """
    main, *modules = re.sub(r"\s", "", text).split("/")
    strange = sorted(set(main + "".join(modules)) - set(HYBRID_SYMBOLS + "|"))
    if strange:
        raise InputError(f"hybrid layer pattern: symbol {strange[0]!r} is none of {' '.join(HYBRID_SYMBOLS)} | /")
    if any("|" in module for module in modules):
        raise InputError("hybrid layer pattern: '|' may not be in the part after '/'")
    if len(set(modules)) > 1:
        raise InputError(f"hybrid layer pattern: prediction modules differ ({', '.join(sorted(set(modules)))})")
    if not main.replace("|", "") or "" in modules or len(main) > _LONGEST_LIST:
        raise InputError("hybrid layer pattern: it has no layers")
    return HybridPattern(
        layers=main.replace("|", ""),
        segments=tuple(len(segment) for segment in main.split("|")),
        module=modules[0] if modules else "",
        depth=len(modules),
    )
