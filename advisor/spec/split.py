"""How decoder layers, embedding, loss and multi-token prediction are dealt out over pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.errors import InputError


@dataclass(frozen=True, slots=True)
class PipelineSplit:
    """Layer counts of the pp * vpp chunks, in model order; chunk c lives on pipeline rank c % pp.

    The embedding is on chunk 0 and the loss on the last chunk. `mtp_chunk` is the chunk that holds the prediction
    modules (None = no modules). `form` says how Megatron is told: "even", "account" (account_for_* flags), "uneven"
    (first / last stage layer counts), "layout" (layout string) or "pattern" (`|` in a hybrid layer pattern). `group` is
    how many microbatches a chunk runs before the next one takes over (None = pp; Megatron's
    microbatch_group_size_per_vp_stage).
    """

    pp: int
    vpp: int
    layers: tuple[int, ...]
    form: str = "even"
    mtp_chunk: int | None = None
    account_embedding: bool = False
    account_loss: bool = False
    group: int | None = None

    def __post_init__(self) -> None:
        if len(self.layers) != self.pp * self.vpp:
            raise ValueError(f"{len(self.layers)} chunks given for pp {self.pp} x vpp {self.vpp}")

    def starts(self) -> tuple[int, ...]:
        """First decoder layer of each chunk."""
        out, at = [], 0
        for count in self.layers:
            out.append(at)
            at += count
        return tuple(out)


_UNITS = {"E": "embedding", "t": "decoder layer", "m": "prediction module", "L": "loss"}
_LONGEST_LAYOUT = 100_000


def _unroll(text: str) -> str:
    """Layout text with every `x*n` and `(..)*n` written out, as Megatron unrolls it: groups first, then symbols."""
    for pattern in (r"\(([^()]*)\)\*(\d{1,6})", r"([^()*])\*(\d{1,6})"):
        found = re.search(pattern, text)
        while found is not None:
            times = int(found[2])
            if times * len(found[1]) + len(text) > _LONGEST_LAYOUT:
                raise InputError(f"pipeline layout repeats {times} times: longer than {_LONGEST_LAYOUT} symbols")
            text = text[: found.start()] + found[1] * times + text[found.end() :]
            found = re.search(pattern, text)
    return text


def parse_layout_string(text: str, pp: int, num_layers: int, mtp_depth: int | None = None) -> PipelineSplit:
    """Megatron's pipeline layout string (`Et*3|(tt|)*29,m|L`) as a split over `pp` ranks.

    `E` is the embedding, `t` a decoder layer, `m` a prediction module, `L` the loss, `|` separates the stages. An
    InputError lists everything that Megatron would refuse; `mtp_depth` None leaves the number of modules unchecked.
    Source: ML:megatron/core/transformer/pipeline_parallel_layer_layout.py@d98e8a64.
    """
    flat = _unroll(re.sub(r"[,\s]", "", text))
    strange = sorted(set(flat) - set("EtmL|"))
    if strange:
        raise InputError(
            f"pipeline layout {text!r}: symbol {strange[0]!r} is none of E, t, m, L, |, *n and (..)*n",
            hint="for example 'Et*3|(tt|)*29m|L'",
        )
    stages = flat.split("|")
    order = flat.replace("|", "")
    problems = []
    if len(stages) % pp:
        problems.append(f"{len(stages)} stages do not divide over pp {pp}")
    for symbol in "EL":
        if order.count(symbol) != 1:
            problems.append(f"{order.count(symbol)} x {symbol} ({_UNITS[symbol]}), exactly 1 is needed")
    if not (order.startswith("E") and order.endswith("L")):
        problems.append("the first symbol must be E and the last one L")
    if order.count("t") != num_layers:
        problems.append(f"{order.count('t')} decoder layers, the model has {num_layers}")
    if mtp_depth is not None and order.count("m") != mtp_depth:
        problems.append(f"{order.count('m')} prediction modules, the run trains {mtp_depth}")
    holders = [chunk for chunk, stage in enumerate(stages) if "m" in stage]
    if len(holders) > 1 or "t" in order.partition("m")[2]:
        problems.append("all m must be in one stage and after the last t")
    if holders and holders[-1] < len(stages) - pp:
        problems.append("m must be in the last virtual stage of its rank")
    if problems:
        raise InputError(f"pipeline layout {text!r}: " + "; ".join(problems))
    return PipelineSplit(
        pp=pp,
        vpp=len(stages) // pp,
        layers=tuple(stage.count("t") for stage in stages),
        form="layout",
        mtp_chunk=holders[0] if holders else None,
    )


def deal_over_ranks(total: int, pp: int, first: int | None, last: int | None) -> tuple[tuple[int, ...], int, int]:
    """Layers of every rank, the first and the last with counts of their own where these are given, the rest even.

    Empty where they do not divide; beside it how many layers are left for how many ranks.
    """
    counts: list[int | None] = [None] * pp
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    middle = counts.count(None)
    rest = total - sum(count for count in counts if count is not None)
    if rest < 0 or (rest % middle if middle else rest):
        return (), rest, middle
    each = rest // middle if middle else 0
    return tuple(each if count is None else count for count in counts), rest, middle


def deal_over_chunks(ranks: Sequence[int], vpp: int) -> tuple[int, ...]:
    """Layers of every chunk in model order from those of every rank; empty where these do not divide by `vpp`."""
    pp = len(ranks)
    return () if any(count % vpp for count in ranks) else tuple(ranks[at % pp] // vpp for at in range(pp * vpp))
