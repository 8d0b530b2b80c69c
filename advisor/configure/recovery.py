"""How a job comes back under a choice of resiliency settings, as the numbers that the goodput formula takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from advisor.configure.checkpoint import (
    CheckpointCost,
    SaveInterval,
    Storage,
    checkpoint_cost,
    default_storage,
    nodes_of,
    save_interval,
)
from advisor.configure.chosen import Chosen
from advisor.configure.facts import SECONDS_PER_HOUR, Rate, ReliabilityFacts, reliability_facts
from advisor.cost.goodput import Goodput, Interruption, Reliability, goodput

Restart = Literal["requeue", "in-job", "in-process"]
SPARES_TRIED = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Setup:
    """One choice of settings: how the job restarts, how it saves, whether slow ranks are looked for, spare nodes."""

    restart: Restart = "in-job"
    async_save: bool = True
    local: bool = False
    detector: bool = True
    evict_slow: bool = False
    spares: int = 0

    @property
    def words(self) -> str:
        """The choice in a few words."""
        saving = ("asynchronous" if self.async_save else "synchronous") + " saves"
        parts = [f"{self.restart} restart", saving]
        parts += ["local checkpoints"] if self.local else []
        parts += [] if self.detector else ["no straggler detector"]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Hazards:
    """What the job meets: rate of interruptions, storage, checkpoint, how long a hang goes unnoticed."""

    rate: Rate
    mtbf_s: float
    mtbf_reason: str
    storage: Storage
    cost: CheckpointCost
    hang_detection_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A setup with what it brings; `value` is productive time per GPU paid for, spare nodes included."""

    setup: Setup
    interval: SaveInterval
    job: Reliability
    goodput: Goodput
    value: float


def hazards(
    chosen: Chosen,
    *,
    mtbf_hours: float | None = None,
    rate: str | None = None,
    write_gbs: float | None = None,
    hang_detection_s: float | None = None,
) -> Hazards:
    """The hazards of a plan; what is not given comes from presets/reliability.yaml.

    `mtbf_hours` is between interruptions of the whole job; otherwise it is 1 / (failure rate of a GPU x GPUs).
    """
    facts = reliability_facts()
    found = facts.rate(rate)
    gpus = chosen.cluster.gpus
    if mtbf_hours is None:
        mtbf_s = 1.0 / (found.per_gpu_s * gpus)
        reason = f"1 / ({found.per_gpu_s * SECONDS_PER_HOUR:.3g} per GPU and hour x {gpus} GPUs); {found.source}"
    else:
        mtbf_s, reason = mtbf_hours * SECONDS_PER_HOUR, "given"
    storage = default_storage(facts, nodes_of(chosen), write_gbs)
    detection = facts.seconds("collective_timeout") if hang_detection_s is None else hang_detection_s
    return Hazards(found, mtbf_s, reason, storage, checkpoint_cost(chosen, storage), detection)


def restart_s(setup: Setup, gpus: int, cost: CheckpointCost, facts: ReliabilityFacts, *, node_lost: bool) -> float:
    """Seconds from a detected interruption to the first step at full speed."""
    load = cost.local_load_s if setup.local else cost.load_s
    again = facts.seconds("group_init_per_1000_ranks") * gpus / 1000 + load + facts.seconds("first_steps")
    if setup.restart == "in-process" and not node_lost:
        return facts.seconds("in_process_restart") + again
    again += facts.seconds("process_start") + facts.seconds("teardown")
    if setup.restart == "requeue":
        return again + facts.seconds("queue") + facts.seconds("container_start")
    if node_lost:
        return again + facts.seconds("node_swap")
    return again


def reliability(chosen: Chosen, setup: Setup, met: Hazards, interval: SaveInterval) -> Reliability:
    """The numbers of the goodput formula for `setup`.

    Crashes are seen at once, hangs after a timeout. What a local checkpoint does not survive (an outage of several
    nodes at once) goes back to the persistent one: half its interval is counted as recovery.
    """
    facts = reliability_facts()
    gpus, step_s, cost = chosen.cluster.gpus, chosen.step.step_s, met.cost
    crash, hang = facts.seconds("crash_detection"), met.hang_detection_s
    hangs, hardware = facts.share("hangs"), met.rate.hardware_share
    far = _far_fallback_s(chosen, setup, met) * facts.share("network") if setup.local else 0.0
    kinds = [
        Interruption(
            f"{seen_as}, {'node lost' if lost else 'node stays'}",
            share * (hardware if lost else 1 - hardware),
            seen + restart_s(setup, gpus, cost, facts, node_lost=lost) + (far if lost else 0.0),
            lost,
        )
        for seen_as, share, seen in (("crash", 1 - hangs, crash), ("hang", hangs, hang))
        for lost in (True, False)
    ]
    slow_per_s = facts.share("stragglers_per_interruption") / met.mtbf_s
    slow_s = facts.hour("straggler_reported" if setup.detector else "straggler_unseen")
    rate = 1.0 / met.mtbf_s
    if setup.detector and setup.evict_slow:
        slow_s = 2 * straggler_interval_s(step_s)
        rate += slow_per_s
        kinds = [dataclasses.replace(kind, share=kind.share / (rate * met.mtbf_s)) for kind in kinds]
        again = restart_s(setup, gpus, cost, facts, node_lost=True)
        kinds.append(Interruption("slow node taken out", slow_per_s / rate, again, True))
    return Reliability(
        mtbf_s=1.0 / rate,
        kinds=tuple(kind for kind in kinds if kind.share > 0),
        interval_s=interval.seconds,
        stall_s=save_stall_s(setup, cost),
        durable_s=save_durable_s(setup, cost),
        node_losses_per_s=rate * sum(kind.share for kind in kinds if kind.node_lost),
        repair_s=facts.hour("node_repair"),
        spares=setup.spares,
        slow_per_s=slow_per_s,
        slow_s=slow_s,
        slowdown=facts.share("straggler_slowdown"),
    )


def straggler_interval_s(step_s: float) -> float:
    """Seconds between straggler reports: Bridge's 300 s, more when that holds fewer than 20 steps."""
    return max(300.0, math.ceil(20 * step_s / 60) * 60.0)


def save_stall_s(setup: Setup, cost: CheckpointCost) -> float:
    """How long one save (the frequent kind) stops training."""
    if setup.local:
        return cost.snapshot_s + (0.0 if setup.async_save else cost.local_write_s)
    return cost.snapshot_s if setup.async_save else cost.write_s


def save_durable_s(setup: Setup, cost: CheckpointCost) -> float:
    """How long after the stall an asynchronous save (the frequent kind) is safe."""
    if not setup.async_save:
        return 0.0
    return cost.local_write_s if setup.local else cost.write_s


def interval_of(chosen: Chosen, setup: Setup, met: Hazards) -> SaveInterval:
    """How often to save under `setup`: the frequent kind of checkpoint."""
    stall, durable = save_stall_s(setup, met.cost), save_durable_s(setup, met.cost)
    return save_interval(met.mtbf_s, stall, chosen.step.step_s, durable)


def persistent_interval(chosen: Chosen, setup: Setup, met: Hazards) -> SaveInterval:
    """How often to save to shared storage beside local checkpoints: for the outages those do not survive."""
    if not setup.local:
        return interval_of(chosen, setup, met)
    rare = met.mtbf_s / (reliability_facts().share("network") * met.rate.hardware_share)
    there = dataclasses.replace(setup, local=False)
    return save_interval(rare, save_stall_s(there, met.cost), chosen.step.step_s, save_durable_s(there, met.cost))


def _far_fallback_s(chosen: Chosen, setup: Setup, met: Hazards) -> float:
    return persistent_interval(chosen, setup, met).seconds / 2 + met.cost.load_s


def outcome(chosen: Chosen, setup: Setup, met: Hazards) -> Outcome:
    """What `setup` brings with the interval that suits it."""
    interval = interval_of(chosen, setup, met)
    job = reliability(chosen, setup, met, interval)
    found = goodput(job)
    nodes = nodes_of(chosen)
    return Outcome(setup, interval, job, found, found.productive * nodes / (nodes + setup.spares))


def best_spares(chosen: Chosen, setup: Setup, met: Hazards) -> int:
    """Spare nodes that bring the most productive time per node paid for; they add up without a bound in `SPARES_TRIED`.

    A spare that saves less than it costs is not taken, so small jobs get none.
    """
    spares, best = 0, outcome(chosen, dataclasses.replace(setup, spares=0), met).value
    while True:
        value = outcome(chosen, dataclasses.replace(setup, spares=spares + 1), met).value
        if value <= best:
            return spares
        spares, best = spares + 1, value


def alternatives(*, with_local: bool) -> Iterator[Setup]:
    """Setups that are worth comparing, the plainest first."""
    yield Setup("requeue", async_save=False, detector=False)
    yield Setup("requeue", async_save=True, detector=False)
    yield Setup("in-job", async_save=False)
    yield Setup("in-job", async_save=True)
    if with_local:
        yield Setup("in-job", async_save=True, local=True)
    yield Setup("in-process", async_save=True, local=with_local)


def rank_setups(chosen: Chosen, met: Hazards, setups: Sequence[Setup]) -> tuple[Outcome, ...]:
    """Outcomes of `setups`, most productive time per node paid for first."""
    found = [outcome(chosen, setup, met) for setup in setups]
    return tuple(sorted(found, key=lambda one: (-one.value, one.setup.words, one.setup.spares)))


def spare_table(chosen: Chosen, setup: Setup, met: Hazards) -> tuple[Outcome, ...]:
    """Outcomes of `setup` over counts of spare nodes around the best one, in order of the count."""
    best = best_spares(chosen, setup, met)
    counts = sorted({*(count for count in SPARES_TRIED if count <= max(2, 2 * best)), best})
    return tuple(outcome(chosen, dataclasses.replace(setup, spares=count), met) for count in counts)
