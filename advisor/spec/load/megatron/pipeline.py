"""From Megatron-LM arguments to a `PipelineSplit`: even, account_for_*, first / last counts, layout string, pattern."""

from __future__ import annotations

import dataclasses

from advisor.errors import InputError
from advisor.spec.load.megatron.arguments import Arguments
from advisor.spec.load.megatron.model import pattern_segments
from advisor.spec.model import Model
from advisor.spec.split import PipelineSplit, deal_over_chunks, deal_over_ranks, parse_layout_string

_LARGEST_PP = 4096


def _from_pattern(arguments: Arguments, model: Model, pp: int) -> PipelineSplit | None:
    """Split of a hybrid model: `|` in its pattern, else even (or first / last counts) without interleaving."""
    segments = pattern_segments(arguments)
    if not segments:
        return _from_counts(arguments, model, pp, 1)
    if len(segments) % pp:
        arguments.problem("hybrid_layer_pattern", f"has {len(segments)} segments: not a multiple of pp {pp}")
        return None
    return PipelineSplit(pp, len(segments) // pp, tuple(segments), form="pattern")


def _interleaving(arguments: Arguments, layers: int, pp: int) -> int:
    """Virtual stages per rank; 1 without interleaving."""
    if arguments.given("num_virtual_stages_per_pipeline_rank"):
        return arguments.count("num_virtual_stages_per_pipeline_rank")
    if not arguments.given("num_layers_per_virtual_pipeline_stage"):
        return 1
    each = arguments.count("num_layers_per_virtual_pipeline_stage")
    if layers % (pp * each):
        arguments.problem(
            "num_layers_per_virtual_pipeline_stage", f"is {each}: {layers} layers do not divide over pp {pp} x {each}"
        )
        return 1
    return layers // pp // each


def _from_counts(arguments: Arguments, model: Model, pp: int, vpp: int) -> PipelineSplit | None:
    """First and last rank with counts of their own, the rest even."""
    first, last = arguments.get("decoder_first_pipeline_num_layers"), arguments.get("decoder_last_pipeline_num_layers")
    own = [
        None if one is None else arguments.count(f"decoder_{which}_pipeline_num_layers")
        for which, one in (("first", first), ("last", last))
    ]
    ranks, rest, middle = deal_over_ranks(model.num_layers, pp, *own)
    if not ranks:
        arguments.problem(
            "decoder_first_pipeline_num_layers" if first is not None else "pipeline_model_parallel_size",
            f"leaves {rest} of {model.num_layers} layers for {middle} stages: they do not divide",
        )
        return None
    chunks = deal_over_chunks(ranks, vpp)
    if not chunks:
        arguments.problem(
            "num_virtual_stages_per_pipeline_rank", f"is {vpp}: it does not divide {sorted(set(ranks))} layers per rank"
        )
        return None
    form = "even" if first is None and last is None else "uneven"
    return PipelineSplit(pp, vpp, chunks, form=form)


def _accounted(arguments: Arguments, model: Model, pp: int) -> PipelineSplit | None:
    """Even split that counts the embedding and / or the loss as one layer each (account_for_*_in_pipeline_split)."""
    embedding = arguments.switch("account_for_embedding_in_pipeline_split")
    loss = arguments.switch("account_for_loss_in_pipeline_split")
    total = model.num_layers + embedding + loss
    vpp = _interleaving(arguments, total, pp)
    if total % (pp * vpp):
        arguments.problem(
            "pipeline_model_parallel_size", f"is {pp} (x {vpp} virtual): {total} layers do not divide evenly over it"
        )
        return None
    layers = [total // pp // vpp] * (pp * vpp)
    layers[0] -= embedding
    layers[-1] -= loss
    if min(layers) < 0:
        arguments.problem("account_for_loss_in_pipeline_split", "leaves a stage with less than no layers")
        return None
    form = "account" if embedding or loss else "even"
    return PipelineSplit(pp, vpp, tuple(layers), form=form, account_embedding=embedding, account_loss=loss)


def read_split(arguments: Arguments, model: Model) -> PipelineSplit | None:
    """The split with its microbatch group; None where the arguments contradict (noted as problems)."""
    split = _split(arguments, model)
    if split is None or split.vpp == 1 or not arguments.given("microbatch_group_size_per_vp_stage"):
        return split
    group = arguments.count("microbatch_group_size_per_vp_stage", low=split.pp)
    return dataclasses.replace(split, group=group)


def _split(arguments: Arguments, model: Model) -> PipelineSplit | None:
    """How the layers are dealt over pipeline ranks.

    Source: rules a.5 of Megatron: ML:megatron/training/arguments.py@d98e8a64, lines 928-998.
    """
    pp = arguments.count("pipeline_model_parallel_size")
    if pp > _LARGEST_PP:
        arguments.problem("pipeline_model_parallel_size", f"is {pp}: more than {_LARGEST_PP}")
        return None
    exclusive = (
        "pipeline_model_parallel_layout",
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
    )
    given = [dest for dest in exclusive if arguments.given(dest)]
    if len(given) > 1 or (given and model.family == "megatron-hybrid"):
        arguments.problem(given[0], "does not go with " + ("a hybrid pattern" if len(given) == 1 else given[1]))
        return None
    if model.family == "megatron-hybrid":
        return _from_pattern(arguments, model, pp)
    if arguments.given("pipeline_model_parallel_layout"):
        depth = model.mtp.depth if model.mtp is not None else 0
        try:
            text = str(arguments.get("pipeline_model_parallel_layout"))
            return parse_layout_string(text, pp, model.num_layers, depth)
        except InputError as error:
            arguments.problems.append(f"--pipeline-model-parallel-layout: {error.message}")
            return None
    uneven = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    if sum(arguments.given(dest) for dest in uneven):  # every one is asked for, so that none counts as ignored
        if arguments.given("num_layers_per_virtual_pipeline_stage"):
            arguments.problem(
                "num_layers_per_virtual_pipeline_stage",
                "with first / last counts: use num-virtual-stages-per-pipeline-rank",
            )
        return _from_counts(arguments, model, pp, _interleaving(arguments, pp, pp))
    return _accounted(arguments, model, pp)
