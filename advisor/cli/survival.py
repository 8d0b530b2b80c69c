"""Options that launch, resiliency and goodput share: the plan, what the job meets, what should be used against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from advisor.cli.options import Decorator, option
from advisor.cli.parameters import OneOf, Text

if TYPE_CHECKING:
    from advisor.configure.chosen import Chosen
    from advisor.configure.conflicts import Wishes
    from advisor.configure.recovery import Hazards

PLAN_ARGUMENT = click.argument("plan", metavar="PLAN.json", type=Text("PLAN.json"))
LAUNCHERS = ("srun", "torchrun", "ft_launcher", "nemo-run")
DETECTORS = ("nvrx", "legacy", "both", "none")
RERUN = ("disabled", "validate_results", "report_determinism_stats")


def valued(name: str, metavar: str, section: str, words: str, **more: Any) -> Decorator[Any]:
    """An option with a free value that can also come from ADVISOR_<NAME>."""
    kind = more.pop("type", None) or Text(metavar)
    return option(f"--{name}", section=section, type=kind, envvar=_variable(name), help=words, **more)


def flag(name: str, section: str, words: str) -> Decorator[Any]:
    """A plain switch that can also come from ADVISOR_<NAME>."""
    return option(f"--{name}", section=section, is_flag=True, envvar=_variable(name), help=words)


def either(name: str, section: str, words: str) -> Decorator[Any]:
    """A pair --name / --no-name that is None when neither is given."""
    return option(f"--{name}/--no-{name}", section=section, default=None, envvar=_variable(name), help=words)


def _variable(name: str) -> str:
    return f"ADVISOR_{name.replace('-', '_').upper()}"


CANDIDATE = valued("candidate", "N", "Plan", "Rank of the layout in the plan (default 1).")
HAZARDS = (
    valued("mtbf-hours", "X", "Failures", "Between interruptions of the whole job; default: rate of a GPU x GPUs."),
    valued("rate", "NAME", "Failures", "Published failure rate: llama3 (default), rsc1, rsc2, bloom."),
    valued("checkpoint-write-gbs", "X", "Failures", "GB/s of all nodes together; default 1 per node."),
)
WISHES = (
    either("fault-tolerance", "Mechanisms", "Sections watched by ft_launcher (default: with that launcher)."),
    flag("in-process-restart", "Mechanisms", "Restart without ending processes (experimental)."),
    flag("preemption-plugin", "Mechanisms", "NeMo-Run's plugin for signals."),
    either("preemption", "Mechanisms", "Save and end before the time limit (default on)."),
    valued("straggler", f"[{'|'.join(DETECTORS)}]", "Mechanisms", "Detector of slow ranks.", type=OneOf(DETECTORS),
           default="nvrx"),
    flag("stop-on-straggler", "Mechanisms", "End the job at a straggler."),
    either("async-save", "Mechanisms", "Write checkpoints beside training (default: where it works)."),
    valued("ckpt-format", "NAME", "Mechanisms", "torch_dist, or fsdp_dtensor with Megatron-FSDP."),
    valued("checkpoint-dir", "DIR", "Mechanisms", "Persistent checkpoints.", default="checkpoints"),
    valued("local-dir", "DIR", "Mechanisms", "Drive of the node: local checkpoints beside persistent ones."),
    valued("rerun", f"[{'|'.join(RERUN)}]", "Mechanisms", "Re-run state machine.", type=OneOf(RERUN),
           default="disabled"),
    either("nan-check", "Mechanisms", "End at a NaN in the loss (default on, but for full-iteration graphs)."),
    flag("nsys", "Mechanisms", "The job is profiled with nsys."),
    valued("spare-nodes", "N", "Mechanisms", "Nodes held ready; default: as many as pay for themselves."),
    valued("target-version", "X", "Mechanisms", "Megatron-Bridge 0.3 or 0.6.", default="0.6"),
)  # fmt: skip


def chosen_of(plan: str, options: dict[str, Any]) -> Chosen:
    """The candidate that the options name, taken out of `options`."""
    from advisor.configure.chosen import read_plan
    from advisor.search.values import whole

    candidate = options.pop("candidate")
    return read_plan(plan, 1 if candidate is None else whole("candidate", candidate, 1, 10_000))


def hazards_of(chosen: Chosen, options: dict[str, Any]) -> Hazards:
    """The hazards that the options name, taken out of `options`."""
    from advisor.configure.recovery import hazards
    from advisor.search.values import real

    mtbf, write = options.pop("mtbf_hours"), options.pop("checkpoint_write_gbs")
    return hazards(
        chosen,
        mtbf_hours=None if mtbf is None else real("mtbf_hours", mtbf, 1e-3, 1e7),
        rate=options.pop("rate"),
        write_gbs=None if write is None else real("checkpoint_write_gbs", write, 1e-3, 1e6),
    )


def wishes_of(options: dict[str, Any], launcher: str) -> Wishes:
    """The wishes that the options name, taken out of `options`."""
    from advisor.configure.conflicts import Wishes
    from advisor.configure.resiliency import bridge_target
    from advisor.search.values import whole

    spares = options.pop("spare_nodes")
    return Wishes(
        launcher=launcher,  # type: ignore[arg-type]
        fault_tolerance=options.pop("fault_tolerance"),
        in_process=options.pop("in_process_restart"),
        preemption_plugin=options.pop("preemption_plugin"),
        preemption=options.pop("preemption") is not False,
        detector=options.pop("straggler"),
        stop_on_straggler=options.pop("stop_on_straggler"),
        async_save=options.pop("async_save"),
        ckpt_format=options.pop("ckpt_format"),
        checkpoint_dir=options.pop("checkpoint_dir") or None,
        local_dir=options.pop("local_dir"),
        rerun=options.pop("rerun"),
        nan_check=options.pop("nan_check"),
        nsys=options.pop("nsys"),
        spares=None if spares is None else whole("spare_nodes", spares, 0, 100_000),
        target=bridge_target(options.pop("target_version")),
    )
