"""How a Bridge configuration deals layers over the pipeline: as its fields say, and evenly where they say nothing."""

from __future__ import annotations

from collections.abc import Mapping

from advisor.check.subject.bridge import Reader
from advisor.rules.lint import Setup
from advisor.search.request import Request
from advisor.search.sources import Setting
from advisor.spec.split import PipelineSplit, deal_over_chunks, deal_over_ranks

FIELDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
          "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")  # fmt: skip
STATED = ("pp", "vpp", "pipeline_layout")
"""Settings that an option gives in place of the file's: the stages are then ours to balance."""


def stages(
    setup: Setup, request: Request, found: Mapping[str, Setting], split: PipelineSplit, flag: str
) -> PipelineSplit:
    """The stages of a Bridge configuration; `split` where an option, a layout or a hybrid pattern decides them.

    Source: megatron/core/transformer/transformer_block.py get_num_layers_to_build, megatron-core 0.16.1 and 0.19.2.
    A recipe that no table of ours knows and fields that Megatron would refuse leave `split` too.
    """
    own = found.get("pipeline_layout")
    if any(name in found and found[name].origin == flag for name in STATED) or own is not None:
        return split
    reader = Reader(setup)
    unknown = reader.recipe is not None and not reader.row and not setup.given(*FIELDS)
    if request.model.is_hybrid or split.pp == 1 or unknown:
        return split
    first, last, embedding, loss = (reader.value(name) for name in FIELDS)
    ranks, _, _ = deal_over_ranks(request.model.num_layers + bool(embedding) + bool(loss), split.pp, first, last)
    made = deal_over_chunks(ranks, split.vpp)
    if not made:
        return split
    layers = [*made]
    layers[0] -= bool(embedding)
    layers[-1] -= bool(loss)
    form = "account" if embedding or loss else "even" if first is None and last is None else "uneven"
    home = split.pp * split.vpp - 1 if request.workload.mtp_depth else None
    return PipelineSplit(split.pp, split.vpp, tuple(layers), form, home,
                         account_embedding=bool(embedding), account_loss=bool(loss), group=split.group)  # fmt: skip
