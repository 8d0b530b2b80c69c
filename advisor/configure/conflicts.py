"""Choices about resiliency that cannot stand together, each with the reason; all broken ones are told at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from advisor.configure.chosen import Chosen
from advisor.errors import InputError
from advisor.spec.layout import Fsdp

Launcher = Literal["srun", "torchrun", "ft_launcher", "nemo-run"]
Detector = Literal["nvrx", "legacy", "both", "none"]
LOCAL_SOURCE = "Megatron-Bridge docs/training/resiliency.md@067f987df0"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What somebody asked for; None leaves the choice to the plan.

    `checkpoint_dir` is where persistent checkpoints go, `local_dir` a drive of the node. `preempt_lead_s` is the time
    between the signal and the end of the job.
    """

    launcher: Launcher = "ft_launcher"
    fault_tolerance: bool | None = None
    in_process: bool = False
    preemption_plugin: bool = False
    preemption: bool = True
    detector: Detector = "nvrx"
    stop_on_straggler: bool = False
    async_save: bool | None = None
    ckpt_format: str | None = None
    checkpoint_dir: str | None = "checkpoints"
    local_dir: str | None = None
    rerun: Literal["disabled", "validate_results", "report_determinism_stats"] = "disabled"
    nan_check: bool | None = None
    nsys: bool = False
    spares: int | None = None
    target: str = "0.6"

    @property
    def uses_ft(self) -> bool:
        """Whether the fault-tolerance package is on: by wish, or because its launcher is used."""
        if self.fault_tolerance is None:
            return self.launcher in {"ft_launcher", "nemo-run"} and not self.in_process
        return self.fault_tolerance


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two choices that exclude each other, why, what to do, and who says so."""

    id: str
    broken: Callable[[Wishes, Chosen, tuple[str, ...]], bool]
    message: str
    fix: str
    source: str


def _format_of(wishes: Wishes, chosen: Chosen) -> str:
    return wishes.ckpt_format or default_format(chosen)


def default_format(chosen: Chosen) -> str:
    """torch_dist, or what Megatron-FSDP needs."""
    return "torch_dist" if chosen.knobs.fsdp == Fsdp.none else "fsdp_dtensor"


CONFLICTS = (
    Conflict(
        "in-process-with-nemo-run",
        lambda w, c, f: w.in_process and w.launcher == "nemo-run",
        "in-process restart does not run under NeMo-Run's Slurm executor",
        "--launcher srun, which starts the ranks with --kill-on-bad-exit=0",
        LOCAL_SOURCE,
    ),
    Conflict(
        "in-process-with-preemption-plugin",
        lambda w, c, f: w.in_process and w.preemption_plugin,
        "in-process restart and the Slurm preemption plugin exclude each other: both want to end the process",
        "one of --in-process-restart and --preemption-plugin",
        LOCAL_SOURCE,
    ),
    Conflict(
        "in-process-with-ft-launcher",
        lambda w, c, f: w.in_process and (w.launcher in {"ft_launcher", "torchrun"} or w.fault_tolerance is True),
        "in-process restart keeps processes that ft_launcher and torchrun would kill and start again",
        "--launcher srun and no --fault-tolerance",
        LOCAL_SOURCE,
    ),
    Conflict(
        "ft-with-torchrun",
        lambda w, c, f: w.uses_ft and w.launcher == "torchrun",
        "under torchrun nothing watches the sections of the fault-tolerance package: it is off without a word",
        "--launcher ft_launcher",
        "Megatron-Bridge skills/nemo-mbridge-resiliency@067f987df0",
    ),
    Conflict(
        "ft-with-srun",
        lambda w, c, f: w.uses_ft and w.launcher == "srun",
        "ranks started by srun have no rank monitor of the fault-tolerance package",
        "--launcher ft_launcher",
        "nvidia-resiliency-ext 0.4.1 fault_tolerance/rank_monitor_client.py (FT_RANK_MONITOR_IPC_SOCKET)",
    ),
    Conflict(
        "ft-with-nsys",
        lambda w, c, f: w.uses_ft and w.nsys,
        "nsys stops ranks while it writes, which fault tolerance takes for hangs; the profile stays empty",
        "one of --fault-tolerance and --nsys",
        "Megatron-Bridge recipes/run_plugins.py@067f987df0 (FaultTolerancePlugin)",
    ),
    Conflict(
        "ft-without-checkpoint",
        lambda w, c, f: w.uses_ft and not w.checkpoint_dir,
        "fault tolerance keeps its state beside the checkpoints, and setup stops without checkpoint.save",
        "--checkpoint-dir",
        "Megatron-Bridge training/fault_tolerance.py@067f987df0 (setup)",
    ),
    Conflict(
        "two-straggler-detectors",
        lambda w, c, f: w.detector == "both",
        "two straggler detectors time the same kernels twice",
        "--straggler nvrx",
        LOCAL_SOURCE,
    ),
    Conflict(
        "stop-without-detector",
        lambda w, c, f: w.stop_on_straggler and w.detector != "nvrx",
        "only the NVRx detector can stop the job at a straggler",
        "--straggler nvrx",
        "Megatron-Bridge training/config.py@067f987df0 (NVRxStragglerDetectionConfig)",
    ),
    Conflict(
        "async-save-format",
        lambda w, c, f: w.async_save is True and _format_of(w, c) not in f,
        "asynchronous saves need another checkpoint format than the one chosen",
        "--no-async-save, or a format that the target saves asynchronously",
        "Megatron-Bridge training/config.py@067f987df0 (ConfigContainer.validate)",
    ),
    Conflict(
        "async-save-without-directory",
        lambda w, c, f: w.async_save is True and not w.checkpoint_dir,
        "asynchronous saves without checkpoint.save stop at start",
        "--checkpoint-dir",
        "Megatron-Bridge training/config.py@067f987df0 (ConfigContainer.validate)",
    ),
    Conflict(
        "fsdp-format",
        lambda w, c, f: c.knobs.fsdp != Fsdp.none and _format_of(w, c) != "fsdp_dtensor",
        "Megatron-FSDP saves only in the format fsdp_dtensor",
        "leave out --ckpt-format",
        "Megatron-Bridge training/config.py@067f987df0 (ConfigContainer.validate)",
    ),
    Conflict(
        "dtensor-without-fsdp",
        lambda w, c, f: c.knobs.fsdp == Fsdp.none and _format_of(w, c) == "fsdp_dtensor",
        "fsdp_dtensor is a format of Megatron-FSDP, which the plan does not use",
        "leave out --ckpt-format",
        "Megatron-Bridge training/config.py@067f987df0 (ConfigContainer.validate)",
    ),
    Conflict(
        "nan-check-in-full-graph",
        lambda w, c, f: w.nan_check is True and c.knobs.cuda_graph.name == "full_iteration",
        "a full-iteration CUDA graph cannot look at the loss: check_for_nan_in_loss must be off",
        "leave out --nan-check",
        "Megatron-Bridge training/config.py@067f987df0 (ConfigContainer.validate)",
    ),
)


def refuse_conflicts(wishes: Wishes, chosen: Chosen, async_formats: tuple[str, ...]) -> None:
    """Raise InputError with the reason of every pair of wishes that cannot stand together.

    `async_formats` are the checkpoint formats that the target version saves asynchronously.
    """
    broken = [one for one in CONFLICTS if one.broken(wishes, chosen, async_formats)]
    if broken:
        raise InputError(
            "; ".join(f"{one.id}: {one.message}" for one in broken),
            "; ".join(dict.fromkeys(one.fix for one in broken)),
        )
