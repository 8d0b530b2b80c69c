"""Fits the few coefficients that decide to measured runs, within their bounds, deterministically.

Least squares with a soft L1 loss on log(predicted / measured) over the logarithms of the coefficients; every group of
runs weighs the same whatever its size, and a weak pull towards the starting values settles what the runs leave open.
scipy is imported only here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from advisor.cost.profile import Profile, load_profile
from advisor.fit.predict import predicted_step_s
from advisor.fit.runs import Run
from advisor.spec.hardware import Gpu
from advisor.spec.layout import Array

PULL, LOOSE = 2.0, 0.3
"""Weight of one e-fold of distance from the starting value against one run's log error, for most dials and for those
that nothing but runs can tell. Chosen by the leave-one-model-out error: weak pulls fit better and predict worse."""
SOFT = 0.06
"""Log error above which a run counts linearly instead of squared."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Coefficients that a fit moves together by one factor: names, and the architectures or GPUs it applies to.

    A name "gemm.bf16" is a sustained GEMM rate. `where` are beginnings of GPU names; empty means every GPU.
    """

    names: tuple[str, ...]
    where: tuple[str, ...] = ()
    pull: float = PULL

    @property
    def key(self) -> str:
        """Name in tables."""
        return "+".join(self.names) + ("@" + "/".join(self.where) if self.where else "")


HOPPER, BLACKWELL = ("h100", "h200", "h800"), ("b200", "b300", "gb200", "gb300")
DIALS = (
    Dial(("gemm.bf16", "gemm.fp16"), ("a100", "a800")),
    Dial(("gemm.bf16", "gemm.fp16"), HOPPER),
    Dial(("gemm.fp8",), HOPPER),
    Dial(("gemm.bf16", "gemm.fp16"), ("b200-sxm",)),
    Dial(("gemm.fp8", "gemm.mxfp8", "gemm.nvfp4"), ("b200-sxm",)),
    *(Dial(names, (gpu,)) for gpu in ("gb200", "gb300") for names in (
        ("gemm.bf16", "gemm.fp16"), ("gemm.fp8", "gemm.mxfp8"), ("gemm.nvfp4",))),
    Dial(("grouped_fwd", "grouped_dgrad", "grouped_wgrad"), pull=LOOSE),
    Dial(("attention_time_factor",), ("a100", "a800", *HOPPER)),
    Dial(("attention_time_factor",), BLACKWELL),
    Dial(("attention_seq_shift",), BLACKWELL, LOOSE),
    Dial(("attention_sink_factor",)),
    Dial(("memory_share",)),
    Dial(("quantise_bytes",)),
    Dial(("mamba_peak_share",), pull=LOOSE),
    Dial(("per_expert_s",), pull=LOOSE),
    Dial(("host_sync_s",), pull=LOOSE),
    Dial(("ep_exposed",)),
    Dial(("ep_exposed_overlap",), pull=LOOSE),
    Dial(("tp_exposed",)),
    Dial(("tp_exposed_overlap",)),
    Dial(("dp_exposed",)),
    Dial(("fsdp_exposed",)),
)  # fmt: skip
SHARES = {"dgxc": 100.0, "simumax-b200": 40.0, "moefold-t3": 20.0, "seqsel-t5": 14.0}
"""How many runs the runs of a group weigh together: dgxc repeats few layouts on many clusters, the others are few."""
FITTED_GROUPS = ("bridge", "dgxc", "dgxc-log", "moefold-t3", "seqsel-t5", "simumax-b200")
"""Groups that the committed coefficients are fitted on: custom A100 stacks and optimisation logs are not."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Result of a fit: the factor of each dial on its starting value, and the GPUs whose runs were used."""

    dials: tuple[Dial, ...]
    factors: Array
    gpus: tuple[str, ...] = ()

    def profile(self, gpu: Gpu) -> Profile:
        """The GPU's profile with the fitted coefficients."""
        return turned(load_profile(gpu), self.dials, self.factors)


def turned(profile: Profile, dials: Sequence[Dial], factors: Array) -> Profile:
    """`profile` with the coefficients of every dial that applies to its GPU multiplied, held inside their bounds."""
    coefficients, gemm = dict(profile.coefficients), dict(profile.gemm)
    for dial, factor in zip(dials, factors, strict=True):
        if dial.where and not profile.gpu.name.startswith(dial.where):
            continue
        for name in dial.names:
            entries, key = (gemm, name[5:]) if name.startswith("gemm.") else (coefficients, name)
            if key in entries:
                one = entries[key]
                value = float(np.clip(one.value * factor, one.low, one.high))
                entries[key] = replace(one, value=value)
    return replace(profile, coefficients=MappingProxyType(coefficients), gemm=MappingProxyType(gemm))


def _bounds(dials: Sequence[Dial], gpus: Sequence[Gpu]) -> tuple[Array, Array]:
    """Least and greatest log factor of each dial such that every coefficient stays inside its bounds."""
    low, high = np.full(len(dials), -np.inf), np.full(len(dials), np.inf)
    for i, dial in enumerate(dials):
        for gpu in gpus:
            if dial.where and not gpu.name.startswith(dial.where):
                continue
            profile = load_profile(gpu)
            for name in dial.names:
                one = profile.gemm.get(name[5:]) if name.startswith("gemm.") else profile.coefficients[name]
                if one is not None:
                    low[i] = max(low[i], np.log(max(one.low, one.value * 0.1) / one.value))
                    high[i] = min(high[i], np.log(one.high / one.value))
    return np.where(np.isfinite(low), low, -1e-3), np.where(np.isfinite(high), high, 1e-3) + 1e-9


def weights(runs: Sequence[Run], shares: Mapping[str, float]) -> Array:
    """Weight per run: 1, or such that the runs of a group named in `shares` weigh together as that many runs."""
    sizes = Counter(run.group for run in runs)
    return np.array([np.sqrt(shares.get(run.group, sizes[run.group]) / sizes[run.group]) for run in runs])


class _Problem:
    """log(predicted / measured) of runs as a function of the logarithms of the dial factors, and its derivative."""

    def __init__(self, runs: Sequence[Run], dials: Sequence[Dial]) -> None:
        self.runs, self.dials = list(runs), tuple(dials)
        self.gpus = list({run.cluster.gpu.name: run.cluster.gpu for run in runs}.values())
        self.measured = np.log([run.step_s or np.nan for run in runs])
        self.low, self.high = _bounds(dials, self.gpus)
        self.pull = np.array([dial.pull for dial in dials])

    def log_errors(self, logs: Array, members: Sequence[int] | None = None) -> Array:
        chosen = list(range(len(self.runs))) if members is None else list(members)
        made = {gpu.name: turned(load_profile(gpu), self.dials, np.exp(logs)) for gpu in self.gpus}
        predicted = predicted_step_s([self.runs[i] for i in chosen], lambda gpu: made[gpu.name])
        out: Array = np.log(predicted) - self.measured[chosen]
        return out

    def derivative(self, logs: Array) -> Array:
        """D log_errors / d logs, (runs, dials); a dial is evaluated only on the GPUs it applies to."""
        base = self.log_errors(logs)
        out = np.zeros((len(self.runs), len(self.dials)))
        for j, dial in enumerate(self.dials):
            names = [run.cluster.gpu.name for run in self.runs]
            members = [i for i, name in enumerate(names) if not dial.where or name.startswith(dial.where)]
            step = 1e-3 if logs[j] + 1e-3 < self.high[j] else -1e-3
            moved = logs.copy()
            moved[j] += step
            if members:
                out[members, j] = (self.log_errors(moved, members) - base[members]) / step
        return out


def calibrate(
    runs: Sequence[Run], shares: Mapping[str, float] = SHARES, dials: Sequence[Dial] = DIALS, steps: int = 12
) -> Fit:
    """Fits `dials` to the measured step times of `runs`."""
    from scipy.optimize import least_squares

    problem = _Problem(runs, dials)
    weight = weights(runs, shares)
    low, high = problem.low, problem.high
    margin = 0.05 * (high - low)  # a start on a bound stalls the trust region
    found = least_squares(
        lambda logs: np.concatenate([weight * problem.log_errors(logs), problem.pull * logs]),
        np.clip(np.zeros(len(dials)), low + margin, high - margin),
        jac=lambda logs: np.vstack([weight[:, None] * problem.derivative(logs), np.diag(problem.pull)]),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SOFT,
        max_nfev=steps,
    )
    return Fit(tuple(dials), np.exp(found.x), tuple(gpu.name for gpu in problem.gpus))


def left_out_errors(fit: Fit, runs: Sequence[Run], shares: Mapping[str, float], key: Callable[[Run], str]) -> Array:
    """Relative error of every run when all runs with the same `key` are left out of the fit (leave one model out).

    The fit is repeated on predictions linearised in the logarithms of the dials around `fit`, which costs seconds
    instead of a full fit per key.
    """
    from scipy.optimize import least_squares

    problem = _Problem(runs, fit.dials)
    at = np.clip(np.log(fit.factors), problem.low, problem.high)
    base, slope, weight = problem.log_errors(at), problem.derivative(at), weights(runs, shares)
    keys = np.array([key(run) for run in runs])
    out = np.empty(len(runs))
    for one in dict.fromkeys(keys):
        kept = weight * (keys != one)

        def residuals(logs: Array, kept: Array = kept) -> Array:
            return np.concatenate([kept * (base + slope @ (logs - at)), problem.pull * logs])

        whole = np.vstack([kept[:, None] * slope, np.diag(problem.pull)])
        margin = 1e-6 * (problem.high - problem.low)
        start = np.clip(at, problem.low + margin, problem.high - margin)
        found = least_squares(
            residuals, start, jac=lambda _, whole=whole: whole, bounds=(problem.low, problem.high),
            loss="soft_l1", f_scale=SOFT, max_nfev=60,
        )  # fmt: skip
        members = keys == one
        out[members] = np.exp((base + slope @ (found.x - at))[members]) - 1
    return out
