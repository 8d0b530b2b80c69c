"""`advisor overlap`: how communication overlap of one layout resolves, and what each overlap brings."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import (
    GPUS,
    MODEL,
    SectionCommand,
    given,
    job_options,
    knob_options,
    layout_options,
    option,
    output_options,
    placement_options,
    switch,
    text,
    with_options,
)
from advisor.errors import EXIT_NEGATIVE, EXIT_OK

SECTION = "CommOverlapConfig"
OPTIONS = (
    MODEL,
    GPUS,
    *job_options(several_counts=False),
    *placement_options(),
    *layout_options(),
    *knob_options(),
    text("tp-comm-overlap-cfg", "NAME", SECTION, "User-buffer preset, or custom for a generated one."),
    switch("batch-p2p", SECTION, "Sends and receives as one batch."),
    switch("align-param-gather", SECTION, "Stages gather parameters at the same time."),
    switch("overlap-param-gather-with-optimizer-step", SECTION, "First gather beside the optimizer."),
    switch("defer-embedding-wgrad", SECTION, "Embedding weight gradient in the pipeline's drain."),
    text("wgrad-deferral-limit", "N", SECTION, "Microbatches it may wait for."),
    text("te-version", "X|none", SECTION, "Transformer Engine installed (default 2.12)."),
    text("target-version", "X", SECTION, "Of Megatron-Bridge: 0.3 or 0.6 (the default)."),
    switch("lora", SECTION, "LoRA: frozen weights have no weight-gradient GEMM."),
    option("--explain", section="Output", is_flag=True, help="Why, source, environment and virtual stages as well."),
)
BY_HAND = ("tp_comm_overlap_cfg", "batch_p2p", "align_param_gather", "overlap_param_gather_with_optimizer_step",
           "defer_embedding_wgrad", "wgrad_deferral_limit", "te_version", "target_version")  # fmt: skip


@click.command("overlap", cls=SectionCommand)
@with_options(OPTIONS)
@output_options
def command(output: render.Output, model: Any, gpus: Any, explain: bool, lora: bool | None, **options: Any) -> int:
    """Communication overlap of one layout: requested, effective, why, and the seconds it saves.

    Tensor-parallel overlap is asked for with TP above 1 unless --no-tp-overlap says otherwise. Exit code 1 = something
    asked for is refused or silently lost.
    """
    from advisor.cli.pages.overlap import overlap_document
    from advisor.configure.answer import by_hand, overlap_answer

    asked = by_hand({name: options.pop(name) for name in BY_HAND})
    answer = overlap_answer(model, gpus, given(options), asked, lora=bool(lora))  # type: ignore[arg-type]
    render.show(overlap_document(answer, explain or output.verbose), output)
    return EXIT_NEGATIVE if answer.negative else EXIT_OK
