"""Timeouts of a job: long enough for its slowest healthy moment, in the order that recovery needs.

progress of a step < soft < hard < barrier (nvidia-resiliency-ext refuses anything else), and
hard, sections of fault tolerance < NCCL watchdog, which would kill the process before anybody could recover it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.configure.chosen import Chosen
from advisor.configure.facts import ReliabilityFacts
from advisor.configure.recovery import Hazards

# nvidia-resiliency-ext multiplies observed times by this to get timeouts (FaultToleranceConfig.safety_factor).
SAFETY = 5.0
LEAST_STEP_S, LEAST_OUTSIDE_S, LEAST_SETUP_S, LEAST_CHECKPOINT_S = 60, 300, 600, 300
NCCL_DEFAULT_MIN = 10
LEAST_SOFT_S = 60.0
HEARTBEAT_INTERVAL_S = 30.0
SLURM_GRACE_S = 60


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, but for `nccl_min` in minutes.

    `setup_s`, `step_s`, `checkpointing_s` and `outside_s` are the sections of fault tolerance; `soft_s`, `hard_s`,
    `barrier_s` and `heartbeat_s` those of in-process restart; `preempt_lead_s` is how long before the time limit the
    signal comes.
    """

    setup_s: int
    step_s: int
    checkpointing_s: int
    outside_s: int
    soft_s: float
    hard_s: float
    barrier_s: float
    heartbeat_s: float
    nccl_min: int
    preempt_lead_s: int

    @property
    def sections(self) -> str:
        """Argument of --ft-rank_section_timeouts."""
        return f"setup:{self.setup_s},step:{self.step_s},checkpointing:{self.checkpointing_s}"


def _up(seconds: float, unit: int = 10) -> int:
    return math.ceil(seconds / unit) * unit


def step_high_s(chosen: Chosen) -> float:
    """Upper end of the interval of the predicted step."""
    return max(chosen.step.high_s, chosen.step.step_s)


def timeouts(chosen: Chosen, met: Hazards, facts: ReliabilityFacts, *, async_save: bool, in_process: bool) -> Timeouts:
    """Timeouts from the predicted step (upper end of its interval) and the predicted checkpoint."""
    slow, cost = step_high_s(chosen), met.cost
    start = facts.seconds("process_start") + facts.seconds("group_init_per_1000_ranks") * chosen.cluster.gpus / 1000
    save = cost.snapshot_s + cost.write_s
    step = max(LEAST_STEP_S, _up(SAFETY * slow))
    outside = max(LEAST_OUTSIDE_S, _up(2 * (facts.seconds("first_steps") + slow)))
    setup = max(LEAST_SETUP_S, _up(3 * (start + cost.load_s), 60))
    checkpointing = max(LEAST_CHECKPOINT_S, _up(3 * save))
    silent = max(2 * slow, 2 * cost.snapshot_s if async_save else 2 * save)
    soft = max(LEAST_SOFT_S, float(_up(silent)))
    hard = float(_up(1.5 * soft))
    barrier = float(_up(hard + LEAST_SOFT_S / 2))
    longest = hard if in_process else max(step, checkpointing, outside)
    return Timeouts(
        setup_s=setup,
        step_s=step,
        checkpointing_s=checkpointing,
        outside_s=outside,
        soft_s=soft,
        hard_s=hard,
        barrier_s=barrier,
        heartbeat_s=2 * HEARTBEAT_INTERVAL_S,
        nccl_min=max(NCCL_DEFAULT_MIN, math.floor(longest / 60) + 2),
        preempt_lead_s=max(2 * SLURM_GRACE_S, _up(SLURM_GRACE_S + 2 * slow + save, 60)),
    )
