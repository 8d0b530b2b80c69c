"""Router statistics in the text of a job log: lines that name a layer and list its tokens per expert.

Read are lines with `layer 3`, `layer=3`, `layers.3` or the like, then `tokens_per_expert` (or `tokens per expert`) and
a list in brackets, as Python or torch print one, over several lines if need be; lines of the same layer are added up.
What Megatron-LM and Megatron Bridge print by themselves are load-balancing losses, averaged over all layers (with
--moe-per-layer-logging per layer, to TensorBoard and W&B): they do not say how many tokens an expert gets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from advisor.errors import InputError
from advisor.spec.load.router.counts import Counts, Place, number

_LAYER = re.compile(r"\blayers?(?:[_ ]?(?:number|idx|id|index))?[\s._:=\[#]*(\d{1,4})\b", re.IGNORECASE)
_LIST = re.compile(r"tokens?[_ ]per[_ ]expert\D*?\[+([^\]]*)(\])?", re.IGNORECASE)
_LOSS = re.compile(r"\b(?:seq_|global_)?load_balancing_loss\b")
_SPLIT = re.compile(r"[\s,]+")
HOW = (
    "save tokens per expert (Megatron-LM 0.19: --save-tokens-per-expert-interval or --moe-routing-trace-path), or give"
    " CSV with a header layer,expert,tokens"
)
MOST_LINES = 4096
"""Lines over which one list may go on."""


def read_printed(lines: Sequence[str], source: str) -> Counts:
    """Counts of every list in a log. InputError without any."""
    counts = Counts(source, "log lines with tokens per expert")
    at = 0
    while at < len(lines):
        found = _LIST.search(lines[at])
        layer = None if found is None else _layer(lines[at][: found.start()])
        if found is None or layer is None:
            at += 1
            continue
        first, text, closed = at, found[1], found[2]
        while not closed and at + 1 < min(len(lines), first + MOST_LINES):
            at += 1
            more, closed, _ = lines[at].partition("]")
            text += " " + more
        words = [word for word in _SPLIT.split(text.strip()) if word]
        for expert, word in enumerate(words):
            counts.add(Place(layer), expert, number(word), f"line {first + 1}", sums=True)
        at += 1
    if not counts.tokens and not counts.problems:
        losses = any(_LOSS.search(line) for line in lines)
        what = "only a load-balancing loss, which says no tokens per expert" if losses else "no tokens per expert"
        raise InputError(f"router statistics {source}: {what} in it", HOW)
    return counts


def _layer(text: str) -> int | None:
    """The last layer that is named before a list."""
    found = _LAYER.findall(text)
    return int(found[-1]) if found else None
