"""Checkpoints and resiliency: what is accepted and then does nothing, or kills the job before it recovers."""

from __future__ import annotations

from advisor.rules.lint.form import ARG, CFG, RESILIENCY, SKILLS, SLURM, Hit, rule
from advisor.rules.lint.setup import Setup
from advisor.rules.lint.transformer import graph

SKILL = f"{SKILLS}-resiliency/SKILL.md"
PLUGINS = "MB:src/megatron/bridge/recipes/run_plugins.py"
NVRX = f"{CFG}: NVRxStragglerDetectionConfig.finalize"
DIST_FORMATS = ("torch_dist", "fsdp_dtensor")
RERUN = ("disabled", "validate_results", "report_determinism_stats", "report_stats")


def _async(c: Setup) -> bool:
    return c.on("checkpoint.async_save")


def _ft(c: Setup) -> bool:
    return c.on("ft.enable_ft_package") or c.fact("plugin.FaultTolerancePlugin") is not None


def _watchdog(c: Setup) -> Hit | None:
    minutes, hard = c.number("dist.distributed_timeout_minutes"), c.number("inprocess_restart.hard_timeout")
    after = c.number("dist.distributed_timeout_seconds_after_init")
    if not c.on("inprocess_restart.enabled"):
        return None
    hard = 90.0 if hard is None else hard
    watchdog = (
        after if after is not None else minutes * 60 if minutes is not None else c.fact("process_group_timeout_s")
    )
    if watchdog is None or watchdog > hard:
        return None
    return Hit(f"the NCCL watchdog fires after {watchdog:g} s, before in-process restart's hard_timeout of {hard:g} s",
               "dist.distributed_timeout_minutes above hard_timeout")  # fmt: skip


def _order(c: Setup, low: str, high: str, usual: tuple[float, float]) -> bool:
    first, second = c.number(f"inprocess_restart.{low}"), c.number(f"inprocess_restart.{high}")
    first, second = usual[0] if first is None else first, usual[1] if second is None else second
    return c.on("inprocess_restart.enabled") and first >= second


def _active(c: Setup) -> str | None:
    active = c.number("inprocess_restart.active_world_size")
    if not c.on("inprocess_restart.enabled") or active is None or not c.given("inprocess_restart.active_world_size"):
        return None
    if c.gpus and active > c.gpus:
        return f"active_world_size {active} is more than the {c.gpus} GPUs"
    node = c.gpus_per_node or 8
    if c.get("inprocess_restart.granularity") in (None, "node") and active % node:
        return f"active_world_size {active} is no multiple of {node} GPUs per node at node granularity"
    return None


def _nvrx(c: Setup) -> str | None:
    if not c.on("nvrx_straggler.enabled"):
        return None
    if c.off("nvrx_straggler.calc_relative_gpu_perf") and c.off("nvrx_straggler.calc_individual_gpu_perf"):
        return "neither relative nor individual GPU performance is calculated"
    interval = c.number("nvrx_straggler.report_time_interval")
    if interval is not None and interval <= 0:
        return f"report_time_interval {interval} must be positive"
    for key in ("gpu_relative_perf_threshold", "gpu_individual_perf_threshold"):
        value = c.number(f"nvrx_straggler.{key}")
        if value is not None and not 0 <= value <= 1:
            return f"{key} {value} is outside 0 to 1"
    return None


def _local(c: Setup) -> str | None:
    local = c.get("checkpoint.non_persistent_local_ckpt_dir") is not None
    kind, interval = c.get("checkpoint.non_persistent_ckpt_type"), c.number("checkpoint.non_persistent_save_interval")
    if not (local and c.given("checkpoint.non_persistent_local_ckpt_dir")):
        return None
    if kind != "local":
        return f"a local checkpoint directory with non_persistent_ckpt_type {kind}: nothing is written there"
    return "local checkpoints without non_persistent_save_interval: none is written" if not interval else None


ASYNC = (
    rule("async-save-needs-torch-dist", "stop", "checkpoint", "bridge", f"{CFG} (24); {RESILIENCY}",
         lambda c: _async(c) and c.isnt("checkpoint.ckpt_format", *DIST_FORMATS, None),
         "async_save with checkpoint format {checkpoint.ckpt_format}", "checkpoint.ckpt_format=torch_dist"),
    rule("async-save-ignored", "silent", "checkpoint", "megatron-lm", f"{RESILIENCY}; {ARG}",
         lambda c: _async(c) and c.isnt("checkpoint.ckpt_format", *DIST_FORMATS, "torch_dcp"),
         "--async-save with --ckpt-format {checkpoint.ckpt_format}: accepted, the save stays synchronous or fails",
         "--ckpt-format torch_dist"),
    rule("async-save-needs-worker", "stop", "checkpoint", "bridge", f"{CFG} (24)",
         lambda c: _async(c) and c.stated("checkpoint.use_persistent_ckpt_worker") is False,
         "async_save without the persistent worker", "checkpoint.use_persistent_ckpt_worker=true"),
    rule("async-save-needs-worker-flag", "silent", "checkpoint", "megatron-lm", ARG,
         lambda c: _async(c) and c.get("checkpoint.ckpt_format") in (*DIST_FORMATS, "torch_dcp")
         and c.off("checkpoint.use_persistent_ckpt_worker"),
         "--async-save without --use-persistent-ckpt-worker is switched off", "--use-persistent-ckpt-worker",
         "megatron-core >=0.17"),
    rule("async-save-needs-save", "stop", "checkpoint", "bridge", f"{CFG} (24)",
         lambda c: _async(c) and c.known("checkpoint.save") and c.get("checkpoint.save") is None
         and (c.given("checkpoint.save") or not c.fact("recipe")),
         "async_save without checkpoint.save", "checkpoint.save=PATH"),
    rule("async-save-dtensor-refused", "stop", "checkpoint", "bridge", f"{CFG} (24; 0.3.1 takes torch_dist alone)",
         lambda c: _async(c) and c.get("checkpoint.ckpt_format") == "fsdp_dtensor" and "bridge" in c.releases,
         "async_save with fsdp_dtensor: this Bridge takes torch_dist only", "async_save=false, or Bridge 0.6",
         versions="bridge <0.6"),
    rule("async-save-dtensor-doubtful", "info", "checkpoint", "bridge", f"{CFG}; MB:docs/training/checkpointing.md",
         lambda c: _async(c) and c.get("checkpoint.ckpt_format") == "fsdp_dtensor",
         "async_save with fsdp_dtensor: the code takes it, the documents say torch_dist only", "watch the first save"),
    rule("async-save-with-hf-export", "info", "checkpoint", "bridge", CFG,
         lambda c: _async(c) and c.on("checkpoint.also_save_hf_checkpoint"),
         "also_save_hf_checkpoint is synchronous, async_save does not cover it", "export afterwards"),
)  # fmt: skip

CHECKPOINT = (
    *ASYNC,
    rule("save-interval-without-save", "silent", "checkpoint", "mcore", f"{CFG}: CheckpointConfig",
         lambda c: c.given("checkpoint.save_interval") and c.n("checkpoint.save_interval") != 0
         and c.known("checkpoint.save") and c.get("checkpoint.save") is None,
         "save_interval {checkpoint.save_interval} without a save path: nothing is written", "checkpoint.save=PATH"),
    rule("local-checkpoints-written", "silent", "checkpoint", "bridge megatron-lm", f"{CFG}; {RESILIENCY} (ck-01)",
        _local,
         "local checkpoints need a directory, type local and an interval", "set all three"),
    rule("local-type-needs-dir", "stop", "checkpoint", "bridge megatron-lm", ARG,
         lambda c: c.get("checkpoint.non_persistent_ckpt_type") == "local"
         and c.known("checkpoint.non_persistent_local_ckpt_dir")
         and c.get("checkpoint.non_persistent_local_ckpt_dir") is None,
         "non_persistent_ckpt_type local without a directory", "non_persistent_local_ckpt_dir=PATH"),
    rule("non-persistent-type-known", "stop", "checkpoint", "bridge megatron-lm", f"{CFG}; {ARG}",
         lambda c: c.get("checkpoint.non_persistent_ckpt_type") not in (None, "global", "local"),
         "non_persistent_ckpt_type {checkpoint.non_persistent_ckpt_type} fails at the first save", "local or global"),
    rule("replication-needs-local", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.on("checkpoint.replication") and (c.get("checkpoint.non_persistent_ckpt_type") != "local"
                                                       or c.get("checkpoint.replication_jump") is None),
         "--replication needs --replication-jump and --non-persistent-ckpt-type local", "set both"),
    rule("replication-ignored", "silent", "checkpoint", "bridge", f"{CFG}: CheckpointConfig",
         lambda c: c.on("checkpoint.replication") and c.isnt("checkpoint.non_persistent_ckpt_type", "local"),
         "replication works for local checkpoints only", "non_persistent_ckpt_type=local"),
    rule("replication-jump-ignored", "silent", "checkpoint", "megatron-lm", ARG,
         lambda c: c.get("checkpoint.replication_jump") is not None and c.off("checkpoint.replication"),
         "--replication-jump without --replication is ignored", "--replication"),
    rule("reshardable-once", "stop", "checkpoint", "bridge", f"{CFG}: CheckpointConfig",
         lambda c: c.on("checkpoint.dist_ckpt_optim_fully_reshardable")
         and c.on("checkpoint.distrib_optim_fully_reshardable_mem_efficient"),
         "Bridge refuses dist_ckpt_optim_fully_reshardable with distrib_optim_fully_reshardable_mem_efficient",
         "drop one of them"),
    rule("reshardable-needs-gloo", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.on("checkpoint.dist_ckpt_optim_fully_reshardable")
         and c.on("checkpoint.distrib_optim_fully_reshardable_mem_efficient")
         and c.on("ddp.use_distributed_optimizer") and c.get("dist.use_gloo_process_groups") is False,
         "--distrib-optim-fully-reshardable-mem-efficient without Gloo groups", "drop --disable-gloo-process-groups"),
    rule("main-params-without-optimizer", "stop", "checkpoint", "bridge megatron-lm", f"{CFG} (34); {ARG}",
         lambda c: c.on("checkpoint.load_main_params_from_ckpt") and (
             c.get("checkpoint.load_optim") is True if c.framework == "bridge" else c.off("checkpoint.no_load_optim")),
         "load_main_params_from_ckpt while the optimizer state is loaded too", "load_optim=false (--no-load-optim)"),
    rule("ckpt-step-needs-load", "stop", "checkpoint", "bridge", f"{CFG}: CheckpointConfig",
         lambda c: c.get("checkpoint.ckpt_step") is not None and c.known("checkpoint.load")
         and c.get("checkpoint.load") is None,
         "ckpt_step {checkpoint.ckpt_step} without checkpoint.load", "checkpoint.load=PATH"),
    rule("hf-export-format", "stop", "checkpoint", "bridge", f"{CFG}: CheckpointConfig",
         lambda c: c.on("checkpoint.also_save_hf_checkpoint") and (
             c.get("checkpoint.ckpt_format") == "fsdp_dtensor"
             or c.get("checkpoint.non_persistent_ckpt_type") == "local"),
         "also_save_hf_checkpoint with fsdp_dtensor or local checkpoints", "export afterwards", "bridge >=0.6"),
    rule("fresh-start-instead-of-resume", "info", "checkpoint", "bridge megatron-lm", f"{SKILLS} (ck-02)",
         lambda c: c.get("checkpoint.load") is not None and c.given("checkpoint.load")
         and c.known("checkpoint.exit_on_missing_checkpoint") and c.off("checkpoint.exit_on_missing_checkpoint"),
         "a wrong load path starts afresh without an error", "exit_on_missing_checkpoint=true"),
    rule("finetune-xor-override", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.on("checkpoint.finetune") and c.get("checkpoint.override_ckpt_iteration") is not None,
         "--finetune with --override-ckpt-iteration", "keep one"),
    rule("checkpoint-format-known", "stop", "checkpoint", "bridge", f"{CFG}: CheckpointConfig",
         lambda c: c.isnt("checkpoint.ckpt_format", "torch", "torch_dist", "torch_dcp", "fsdp_dtensor", "zarr", None),
         "checkpoint format {checkpoint.ckpt_format} is unknown", "ckpt_format torch_dist"),
    rule("constant-structure-vs-rerun", "silent", "checkpoint", "bridge megatron-lm",
         "https://github.com/NVIDIA/Megatron-LM/issues/4378",
         lambda c: c.on("checkpoint.ckpt_assume_constant_structure")
         and c.stated("rerun_state_machine.rerun_mode") in ("validate_results", "report_stats",
         "report_determinism_stats"),
         "ckpt_assume_constant_structure with rerun mode {rerun_state_machine.rerun_mode}: the checkpoint written "
         "after "
         "a fault cannot be loaded", "drop one of them"),
)  # fmt: skip

FAULTS = (
    rule("ft-needs-ft-launcher", "silent", "resiliency", "bridge megatron-lm", f"{RESILIENCY} (pitfall 1)",
         lambda c: c.on("ft.enable_ft_package") and c.fact("launcher") in ("torchrun", "srun", "python")
         and c.fact("training") is not None,
         "fault tolerance is enabled, the job is started with {fact.launcher}: it stays off",
         "ft_launcher (with GROUP_RANK=0 outside Slurm)"),
    rule("ft-needs-save", "stop", "resiliency", "bridge", f"{CFG}; MB:src/megatron/bridge/training/fault_tolerance.py",
         lambda c: c.on("ft.enable_ft_package") and c.known("checkpoint.save") and c.get("checkpoint.save") is None
         and (c.given("checkpoint.save") or not c.fact("recipe")),
         "fault tolerance without checkpoint.save", "checkpoint.save=PATH"),
    rule("ft-timeouts-with-async", "silent", "resiliency", "bridge megatron-lm", f"{SKILL} (ft-03)",
         lambda c: c.on("ft.calc_ft_timeouts") and _async(c),
         "calc_ft_timeouts with async_save: the checkpointing timeout is never learnt", "set the timeout by hand"),
    rule("ft-timeouts-without-package", "silent", "resiliency", "bridge megatron-lm", f"{CFG}: FaultToleranceConfig",
         lambda c: (c.on("ft.calc_ft_timeouts") or c.on("ft.simulate_fault")) and c.known("ft.enable_ft_package")
         and c.off("ft.enable_ft_package"),
         "fault-tolerance settings without enable_ft_package have no effect", "ft.enable_ft_package=true"),
    rule("ft-simulates-faults", "info", "resiliency", "bridge", f"{CFG}: FaultToleranceConfig",
         lambda c: c.on("ft.simulate_fault"), "simulate_fault kills or hangs a rank on purpose", "drop it"),
    rule("ft-fault-kind", "stop", "resiliency", "bridge", f"{CFG}: FaultToleranceConfig",
         lambda c: c.isnt("ft.simulated_fault_type", "rank_hung", "rank_killed", "random", None),
         "simulated_fault_type {ft.simulated_fault_type} is no kind of fault", "rank_hung, rank_killed or random"),
    rule("ft-without-nsys", "stop", "resiliency", "bridge", f"{PLUGINS} (ft-08)",
         lambda c: _ft(c) and (c.on("profiling.use_nsys_profiler") or c.fact("plugin.NsysPlugin") is not None
                               or c.fact("nsys") is not None),
         "fault tolerance together with nsys: the profile is empty or the job restarts", "one of them"),
    rule("ft-group-rank", "info", "resiliency", "bridge megatron-lm", RESILIENCY,
         lambda c: c.fact("launcher") == "ft_launcher" and c.fact("sbatch") is None and c.unset("GROUP_RANK"),
         "ft_launcher outside Slurm needs GROUP_RANK=0", "export GROUP_RANK=0"),
    rule("two-straggler-detectors", "silent", "resiliency", "bridge", f"{RESILIENCY} (pitfall 4)",
         lambda c: c.on("nvrx_straggler.enabled") and c.on("straggler.log_straggler"),
         "both straggler detectors run", "nvrx_straggler only"),
    rule("nvrx-settings-valid", "stop", "resiliency", "bridge", NVRX, _nvrx, "NVRx straggler settings are out of range",
         "thresholds 0 to 1, interval above 0, one calc_* on"),
    rule("stragglers-logged-only", "info", "resiliency", "bridge", f"{RESILIENCY} (pitfall 5)",
         lambda c: c.on("nvrx_straggler.enabled") and c.off("nvrx_straggler.stop_if_detected"),
         "stragglers are logged, training goes on", "nvrx_straggler.stop_if_detected=true where it shall end"),
    rule("nvrx-not-enabled", "silent", "resiliency", "bridge", f"{CFG}: NVRxStragglerDetectionConfig",
         lambda c: c.has("nvrx_straggler") and c.off("nvrx_straggler.enabled") and any(
             c.given(f"nvrx_straggler.{key}") for key in ("stop_if_detected", "gpu_relative_perf_threshold",
                                                          "report_time_interval", "gpu_individual_perf_threshold")),
         "NVRx straggler settings with enabled false have no effect", "nvrx_straggler.enabled=true"),
    rule("watchdog-above-hard-timeout", "stop", "resiliency", "bridge megatron-lm", f"{RESILIENCY} (pitfall 6)",
        _watchdog,
         "the NCCL watchdog must fire after hard_timeout", "a longer distributed timeout"),
    rule("soft-below-hard-timeout", "silent", "resiliency", "bridge megatron-lm", "NVRx in-process restart (our check)",
         lambda c: _order(c, "soft_timeout", "hard_timeout", (60.0, 90.0)),
         "soft_timeout {inprocess_restart.soft_timeout} is not below hard_timeout {inprocess_restart.hard_timeout}",
         "soft < hard"),
    rule("heartbeat-below-timeout", "silent", "resiliency", "bridge megatron-lm", "NVRx in-process restart (our check)",
         lambda c: _order(c, "heartbeat_interval", "heartbeat_timeout", (30.0, 60.0)),
         "heartbeat_interval {inprocess_restart.heartbeat_interval} is not below heartbeat_timeout "
         "{inprocess_restart.heartbeat_timeout}", "interval < timeout"),
    rule("active-world-size", "stop", "resiliency", "bridge megatron-lm", "NVRx in-process restart (our check)",
        _active,
         "active_world_size does not fit", "whole nodes, at most the world"),
    rule("restart-settings-unused", "silent", "resiliency", "bridge",
         "MB:src/megatron/bridge/training/inprocess_restart.py",
         lambda c: c.on("inprocess_restart.enabled") and (
             c.stated("inprocess_restart.max_iterations") is not None
             or c.given("inprocess_restart.progress_watchdog_interval")),
         "max_iterations and progress_watchdog_interval are not passed on to the wrapper", "drop them"),
    rule("restart-not-enabled", "silent", "resiliency", "bridge", f"{CFG}: InProcessRestartConfig",
         lambda c: c.has("inprocess_restart") and c.off("inprocess_restart.enabled") and any(
             c.given(f"inprocess_restart.{key}") for key in ("soft_timeout", "hard_timeout", "granularity",
                                                             "active_world_size", "max_rank_faults")),
         "in-process restart settings with enabled false have no effect", "inprocess_restart.enabled=true"),
    rule("restart-without-nemo-run", "stop", "resiliency", "bridge", f"{RESILIENCY} (pitfall 3)",
         lambda c: c.on("inprocess_restart.enabled") and (
             c.fact("nemo_run") is not None or c.fact("plugin.PreemptionPlugin") is not None),
         "in-process restart with NeMo-Run or the preemption plugin", "plain srun --kill-on-bad-exit=0"),
    rule("restart-kill-on-bad-exit", "silent", "resiliency", "bridge megatron-lm", RESILIENCY,
         lambda c: c.on("inprocess_restart.enabled") and c.fact("under_srun") is not None
         and c.fact("kill_on_bad_exit") != "0",
         "in-process restart under srun without --kill-on-bad-exit=0: one dead rank ends the step",
         "srun --kill-on-bad-exit=0"),
    rule("restart-torch-version", "stop", "resiliency", "bridge megatron-lm", "MB:docs/training/resiliency.md",
         lambda c: c.on("inprocess_restart.enabled") and (c.older("torch", 2, 5, 1) or c.older("nccl", 2, 26, 2)),
         "in-process restart needs torch >= 2.5.1 and NCCL >= 2.26.2", "update torch and NCCL"),
    rule("rerun-mode-known", "stop", "resiliency", "bridge megatron-lm", f"{CFG}: RerunStateMachineConfig; {ARG}",
         lambda c: c.isnt("rerun_state_machine.rerun_mode", *RERUN, None)
         or (c.framework == "bridge" and c.get("rerun_state_machine.rerun_mode") == "report_stats"),
         "rerun mode {rerun_state_machine.rerun_mode} is no mode of this framework",
         "disabled, validate_results or report_determinism_stats "
         "(Megatron-LM: report_stats)"),
    rule("rerun-is-alpha", "info", "resiliency", "bridge", f"{RESILIENCY} (pitfall 7)",
         lambda c: c.get("rerun_state_machine.rerun_mode") == "validate_results",
         "the rerun state machine is alpha: exit codes 16 and 17 need somebody who reads them",
         "check_for_nan_in_loss alone"),
    rule("preemption-without-handler", "silent", "resiliency", "bridge", PLUGINS,
         lambda c: c.fact("plugin.PreemptionPlugin") is not None
         and c.get("plugin.PreemptionPlugin.enable_exit_handler") is False,
         "PreemptionPlugin without its exit handler: Slurm still sends the signal, the job dies without a save",
         "enable_exit_handler=True"),
    rule("exit-handler-needs-save", "silent", "resiliency", "bridge megatron-lm", RESILIENCY,
         lambda c: (c.on("train.exit_signal_handler") or c.fact("plugin.PreemptionPlugin") is not None)
         and c.known("checkpoint.save") and c.get("checkpoint.save") is None
         and (c.given("checkpoint.save") or not c.fact("recipe")),
         "a signal handler without checkpoint.save exits without saving", "checkpoint.save=PATH"),
    rule("perf-env-plugin-gone", "stop", "resiliency", "bridge", f"{PLUGINS} (gone since 0.6)",
         lambda c: c.fact("plugin.PerfEnvPlugin") is not None and "bridge" in c.releases,
         "PerfEnvPlugin is gone from Bridge 0.6", "env_vars of the recipe, and export in the script", "bridge >=0.6"),
    rule("perf-env-plugin-old", "info", "resiliency", "bridge", f"{PLUGINS} (gone since 0.6)",
         lambda c: c.fact("plugin.PerfEnvPlugin") is not None, "PerfEnvPlugin exists up to Bridge 0.5 only",
         "env_vars of the recipe, and export in the script"),
    rule("plugin-needs-script", "stop", "resiliency", "bridge", f"{PLUGINS} (NotImplementedError)",
         lambda c: c.fact("run.Partial") is not None and any(
             c.fact(f"plugin.{name}") is not None for name in (
                 "PreemptionPlugin", "FaultTolerancePlugin", "NsysPlugin", "PyTorchProfilerPlugin")),
         "the plugins take run.Script only, here is run.Partial", "make the task a run.Script"),
    rule("two-profiler-plugins", "stop", "resiliency", "bridge", PLUGINS,
         lambda c: c.fact("plugin.NsysPlugin") is not None and c.fact("plugin.PyTorchProfilerPlugin") is not None,
         "nsys and PyTorch profiler plugins together", "keep one"),
    rule("graph-and-rerun", "info", "resiliency", "bridge", f"{CFG} (21)",
         lambda c: graph(c) == "full_iteration" and c.on("rerun_state_machine.check_for_spiky_loss"),
         "a graph of the full iteration leaves no place to check losses", "drop one"),
    rule("old-experiments-resume", "info", "checkpoint", "bridge", f"{SLURM} (4; ck-03)",
         lambda c: c.fact("sbatch") is not None and c.fact("training") is not None and not c.fact("clears_experiments")
         and c.framework == "bridge" and c.get("checkpoint.save") is None and c.get("checkpoint.load") is None,
         "an old nemo_experiments directory is resumed without asking", "rm -rf nemo_experiments, or name the run"),
)  # fmt: skip

RESILIENCE = (*CHECKPOINT, *FAULTS)
