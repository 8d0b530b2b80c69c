"""Records of trials as measured runs: one per job, of one host, priced again as they were run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.configure.chosen import chosen_of
from advisor.errors import AdvisorError, InputError
from advisor.fit.runs import Run
from advisor.spec.hardware import Gpu
from advisor.trial.job import Drive
from advisor.trial.record import problem_of
from advisor.trial.store import LINES, Store
from advisor.trial.trials import Trial, make_trial

FINGERPRINT = (
    "machine", "processor", "cpu_count", "threads", "gpu", "gpu_bytes", "torch", "megatron_core", "cuda", "nccl",
)  # fmt: skip
"""What of an environment makes a rate: records that differ in it are of another host or another stack."""
GROUP = "trials"


@dataclass(frozen=True, slots=True)
class Left:
    """A record that says nothing about the profile, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Timed:
    """A job that was measured: what was run (a proxy as the proxy), and the noise of its step as a share of it.

    `repeats` counts the records, whose median counts; `proxy_layers` is None for a layout run as planned; `system` is
    the system of the plan, a preset or a file.
    """

    run: Run
    spread: float
    repeats: int
    proxy_layers: int | None
    system: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Usable trials of one host, whose fingerprint is `environment`, and the records that are not used."""

    trials: tuple[Timed, ...]
    environment: Mapping[str, Any]
    left: tuple[Left, ...]


def read_measured(folder: Path) -> Measured:
    """The records of a folder that `advisor trial --out` wrote to.

    Records of the host with most measured trials are used, those of others are left out, as are failed ones and those
    that ran on a device the plan is not for. Raises InputError where nothing is left.
    """
    if not (folder / LINES).is_file():
        raise InputError(f"{folder} holds no {LINES}", "give the folder that advisor trial --out named")
    kept: dict[str, list[tuple[Trial, Mapping[str, Any]]]] = defaultdict(list)
    left: list[Left] = []
    records = _of_one_host(Store(folder).records(), left)
    for record in records:
        try:
            trial = _trial(record)
        except AdvisorError as problem:
            left.append(Left(str(record["name"]), problem.message))
        else:
            kept[str(record["key"])].append((trial, record))
    if not kept:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left[:3]) or "it is empty"
        raise InputError(f"no record in {folder} can be used: {reasons}", "run advisor trial again")
    return Measured(tuple(_timed(found) for found in kept.values()), fingerprint(records[0]), tuple(left))


def fingerprint(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record's environment has to be equal for two of them to count together."""
    found = record.get("environment") or {}
    return {name: found[name] for name in FINGERPRINT if found.get(name) is not None}


def _of_one_host(records: Sequence[Mapping[str, Any]], left: list[Left]) -> list[Mapping[str, Any]]:
    """Measured records of the host with most of them, of the one that measured last where two have as many."""
    hosts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        name = str(record.get("name", "a line"))[:80]
        if problem := problem_of(record):
            left.append(Left(name, problem))
        elif record["measured"] is None:
            failure = record["failure"] or {}
            left.append(Left(name, f"{record['outcome']}: {failure.get('message', 'not measured')}"))
        elif not fingerprint(record):
            left.append(Left(name, "it does not say on which host it was measured"))
        else:
            hosts[repr(fingerprint(record))].append(record)
    if not hosts:
        return []
    chosen = max(reversed(hosts), key=lambda host: len(hosts[host]))
    mine = fingerprint(hosts[chosen][0])
    for host, found in hosts.items():
        if host != chosen:
            other = fingerprint(found[0])
            names = [name for name in FINGERPRINT if mine.get(name) != other.get(name)]
            words = ", ".join(f"{name} {other.get(name)} in place of {mine.get(name)}" for name in names)
            left.extend(Left(str(record["name"]), f"measured elsewhere: {words}") for record in found)
    return hosts[chosen]


def _trial(record: Mapping[str, Any]) -> Trial:
    """What was run, as this version prices it. InputError where the record is not one of the GPU it was planned for."""
    name = str(record["name"])
    chosen = chosen_of(record, f"the record of {name}")
    gpu = chosen.cluster.gpu
    problem = _elsewhere(gpu, record)
    if problem:
        raise InputError(problem, "plan for the system that the trial runs on: advisor measure")
    proxy = record.get("proxy")
    drive = Drive(record["device"])
    return make_trial(name, chosen.request, chosen.candidate, drive, None if proxy is None else proxy["layers"])


def _elsewhere(gpu: Gpu, record: Mapping[str, Any]) -> str:
    """Why a record says nothing about `gpu`, empty where it does."""
    found = record["environment"]
    if record["device"] == "cpu":
        return "" if gpu.arch == found.get("machine") else f"it ran on a CPU, the plan is for {gpu.name}"
    card = str(found.get("gpu", "")).lower().replace(" ", "")
    known = gpu.status == "own" or gpu.name.split("-")[0] in card
    return "" if known else f"it ran on {found.get('gpu')}, the plan is for {gpu.name}"


def _timed(found: Sequence[tuple[Trial, Mapping[str, Any]]]) -> Timed:
    """One run of the records of one job: the median step, and the larger of the spread inside and between them."""
    trial, record = found[0]
    request, candidate = trial.run_request, trial.run_candidate
    steps = [float(one["measured"]["step_s"]) for _, one in found]
    median = statistics.median(steps)
    inside = statistics.median(float(one["measured"].get("spread") or 0.0) for _, one in found)
    between = (max(steps) - min(steps)) / 2 / median
    run = Run(
        id=str(record["name"]), group=GROUP, model_name=str(request.settings["model"].value), model=request.model,
        cluster=request.cluster, workload=request.workload, layout=candidate.layout, knobs=candidate.knobs,
        step_s=median, peak_allocated_gib=None, oom=False, flag="", assumed=(), software="",
    )  # fmt: skip
    layers = request.model.num_layers if trial.proxy_layers is not None else None
    return Timed(run, max(inside, between), len(found), layers, str(request.settings["system"].value))
