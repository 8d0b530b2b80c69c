"""How decoder layers, embedding, loss and multi-token prediction are dealt out over pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineSplit:
    """Layer counts of the pp * vpp chunks, in model order; chunk c lives on pipeline rank c % pp.

    The embedding is on chunk 0 and the loss on the last chunk. `mtp_chunk` is the chunk that holds the prediction
    modules (None = no modules). `form` says how Megatron is told: "even", "account" (account_for_* flags), "uneven"
    (first / last stage layer counts) or "layout" (layout string).
    """

    pp: int
    vpp: int
    layers: tuple[int, ...]
    form: str = "even"
    mtp_chunk: int | None = None
    account_embedding: bool = False
    account_loss: bool = False

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
