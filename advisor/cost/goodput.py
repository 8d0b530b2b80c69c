"""Expected share of the time in which a job makes progress that is kept: closed form, from failures to spare nodes.

Failures of a job of many parts come as a Poisson process of rate 1/M (M = mean time between interruptions). A job works
for `interval_s` (tau), stops for `stall_s` (C) to snapshot, and goes on; the snapshot is safe `durable_s` (w) later,
which is 0 for a synchronous save. An interruption of kind i, of share p_i, costs R_i until the job works again.

Between two interruptions the job runs for U ~ Exp(1/M) and keeps tau for every snapshot that is safe by then:
    E[kept] = tau * sum over k >= 1 of P(U >= k (tau + C) + w) = tau e^(-w/M) / (e^((tau+C)/M) - 1).
Interruptions during a recovery start another one; with s = sum of p_i e^(-R_i/M) the mean length of a cycle is M / s.
    kept share = tau s e^(-w/M) / (M (e^((tau+C)/M) - 1))
With one kind and w = 0 this is equation 20 of J. T. Daly, A higher order estimate of the optimum checkpoint interval
for restart dumps, FGCS 22 (2006).

Broken nodes are away for a repair time; with k spare nodes the job stands still while k + 1 nodes are away. That is the
full system of k + 1 servers without a queue (Erlang B), whatever the distribution of repairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interruption:
    """One kind: its `share` of all interruptions (they sum to 1) and seconds until the job works again.

    `node_lost` kinds take a node away for the repair time.
    """

    name: str
    share: float
    recovery_s: float
    node_lost: bool = False


@dataclass(frozen=True, slots=True)
class Reliability:
    """What the closed form and the simulation need.

    `mtbf_s` is the mean time between interruptions of the job, `interval_s` work between snapshots. Broken nodes come
    at `node_losses_per_s` and are away for `repair_s`; `spares` are held ready. A rank turns slow at `slow_per_s` of
    working time, for `slow_s`, and takes `slowdown` of the speed with it (0.1 = 10 %).
    """

    mtbf_s: float
    kinds: tuple[Interruption, ...]
    interval_s: float
    stall_s: float
    durable_s: float = 0.0
    node_losses_per_s: float = 0.0
    repair_s: float = 0.0
    spares: int = 0
    slow_per_s: float = 0.0
    slow_s: float = 0.0
    slowdown: float = 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """Shares of the time, which sum to 1: `productive` is progress that is kept at full speed."""

    productive: float
    lost_work: float
    recovery: float
    checkpoint: float
    slow: float
    no_nodes: float


def daly_interval(mtbf_s: float, stall_s: float, recovery_s: float = 0.0) -> float:
    """Seconds of work between checkpoints that keep the most: maximum of the closed form over tau.

    Setting the derivative to zero gives (tau/M) e^((tau+C)/M) = e^((tau+C)/M) - 1, whose solution for small C/M is
    Young's sqrt(2 C M) (CACM 17, 1974). The recovery only scales the share and does not move the optimum. Newton from
    Young's value; tau <= M. Raises ValueError for times that are not positive.
    """
    if mtbf_s <= 0 or stall_s <= 0 or recovery_s < 0:
        raise ValueError("times must be positive")
    x, c = min(1.0, math.sqrt(2 * stall_s / mtbf_s)), stall_s / mtbf_s
    for _ in range(50):
        # f(x) = x - 1 + e^-(x+c), increasing and convex for x >= 0
        step = (x - 1 + math.exp(-(x + c))) / (1 - math.exp(-(x + c)))
        x -= step
        if abs(step) < 1e-12:
            break
    return x * mtbf_s


def erlang_b(servers: int, load: float) -> float:
    """Share of the time that all `servers` are busy under `load` erlangs, by the stable recursion."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def survival(kinds: Sequence[Interruption], mtbf_s: float) -> float:
    """Probability that a recovery is not interrupted itself."""
    return sum(kind.share * math.exp(-kind.recovery_s / mtbf_s) for kind in kinds)


def goodput(job: Reliability) -> Goodput:
    """Expected shares of the time of `job` (module docstring); 0 productive where no interval ever survives."""
    m = job.mtbf_s
    cycle = job.interval_s + job.stall_s
    s = survival(job.kinds, m)
    away = job.node_losses_per_s * job.repair_s
    present = 1.0 - (erlang_b(job.spares + 1, away) if away > 0 else 0.0)
    growth = cycle / m
    per_cycle = 0.0 if growth > 700 else math.exp(-job.durable_s / m) / math.expm1(growth)
    kept = s / m * per_cycle * job.interval_s
    stalls = s / m * per_cycle * job.stall_s
    slow_share = 1.0 - 1.0 / (1.0 + job.slow_per_s * job.slow_s)
    slow = kept * job.slowdown * slow_share
    return Goodput(
        productive=present * (kept - slow),
        lost_work=present * (s - kept - stalls),
        recovery=present * (1.0 - s),
        checkpoint=present * stalls,
        slow=present * slow,
        no_nodes=1.0 - present,
    )
