"""What of the knobs that somebody asks for takes effect on a layout, and why the rest does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from advisor.check.subject.bridge import bridge_version, with_overlap
from advisor.check.subject.form import Settle
from advisor.configure.environment import Variable, variables
from advisor.configure.job import Job
from advisor.configure.overlap import LATENT, resolve
from advisor.configure.resolved import ML, Asked, Field, asked_of
from advisor.configure.userbuffers import preset_names
from advisor.rules.lint import Setup
from advisor.search.request import Request
from advisor.search.single import Choice
from advisor.spec.layout import Dispatcher, Fsdp, Knobs, Layout

ARGUMENTS = f"{ML}/training/arguments.py validate_args"


def settler(setup: Setup, request: Request) -> Settle:
    """The function that turns knobs asked for into those that hold, for the framework of the job."""
    if setup.framework == "megatron-lm":
        return lambda layout, knobs: _megatron(request, layout, knobs)
    if setup.framework == "bridge" and not with_overlap(setup):
        return lambda layout, knobs: _by_hand(request, layout, knobs)

    def held(layout: Layout, knobs: Knobs) -> Knobs:
        job = Job(request.model, request.cluster, request.workload, layout, knobs)
        return resolve(job, asked_of(knobs, overlap_asked(setup))).effective

    return held


def _megatron(request: Request, layout: Layout, knobs: Knobs) -> Knobs:
    """Megatron-LM's script: no buffers for latent attention, transfers overlap only between virtual stages.

    The rest is refused, not dropped.
    """
    return replace(
        knobs,
        tp_overlap=knobs.tp_overlap and not request.model.has_mla,
        overlap_p2p=knobs.overlap_p2p and layout.pp > 1 and layout.vpp > 1,
    )


def _by_hand(request: Request, layout: Layout, knobs: Knobs) -> Knobs:
    """Fields of model and ddp without a CommOverlapConfig: nobody settles them, a use finds nothing to overlap."""
    staged, sharded = layout.pp > 1 and layout.vpp > 1, knobs.distributed_optimizer or knobs.fsdp is not Fsdp.none
    flex = knobs.dispatcher in (Dispatcher.deepep, Dispatcher.hybridep)
    shared = request.model.moe is not None and request.model.moe.shared_ffn > 0 and not flex
    return replace(
        knobs,
        tp_overlap=knobs.tp_overlap and layout.tp > 1 and layout.sp and not request.model.has_mla,
        overlap_p2p=knobs.overlap_p2p and staged,
        overlap_param_gather=knobs.overlap_param_gather and sharded,
        shared_expert_overlap=knobs.shared_expert_overlap and shared,
    )


def overlap_asked(setup: Setup) -> Asked:
    """Fields of CommOverlapConfig that the files state, with the versions that they name."""
    given = {}
    for one in fields(Asked):
        stated = setup.values.get(f"comm_overlap.{one.name}")
        plain = stated is not None and (type(stated.value) is bool or type(stated.value) is int)
        if stated is not None and plain:
            given[one.name] = stated.value
        elif stated is not None and one.name == "tp_comm_overlap_cfg" and str(stated.value) in preset_names():
            given[one.name] = str(stated.value)
    engine = setup.packages.get("te", (2, 12))
    given["transformer_engine"] = None if engine is None else ".".join(map(str, engine))
    given["target"] = bridge_version(setup)
    return Asked(**given)


def overlap_fields(setup: Setup, request: Request, choice: Choice, settle: Settle) -> tuple[Field, ...]:
    """Every overlap setting: what was asked, what holds and why."""
    job = Job(request.model, request.cluster, request.workload, choice.layout, choice.knobs)
    if setup.framework != "megatron-lm" and not (setup.framework == "bridge" and not with_overlap(setup)):
        return resolve(job, asked_of(choice.knobs, overlap_asked(setup))).fields
    return tuple(_plain_fields(setup, choice, settle(choice.layout, choice.knobs)))


NAMES = {
    "tp_overlap": ("model", "tp_comm_overlap"),
    "overlap_p2p": ("model", "overlap_p2p_comm"),
    "overlap_grad_reduce": ("ddp", "overlap_grad_reduce"),
    "overlap_param_gather": ("ddp", "overlap_param_gather"),
    "ep_overlap": ("model", "overlap_moe_expert_parallel_comm"),
    "delay_wgrad": ("model", "delay_wgrad_compute"),
    "shared_expert_overlap": ("model", "moe_shared_expert_overlap"),
}


def _plain_fields(setup: Setup, choice: Choice, held: Knobs) -> Iterator[Field]:
    layout = choice.layout
    why = {
        "tp_overlap": LATENT
        if layout.tp > 1 and layout.sp
        else f"TP is {layout.tp}, sequence parallelism {'on' if layout.sp else 'off'}: nothing to overlap",
        "overlap_p2p": f"PP is {layout.pp} and VPP is {layout.vpp}: transfers overlap between virtual stages only",
        "overlap_param_gather": "no distributed optimizer: there is no gather",
        "shared_expert_overlap": "no shared experts, or a flex backend, which switches it off",
    }
    for name, (section, field) in NAMES.items():
        asked, holds = getattr(choice.knobs, name), getattr(held, name)
        stated = setup.given(f"{section}.{field}")
        lost = asked != holds and (stated or (name == "overlap_p2p" and layout.pp > 1))
        reason = why[name] if asked != holds else "as asked" if stated else "default"
        outcome = "silent" if lost else "asked" if stated else "automatic"
        yield Field(section, field, asked if stated or lost else None, holds, outcome, reason, ARGUMENTS)  # type: ignore[arg-type]


def wanted_environment(setup: Setup, request: Request, layout: Layout, knobs: Knobs) -> tuple[Variable, ...]:
    """Variables that the job wants and that its launch files set otherwise, or not at all."""
    if not setup.env_known:
        return ()
    job = Job(request.model, request.cluster, request.workload, layout, knobs)
    return tuple(one for one in variables(job) if setup.variable(one.name) != one.value)
