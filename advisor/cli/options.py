"""Options that verbs share, in sections, and the way from parsed options to keywords of the Python functions.

What is typed goes to the Python functions as text; they check it. What is not given stays None: they then look at the
environment (ADVISOR_<OPTION>), the project's and the user's file and the default, and say which it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from advisor.cli import render
from advisor.cli.parameters import Gpus, OneCount, OneOf, OutFile, Text
from advisor.spec.hardware import RankOrder
from advisor.spec.precision import ALIASES, PRECISIONS
from advisor.spec.workload import Mode, OptimizerName, Routing, Task

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep")
CUDA_GRAPHS = ("none", "scoped", "full_iteration")
CP_COMMS = ("p2p", "all_gather", "a2a", "a2a_p2p")
FSDP = ("none", "optim", "optim_grads", "optim_grads_params")
DTYPES = ("fp32", "bf16", "fp16", "fp8")


ROUTER_STATS = """Forms of --router-stats FILE: CSV with a header layer,expert,tokens, or layer,0,1,2,... with a column
per expert (a column iteration is summed over); files or the folder that Megatron-LM 0.19 saves with
--save-tokens-per-expert-interval or --moe-routing-trace-path; a log with lines that name a layer and list its
tokens_per_expert. Layers are numbered from 0 or from 1 and must be all expert layers of the model."""


class SectionOption(click.Option):
    """An option that belongs to a section of the help page."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionCommand(click.Command):
    """A command whose help lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list per section, in the order in which sections first occur."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)


def option(*names: str, section: str, **kwargs: Any) -> Decorator[Any]:
    """A `click.option` of a section."""
    return click.option(*names, cls=SectionOption, section=section, **kwargs)


def switch(name: str, section: str, text: str) -> Decorator[Any]:
    """A pair --name / --no-name that is None when neither is given."""
    return option(f"--{name}/--no-{name}", section=section, default=None, help=text)


def with_options(options: Sequence[Decorator[Any]]) -> Decorator[Any]:
    """All `options` as one decorator, the first one first on the help page."""

    def decorate(function: F) -> F:
        for one in reversed(options):
            function = one(function)
        return function

    return decorate


def _model_names() -> Iterable[str]:
    from advisor.spec.load.model import model_names

    return model_names()


def _system_names() -> Iterable[str]:
    from advisor.spec.load.system import system_names

    return system_names()


def _choose_color(_ctx: click.Context, _param: click.Parameter, value: render.ColorMode) -> render.ColorMode:
    render.choose_color(value)
    return value


OUTPUT_OPTIONS = (
    option("--format", "form", section="Output", type=OneOf(["table", "json", "csv", "md"]), default="table",
           envvar="ADVISOR_FORMAT", show_default=True, help="What stdout gets."),
    option("--out", section="Output", type=OutFile(render.SUFFIXES), envvar="ADVISOR_OUT",
           help=f"Also write the answer to a file, in the format of its suffix ({' '.join(render.SUFFIXES)})."),
    option("--color", section="Output", type=OneOf(["auto", "always", "never"]), default="auto", is_eager=True,
           callback=_choose_color, envvar="ADVISOR_COLOR", expose_value=False, show_default=True,
           help="Overrides NO_COLOR and FORCE_COLOR."),
    option("-q", "--quiet", section="Output", is_flag=True, envvar="ADVISOR_QUIET", help="No hints."),
    option("-v", "--verbose", section="Output", is_flag=True, envvar="ADVISOR_VERBOSE", help="More detail."),
)  # fmt: skip


def output_options(function: Callable[..., int]) -> Callable[..., int]:
    """--format, --out, --color, -q and -v, handed to the verb as one `render.Output`."""

    @functools.wraps(function)
    def verb(*, form: render.Format, out: Path | None, quiet: bool, verbose: bool, **options: Any) -> int:
        return function(output=render.Output(form, out, quiet, verbose), **options)

    decorate: Callable[[Callable[..., int]], Callable[..., int]] = with_options(OUTPUT_OPTIONS)
    return decorate(verb)


MODEL_ARGUMENT = click.argument("name", type=Text("NAME|PATH", _model_names), metavar="NAME|PATH")
SYSTEM_ARGUMENT = click.argument("name", type=Text("NAME|PATH", _system_names), metavar="NAME|PATH")


MODEL = option(
    "--model",
    section="Job",
    type=Text("NAME|PATH", _model_names),
    help="Preset, or path of a Hugging Face config.json.",
)
GPUS = option("--gpus", section="Job", type=OneCount(), help="GPUs.")
# A list of counts means something on the command line only, so this one option reads its variable here.
SEVERAL_GPUS = option(
    "--gpus", section="Job", type=Gpus(), envvar="ADVISOR_GPUS", required=True,
    help="GPUs; auto = the fewest that fit; a list = scaling curve.",
)  # fmt: skip


def text(name: str, metavar: str, section: str, words: str) -> Decorator[Any]:
    """An option with a free value."""
    return option(f"--{name}", section=section, type=Text(metavar), help=words)


def choice(name: str, known: Iterable[str], section: str, words: str) -> Decorator[Any]:
    """An option with a few known values, which the help page lists and the shell completes."""
    values = tuple(known)
    return option(f"--{name}", section=section, type=Text(f"[{'|'.join(values)}]", lambda: values), help=words)


def job_options(several_counts: bool) -> list[Decorator[Any]]:
    """What a job is, whatever its layout."""
    section = "Job"
    precisions = (*PRECISIONS, *ALIASES)
    batch = (
        ("N|fixed|scaled", "Sequences per step; for several GPU counts a rule.")
        if several_counts
        else ("N", "Sequences per step.")
    )
    return [
        option("--system", section=section, type=Text("NAME|PATH", _system_names),
               help="Preset, GPU name, or YAML file of an own cluster."),
        option("--precision", section=section, type=Text("NAME", lambda: precisions),
               help=f"{', '.join(PRECISIONS)} (fp8 = {ALIASES['fp8']})."),
        text("seq-len", "N", section, "Tokens per sequence."),
        text("gbs", batch[0], section, batch[1]),
        text("headroom", "8%|4GiB", section, "Memory to leave free on every GPU."),
        choice("task", get_args(Task), section, "What is trained."),
        choice("routing", get_args(Routing), section, "How tokens spread over experts."),
        text("router-skew", "X", section, "Tokens on the fullest expert rank over the mean."),
        text("router-stats", "FILE", section, "Tokens per expert and layer: CSV (layer,expert,tokens), files saved by"
             " Megatron-LM, a log."),
        text("capacity-factor", "X", section, "Bound under --routing token-drop."),
        choice("optimizer", get_args(OptimizerName), section, "Optimizer."),
        switch("fp8-params", section, "Store and gather quantised weights."),
        text("mtp-depth", "N", section, "Multi-token prediction modules trained."),
        choice("attention-impl", ("fused", "unfused"), section, "Attention kernel."),
        text("vocab-size", "N", section, "Vocabulary, if not the model's own."),
        text("vocab-divisor", "N", section, "make_vocab_size_divisible_by."),
    ]  # fmt: skip


def anchor_options() -> list[Decorator[Any]]:
    """Measured runs that correct a prediction, and a measured rate to set beside it."""
    words = "Measured runs that correct predictions of their model, GPU and precision (form: advisor validate --help)."
    return [
        option("--anchor", section="Prediction", type=Text("RUNS.csv"), help=words),
        text("measured-tflops", "X", "Prediction", "TFLOP/s per GPU that a run reached: its utilisation, and what was"
             " predicted and published."),
    ]  # fmt: skip


def placement_options() -> list[Decorator[Any]]:
    """Where ranks go and how much of the cluster they get."""
    section = "Placement"
    return [
        choice("rank-order", get_args(RankOrder), section, "Order of ranks."),
        text("used-per-domain", "N", section, "GPUs used of each NVLink domain (64 of 72)."),
        text("oversubscription", "X", section, "Of the network between domains."),
        text("usable-gib", "X", section, "Memory that a process can allocate."),
    ]


def layout_options() -> list[Decorator[Any]]:
    """One layout."""
    section = "Layout"
    words = {
        "tp": "Tensor parallel.", "pp": "Pipeline parallel.", "vpp": "Chunks per pipeline rank.",
        "cp": "Context parallel.", "ep": "Expert parallel.", "etp": "Tensor parallel of the experts.",
        "mbs": "Sequences per microbatch.",
    }  # fmt: skip
    return [
        *(text(name, "N", section, said) for name, said in words.items()),
        switch("sp", section, "Sequence parallelism (default: with TP above 1)."),
        text("pipeline-layout", "TEXT", section, "Megatron's layout string, Et*4|(t*4|)*14tmL."),
    ]


def knob_options() -> list[Decorator[Any]]:
    """Choices within a layout."""
    section = "Knobs"
    return [
        text("recompute", "LIST", section, "Modules (moe_act,mla_up_proj), full, full-block:N or full-uniform:N."),
        choice("dispatcher", DISPATCHERS, section, "Token dispatcher."),
        switch("ep-overlap", section, "Expert all-to-all beside compute."),
        switch("delay-wgrad", section, "Weight gradients after the input gradients."),
        switch("shared-expert-overlap", section, "Shared experts beside the dispatch."),
        option("--fsdp", section=section, type=Text(f"[{'|'.join(FSDP)}]", lambda: FSDP), is_flag=False,
               flag_value=FSDP[-1], help=f"Megatron-FSDP; without a value: {FSDP[-1]}."),
        choice("cuda-graph", CUDA_GRAPHS, section, "Scope of capture."),
        text("optimizer-offload", "X", section, "Share of the optimizer state on the host."),
        text("offload-layers", "N", section, "First layers whose activations wait in host memory."),
        text("offload-modules", "LIST", section, "Modules whose inputs wait there (expert_fc1,moe_act)."),
        text("optimizer-instances", "N", section, "Distributed-optimizer instances."),
        choice("cp-comm", CP_COMMS, section, "Context-parallel exchange."),
        switch("tp-overlap", section, "Tensor-parallel overlap (userbuffers)."),
        switch("distributed-optimizer", section, "Optimizer state sharded over data-parallel ranks."),
        switch("overlap-grad-reduce", section, "Gradient reduction beside the backward pass."),
        switch("overlap-param-gather", section, "Parameter gather beside the forward pass."),
        switch("overlap-p2p", section, "Pipeline transfers beside compute."),
        text("bucket-size", "N", section, "Parameters (not bytes) per bucket of data-parallel traffic."),
        choice("grad-dtype", DTYPES, section, "Gradient accumulation and reduction."),
        choice("moment-dtype", DTYPES, section, "Optimizer moments."),
        choice("main-param-dtype", DTYPES, section, "Main parameters."),
    ]  # fmt: skip


def serving_options() -> list[Decorator[Any]]:
    """What memory is asked for."""
    section = "Job"
    return [
        choice("mode", get_args(Mode), section, "What the memory is for."),
        text("batch", "N", section, "Requests at once, with --mode inference."),
        text("context", "N", section, "Tokens per request, with --mode inference."),
    ]


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as keywords of the Python functions."""
    return {**{name: value for name, value in options.items() if value is not None}, "given_by": "flag"}
