"""A job over weeks, event by event: nodes fail one by one, spares step in, work is saved, lost and done again.

It shares nothing with the closed form of `advisor.cost.goodput` but the input, so the two can judge each other: every
node has its own clock (exponential, or Weibull for ageing and infant mortality), repairs and recoveries vary, snapshots
wait for the write before them, and interruptions hit recoveries too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from advisor.cost.goodput import Goodput, Interruption, Reliability

SECONDS_PER_DAY = 86_400.0
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Variation:
    """How life differs from the averages.

    `shape` of the Weibull clocks of nodes (1 = exponential, below 1 = infant mortality), `recovery_spread` uniform
    around the mean recovery (0.5 = 50 % either way), `fixed_repair` instead of exponential repairs.
    """

    shape: float = 1.0
    recovery_spread: float = 0.5
    fixed_repair: bool = False


@dataclass(frozen=True, slots=True)
class Simulated:
    """Mean shares of the time over replicas, standard error of the productive share, interruptions per replica."""

    goodput: Goodput
    error: float
    interruptions: float
    days: float
    replicas: int


def simulate(
    job: Reliability,
    *,
    nodes: int,
    days: float = 30.0,
    replicas: int = 8,
    seed: int = 0,
    variation: Variation | None = None,
) -> Simulated:
    """Play `replicas` independent periods of `days` of a job on `nodes` nodes; the same seed gives the same numbers."""
    streams = np.random.default_rng(seed).spawn(replicas)
    played = [Period(job, nodes, days * SECONDS_PER_DAY, rng, variation or Variation()).play() for rng in streams]
    shares = np.array([[one.productive, one.lost, one.recovery, one.stall, one.slow, one.wait] for one in played])
    shares /= days * SECONDS_PER_DAY
    error = float(shares[:, 0].std(ddof=1) / math.sqrt(replicas)) if replicas > 1 else NEVER
    interruptions = float(np.mean([one.interruptions for one in played]))
    return Simulated(Goodput(*map(float, shares.mean(axis=0))), error, interruptions, days, replicas)


@dataclass(slots=True)
class Tally:
    """Seconds of a period by what they went to."""

    productive: float = 0.0
    lost: float = 0.0
    recovery: float = 0.0
    stall: float = 0.0
    slow: float = 0.0
    wait: float = 0.0
    interruptions: int = 0


@dataclass(slots=True)
class Period:
    """One replica: the clock jumps to the nearest event, time goes to the account of the mode it was spent in.

    Modes are work, stall (a snapshot, or waiting for the write before it), recovery, and wait (too few nodes).
    """

    job: Reliability
    nodes: int
    horizon_s: float
    rng: np.random.Generator
    variation: Variation
    now: float = 0.0
    mode: str = "work"
    mode_end: float = NEVER
    todo: float = 0.0
    progress: float = 0.0
    safe: float = 0.0
    writing: float | None = None
    safe_at: float = NEVER
    slow_until: float = -1.0
    slow_at: float = NEVER
    soft_at: float = NEVER
    repairs: list[float] = field(default_factory=list)
    node_at: np.ndarray = field(default_factory=lambda: np.empty(0))
    tally: Tally = field(default_factory=Tally)

    def play(self) -> Tally:
        """Run to the horizon; what is done by then counts as kept."""
        self.node_at = self._node_lives(self.nodes)
        self.soft_at = self._after(1.0 / self.job.mtbf_s - self.job.node_losses_per_s)
        self.slow_at = self._after(self.job.slow_per_s)
        self._work()
        while self.now < self.horizon_s:
            self._advance()
        self.tally.productive = self.progress
        return self.tally

    def _after(self, rate_per_s: float) -> float:
        """Time of the next event of a Poisson process; never for a rate of (almost) nothing."""
        return self.now + self.rng.exponential(1.0 / rate_per_s) if rate_per_s > 1e-15 else NEVER

    def _node_lives(self, count: int) -> np.ndarray:
        """When `count` fresh nodes will fail: Weibull with the mean that the job's rate of losses asks for."""
        if self.job.node_losses_per_s <= 0:
            return np.full(count, NEVER)
        shape = self.variation.shape
        mean = self.nodes / self.job.node_losses_per_s
        return self.now + self.rng.weibull(shape, count) * mean / math.gamma(1.0 + 1.0 / shape)

    def _speed(self) -> float:
        return 1.0 - self.job.slowdown if self.slow_until > self.now else 1.0

    def _work(self) -> None:
        self.mode, self.todo = "work", self.job.interval_s
        self.mode_end = self.now + self.todo / self._speed()

    def _advance(self) -> None:
        """To the nearest event; ties go to the first in this order."""
        broken = float(self.node_at.min()) if self.mode != "wait" else NEVER
        soft = self.soft_at if self.mode != "wait" else NEVER
        events = (
            (broken, self._lose_node),
            (soft, self._lose_process),
            (min(self.repairs, default=NEVER), self._repaired),
            (self.safe_at, self._saved),
            (self.slow_until if self.slow_until > self.now else NEVER, self._speed_up),
            (self.slow_at if self.mode == "work" and self.slow_until <= self.now else NEVER, self._slow_down),
            (self.mode_end, self._mode_over),
            (self.horizon_s, lambda: None),
        )
        at, happen = min(events, key=lambda event: event[0])
        self._spend(max(at - self.now, 0.0))
        self.now = max(at, self.now)
        happen()

    def _spend(self, seconds: float) -> None:
        if self.mode == "work":
            done = seconds * self._speed()
            self.progress += done
            self.todo -= done
            self.tally.slow += seconds - done
        elif self.mode == "stall":
            self.tally.stall += seconds
        elif self.mode == "recovery":
            self.tally.recovery += seconds
        else:
            self.tally.wait += seconds
            self.node_at += seconds
            self.soft_at += seconds
        if self.mode != "work":
            self.slow_at += seconds

    def _speed_up(self) -> None:
        self.slow_until = -1.0
        self.slow_at = self._after(self.job.slow_per_s)
        if self.mode == "work":
            self.mode_end = self.now + self.todo

    def _slow_down(self) -> None:
        self.slow_until = self.now + self.job.slow_s
        self.mode_end = self.now + self.todo / self._speed()

    def _mode_over(self) -> None:
        if self.mode == "work":
            self.mode = "stall"
            free = self.safe_at if self.writing is not None else self.now
            self.mode_end = max(self.now, free) + self.job.stall_s
        elif self.mode == "stall":
            self.writing, self.safe_at = self.progress, self.now + self.job.durable_s
            self._work()
        else:
            self._work()

    def _saved(self) -> None:
        if self.writing is not None:
            self.safe = self.writing
        self.writing, self.safe_at = None, NEVER

    def _repaired(self) -> None:
        self.repairs.remove(min(self.repairs))
        if self.mode == "wait" and len(self.repairs) <= self.job.spares:
            self.mode = "recovery"
            self.mode_end = self.now + self._recovery_s(node_lost=True)

    def _lose_node(self) -> None:
        self.node_at[int(self.node_at.argmin())] = self._node_lives(1)[0]
        if self.job.repair_s > 0:
            fixed = self.variation.fixed_repair
            away = self.job.repair_s if fixed else self.rng.exponential(self.job.repair_s)
            self.repairs.append(self.now + away)
        self._interrupt(node_lost=True)

    def _lose_process(self) -> None:
        self.soft_at = self._after(1.0 / self.job.mtbf_s - self.job.node_losses_per_s)
        self._interrupt(node_lost=False)

    def _interrupt(self, *, node_lost: bool) -> None:
        self.tally.interruptions += 1
        self.tally.lost += self.progress - self.safe
        self.progress = self.safe
        self.writing, self.safe_at = None, NEVER
        if len(self.repairs) > self.job.spares:
            self.mode, self.mode_end = "wait", NEVER
        else:
            self.mode = "recovery"
            self.mode_end = self.now + self._recovery_s(node_lost=node_lost)

    def _recovery_s(self, *, node_lost: bool) -> float:
        """A recovery of one of the kinds that take (or do not take) a node, by their shares."""
        kinds: list[Interruption] = [kind for kind in self.job.kinds if kind.node_lost == node_lost]
        kinds = kinds or list(self.job.kinds)
        shares = np.array([kind.share for kind in kinds])
        kind = kinds[int(self.rng.choice(len(kinds), p=shares / shares.sum()))]
        spread = self.variation.recovery_spread
        return kind.recovery_s * float(self.rng.uniform(1.0 - spread, 1.0 + spread))
