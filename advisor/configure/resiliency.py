"""Resiliency of a plan: which mechanisms, with which values, and why.

Names are those of Megatron-Bridge's configuration. Values are derived: timeouts from the predicted step and checkpoint,
intervals from the mean time between interruptions, spare nodes from what they bring against what they cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from advisor.configure.checkpoint import SaveInterval, host_memory_problem, nodes_of, size_words
from advisor.configure.chosen import Chosen
from advisor.configure.conflicts import Wishes, default_format, refuse_conflicts
from advisor.configure.facts import reliability_facts
from advisor.configure.job import preset
from advisor.configure.recovery import (
    Hazards,
    Outcome,
    Setup,
    best_spares,
    hazards,
    outcome,
    persistent_interval,
    straggler_interval_s,
)
from advisor.configure.timeouts import HEARTBEAT_INTERVAL_S, Timeouts, timeouts
from advisor.search.values import choice
from advisor.spec.layout import CudaGraph
from advisor.spec.load.system import ranks_per_node
from advisor.spec.plan import Finding

FEWEST_RESTARTS = 3
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Value:
    """One field of the configuration: `path` below the configuration object, its value, the reason."""

    path: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Resiliency:
    """Everything that a job needs to survive.

    `values` are fields of Megatron-Bridge, `environment` variables to export, `max_restarts` restarts within one job,
    `findings` what to know; `result` is the goodput with these settings.
    """

    chosen: Chosen
    wishes: Wishes
    met: Hazards
    setup: Setup
    limits: Timeouts
    persistent: SaveInterval
    result: Outcome
    values: tuple[Value, ...]
    environment: tuple[Value, ...]
    max_restarts: int
    findings: tuple[Finding, ...]

    def value(self, path: str) -> Any:
        """Value of a field, None when it is left alone."""
        return next((one.value for one in self.values if one.path == path), None)


def bridge_target(name: str) -> str:
    """Version of Megatron-Bridge as the tables spell it ("0.6" for 0.6.2 or bridge-0.6)."""
    known = [str(one) for one in preset("versions.yaml")["bridge"]]
    plain = name.removeprefix("bridge-")
    return next((one for one in known if plain == one or plain.startswith(one + ".")), "") or choice(
        "target", plain, known
    )


def resiliency(chosen: Chosen, wishes: Wishes, met: Hazards | None = None) -> Resiliency:
    """Settings for `chosen`; raises InputError when wishes exclude each other."""
    facts = reliability_facts()
    formats = tuple(preset("versions.yaml")["bridge"][wishes.target]["async_save_formats"])
    refuse_conflicts(wishes, chosen, formats)
    if met is None:
        met = hazards(chosen)
    async_save, findings = _async_choice(chosen, wishes, met, formats)
    limits = timeouts(chosen, met, facts, async_save=async_save, in_process=wishes.in_process)
    met = dataclasses.replace(met, hang_detection_s=_hang_s(wishes, limits))
    restart = "in-process" if wishes.in_process else ("in-job" if wishes.launcher != "srun" else "requeue")
    setup = Setup(
        restart=restart,  # type: ignore[arg-type]
        async_save=async_save,
        local=wishes.local_dir is not None,
        detector=wishes.detector != "none",
        evict_slow=wishes.stop_on_straggler,
    )
    spares = best_spares(chosen, setup, met) if wishes.spares is None else wishes.spares
    setup = dataclasses.replace(setup, spares=spares)
    persistent = persistent_interval(chosen, setup, met)
    found = Resiliency(
        chosen, wishes, met, setup, limits, persistent, outcome(chosen, setup, met), (), (), _restarts(met),
        tuple(findings),
    )  # fmt: skip
    values = (
        *_checkpoint(found), *_fault_tolerance(found), *_stragglers(found), *_signals(found), *_rerun(found),
        *_in_process(found), *_watchdog(found),
    )  # fmt: skip
    return dataclasses.replace(found, values=values, environment=tuple(_environment(found)))


def _hang_s(wishes: Wishes, limits: Timeouts) -> float:
    """Seconds until a hang is seen: by the section timeout, the hard timeout, or the NCCL watchdog."""
    if wishes.in_process:
        return limits.hard_s
    look = reliability_facts().seconds("crash_detection")
    return limits.step_s + look if wishes.uses_ft else limits.nccl_min * 60.0


def _restarts(met: Hazards) -> int:
    """Restarts to allow within one job of a day: the expected number and three standard deviations."""
    mean = DAY_S / met.mtbf_s
    return max(FEWEST_RESTARTS, math.ceil(mean + 3 * math.sqrt(mean)))


def _async_choice(chosen: Chosen, wishes: Wishes, met: Hazards, formats: tuple[str, ...]) -> tuple[bool, list[Finding]]:
    """Whether to save asynchronously, and what to know about it."""
    asked, form = wishes.async_save, wishes.ckpt_format or default_format(chosen)
    problem = host_memory_problem(chosen, met.cost)
    found = []
    if problem:
        severity = "stop" if asked else "info"
        found.append(Finding("async-save-host-memory", severity, problem, "--no-async-save"))  # type: ignore[arg-type]
    if form == "fsdp_dtensor" and form in formats:
        message = "documentation says torch_dist only, the code saves fsdp_dtensor asynchronously too"
        found.append(Finding("async-save-dtensor", "info", message, "watch the first save"))
    if asked is not None:
        return asked, found
    return form in formats and not problem and wishes.checkpoint_dir is not None, found


def _checkpoint(job: Resiliency) -> Iterator[Value]:
    wishes, cost = job.wishes, job.met.cost
    if wishes.checkpoint_dir is None:
        return
    form = wishes.ckpt_format or default_format(job.chosen)
    yield Value("checkpoint.save", wishes.checkpoint_dir, "an interval without a directory saves nothing")
    yield Value("checkpoint.load", wishes.checkpoint_dir, "a restart goes on where the last save ended")
    yield Value("checkpoint.save_interval", job.persistent.steps, job.persistent.reason)
    yield Value("checkpoint.ckpt_format", form, f"{size_words(cost)}; {job.met.storage.origin}")
    if job.setup.async_save:
        yield Value(
            "checkpoint.async_save", True,
            f"stops training for {cost.snapshot_s:.1f} s instead of {cost.write_s:.0f} s per save",
        )  # fmt: skip
        yield Value("checkpoint.use_persistent_ckpt_worker", True, "asynchronous saves need the persistent worker")
    else:
        why = "asked for" if wishes.async_save is False else f"{form} or host memory does not allow asynchronous saves"
        yield Value("checkpoint.async_save", False, why)
    yield Value("checkpoint.fully_parallel_save", True, "every data-parallel rank writes its share")
    yield Value("checkpoint.fully_parallel_load", True, "replicas read every shard once and exchange it")
    yield Value("checkpoint.ckpt_assume_constant_structure", True, "plans the save once, the model does not change")
    yield Value("checkpoint.most_recent_k", 3, "a save that was cut off leaves older ones to go back to")
    if wishes.local_dir is not None:
        yield from _local(job, wishes.local_dir)


def _local(job: Resiliency, folder: str) -> Iterator[Value]:
    cluster = job.chosen.cluster
    per_node = ranks_per_node(cluster.system, cluster.used_per_domain)
    nodes = nodes_of(job.chosen)
    yield Value("checkpoint.non_persistent_ckpt_type", "local", "without a type the directory alone writes nothing")
    yield Value("checkpoint.non_persistent_local_ckpt_dir", folder, "drive of the node")
    yield Value("checkpoint.non_persistent_save_interval", job.result.interval.steps, job.result.interval.reason)
    yield Value("checkpoint.non_persistent_local_ckpt_algo", "fully_parallel", "data-parallel ranks share the writing")
    if nodes > 1 and nodes % 2 == 0:
        yield Value("checkpoint.replication", True, "a lost node takes its drive with it: a second node holds a copy")
        yield Value("checkpoint.replication_jump", per_node, f"the copy lies {per_node} ranks away, on another node")
        yield Value("checkpoint.replication_factor", 2, "one copy")


def _fault_tolerance(job: Resiliency) -> Iterator[Value]:
    if not job.wishes.uses_ft:
        return
    limits = job.limits
    yield Value("ft.enable_ft_package", True, f"a hang is seen after {limits.step_s} s, not after the NCCL timeout")
    if job.setup.async_save:
        why = "the checkpointing timeout is never learnt from asynchronous saves: the launcher gets derived ones"
        yield Value("ft.calc_ft_timeouts", False, why)
    else:
        yield Value("ft.calc_ft_timeouts", True, "tightened from observed times and kept in ft_state.json")


def _stragglers(job: Resiliency) -> Iterator[Value]:
    wishes, step_s = job.wishes, job.chosen.step.step_s
    if wishes.detector == "legacy":
        yield Value("straggler.log_straggler", True, "asked for; measures only, never stops the job")
    if wishes.detector != "nvrx":
        return
    every = straggler_interval_s(step_s)
    yield Value("nvrx_straggler.enabled", True, "a step is as slow as its slowest rank")
    yield Value("nvrx_straggler.report_time_interval", every, f"{every / step_s:.0f} steps of {step_s:.3g} s a report")
    yield Value("nvrx_straggler.calc_relative_gpu_perf", True, "ranks against each other: a slow GPU")
    yield Value("nvrx_straggler.calc_individual_gpu_perf", True, "a rank against its past: a GPU that became slow")
    profiling = max(1, round(1.0 / step_s))
    yield Value("nvrx_straggler.profiling_interval", profiling, "about one profiled step a second at most")
    why = "asked for: the job ends so that a spare node can take over" if wishes.stop_on_straggler else (
        "reports only; ending the job does not by itself leave out the slow node"
    )  # fmt: skip
    yield Value("nvrx_straggler.stop_if_detected", wishes.stop_on_straggler, why)


def _signals(job: Resiliency) -> Iterator[Value]:
    if job.wishes.in_process or not job.wishes.preemption:
        why = "in-process restart" if job.wishes.in_process else "asked for"
        yield Value("train.exit_signal_handler", False, f"{why}: signals keep their plain meaning")
        return
    lead = job.limits.preempt_lead_s
    why = f"saves and ends when Slurm warns, {lead} s before the time limit (two steps, one save, Slurm's 60 s)"
    yield Value("train.exit_signal_handler", True, why)
    yield Value("train.exit_signal_handler_for_dataloader", False, "workers end with their rank")


def _rerun(job: Resiliency) -> Iterator[Value]:
    wishes, full = job.wishes, job.chosen.knobs.cuda_graph is CudaGraph.full_iteration
    why = "alpha state: NaN checks are used, the re-run workflow is not" if wishes.rerun == "disabled" else "asked for"
    yield Value("rerun_state_machine.rerun_mode", wishes.rerun, why)
    check = not full if wishes.nan_check is None else wishes.nan_check
    why = "a full-iteration CUDA graph cannot look at the loss" if full else "a NaN ends the job at the step it appears"
    yield Value("rerun_state_machine.check_for_nan_in_loss", check, why)
    yield Value("rerun_state_machine.check_for_spiky_loss", False, "spikes are normal early in training")


def _in_process(job: Resiliency) -> Iterator[Value]:
    if not job.wishes.in_process:
        return
    limits, cluster = job.limits, job.chosen.cluster
    per_node = ranks_per_node(cluster.system, cluster.used_per_domain)
    quiet = "longest quiet time of a healthy rank (two slow steps or a save)"
    yield Value("inprocess_restart.enabled", True, "asked for: the process survives, only the job restarts")
    yield Value("inprocess_restart.soft_timeout", limits.soft_s, quiet)
    yield Value("inprocess_restart.hard_timeout", limits.hard_s, "1.5 x soft: interrupting comes before killing")
    yield Value(
        "inprocess_restart.barrier_timeout", limits.barrier_s,
        "the package refuses a barrier timeout that is not above the hard one (Bridge's default is 120 s)",
    )  # fmt: skip
    yield Value("inprocess_restart.completion_timeout", limits.barrier_s, "as the barrier")
    yield Value("inprocess_restart.heartbeat_interval", HEARTBEAT_INTERVAL_S, "default")
    yield Value("inprocess_restart.heartbeat_timeout", limits.heartbeat_s, "twice the interval, below the barrier")
    yield Value("inprocess_restart.granularity", "node", f"a fault takes the {per_node} ranks of its node out")
    if job.setup.spares:
        why = f"{job.setup.spares} spare nodes wait in reserve"
        yield Value("inprocess_restart.active_world_size", cluster.gpus, why)


def _watchdog(job: Resiliency) -> Iterator[Value]:
    limits = job.limits
    longest = limits.hard_s if job.wishes.in_process else max(limits.step_s, limits.checkpointing_s)
    if job.wishes.in_process or job.wishes.uses_ft:
        why = f"NCCL's watchdog must not kill a process that recovery would still save: above {longest:.0f} s"
    else:
        why = "nothing else sees a hang; long enough for a save on rank 0"
    yield Value("dist.distributed_timeout_minutes", limits.nccl_min, why)


def _environment(job: Resiliency) -> Iterator[Value]:
    if job.wishes.in_process:
        yield Value("TORCH_CPP_LOG_LEVEL", "error", "teardown of a restart logs a page per rank otherwise")
        yield Value("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", "an abort must not raise again in the watchdog")
        yield Value("NCCL_NVLS_ENABLE", "0", "communicators with NVLS cannot be aborted")
