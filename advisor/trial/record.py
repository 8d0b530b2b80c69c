"""The record of a trial: what was predicted, what was measured, and whether the prediction held."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from advisor.errors import InputError
from advisor.report.record import candidate_record, request_record
from advisor.spec.plan import Candidate
from advisor.trace.analysis import Figures, analyse
from advisor.trace.verdict import PLAN_KINDS, Promise, verdicts
from advisor.trial.outcome import Outcome, steady_steps
from advisor.trial.processes import Ended
from advisor.trial.trials import Trial

SCHEMA_VERSION = 1
FIELDS: Mapping[str, tuple[type, ...]] = {
    "name": (str,), "key": (str,), "outcome": (str,), "device": (str,), "folder": (str,), "request": (Mapping,),
    "candidate": (Mapping,), "predicted": (Mapping,), "measured": (Mapping, NoneType), "failure": (Mapping, NoneType),
    "proxy": (Mapping, NoneType), "environment": (Mapping, NoneType),
}  # fmt: skip


def problem_of(record: Mapping[str, Any]) -> str:
    """Why a record that was read from a file cannot be used: another version, a field of another kind; else nothing."""
    if record.get("schema_version") != SCHEMA_VERSION:
        return f"of schema version {str(record.get('schema_version'))[:20]}, this version reads {SCHEMA_VERSION}"
    for name, kinds in FIELDS.items():
        if not isinstance(record.get(name), kinds):
            return f"{name} is {str(record.get(name))[:40]!r}"
    step_s = 1.0 if record["measured"] is None else record["measured"].get("step_s")
    layers = 1 if record["proxy"] is None else record["proxy"].get("layers")
    if isinstance(step_s, bool) or not isinstance(step_s, int | float) or not 0 < step_s < math.inf:
        return f"measured.step_s is {str(step_s)[:40]!r}"
    return "" if isinstance(layers, int) else f"proxy.layers is {str(layers)[:40]!r}"


def make_record(trial: Trial, outcome: Outcome, folder: Path, ended: Ended) -> dict[str, Any]:
    """The record of one attempt whose files lie in `folder`; JSON types only, null for what is not known.

    `inside` says whether the measured median lies within the predicted interval of what was run. Where that is not
    the layout as planned, `full` holds what is expected of it (rule: advisor/trial/proxy.py).
    """
    measured = _measured(trial, outcome, folder) if outcome.kind == "measured" else None
    step = trial.predicted
    whole = next(iter(outcome.ranks), {})
    record = {
        "schema_version": SCHEMA_VERSION,
        "key": trial.key,
        "name": trial.name,
        "plan": trial.source,
        "rank": trial.candidate.rank,
        "device": trial.job["run"]["device"],
        "folder": str(folder),
        "seconds": ended.seconds,
        "ending": ended.ending,
        "slurm": None if ended.job is None else dict(ended.job),
        "outcome": outcome.kind,
        "failure": None if outcome.failure is None else outcome.failure.to_dict(),
        "request": request_record(trial.request),
        "candidate": candidate_record(trial.candidate),
        "predicted": _predicted(trial.run_candidate),
        "measured": measured,
        "inside": None if measured is None else bool(step.low_s <= measured["step_s"] <= step.high_s),
        "ratio": None if measured is None else measured["step_s"] / step.step_s,
        "full": None
        if measured is None or trial.run_candidate is trial.candidate
        else _full(trial, measured["step_s"]),
        "proxy": None if trial.proxy_layers is None else _proxy(trial),
        "hiding": hiding(folder, trial.run_candidate),
        "memory": {str(rank["rank"]): rank.get("memory") for rank in outcome.ranks},
        "effective": whole.get("effective"),
        "stand_ins": list(dict.fromkeys((*trial.stand_ins, *whole.get("stand_ins", ())))),
        "environment": whole.get("environment"),
    }
    return record


def _predicted(candidate: Candidate) -> dict[str, Any]:
    step = candidate.step
    if step is None:
        raise InputError("a plan without step times cannot be tried", "leave out --mode")
    return {
        "step_s": step.step_s,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "peak_allocated_bytes": candidate.memory.peak_allocated_bytes,
        "peak_device_bytes": candidate.memory.peak_device_bytes,
    }


def _measured(trial: Trial, outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Step seconds (the slowest rank of every step), the rate they give, losses and the peaks over ranks."""
    lines = steady_steps(folder)
    rows = list(zip(*lines.values(), strict=False))
    steps = [max(float(line["step_s"]) for line in row) for row in rows]
    losses = [next((line["loss"] for line in row if line["loss"] is not None), None) for row in rows]
    median = statistics.median(steps)
    layout = trial.run_candidate.layout
    tokens = layout.gbs * trial.run_request.workload.seq_len
    return {
        "step_s": median,
        "steps_s": steps,
        "spread": _spread(steps),
        "tokens_per_s_per_gpu": tokens / median / layout.gpus,
        "losses": losses,
        **{
            f"peak_{name}": _peak(outcome.ranks, name)
            for name in ("allocated_bytes", "reserved_bytes", "resident_bytes")
        },
    }


def _spread(steps: Sequence[float]) -> float | None:
    """Half the distance of the quartiles over the median: the noise of a step."""
    if len(steps) < 4:
        return None
    low, middle, high = statistics.quantiles(steps, n=4)
    return (high - low) / 2 / middle


def _peak(ranks: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [(rank.get("memory") or {}).get(name) for rank in ranks]
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _proxy(trial: Trial) -> dict[str, Any]:
    return {
        "layers": trial.run_request.model.num_layers,
        "gbs": trial.run_candidate.layout.gbs,
        "num_microbatches": trial.run_candidate.layout.num_microbatches,
    }


def _full(trial: Trial, measured_s: float) -> dict[str, Any]:
    """Measured / predicted of what was run, applied to the predicted step of the layout as planned."""
    predicted = _predicted(trial.candidate)
    factor = measured_s / trial.predicted.step_s
    names = ("step_s", "low_s", "high_s")
    return {
        "factor": factor,
        **{name: predicted[name] * factor for name in names},
        "tokens_per_s_per_gpu": predicted["tokens_per_s_per_gpu"] / factor,
        "rule": "predicted step of the layout as planned x measured / predicted step of what was run",
    }


def hiding(folder: Path, candidate: Candidate) -> list[dict[str, Any]]:
    """Per communication kind: predicted and measured hidden share, a verdict, and the first thing to change."""
    step, measured = candidate.step, traced(folder)
    if step is None or measured is None:
        return []
    exposed = {kind: float(step.exposed_s.get(kind, 0.0)) for kind in PLAN_KINDS}
    hidden = {kind: float(step.hidden_s.get(kind, 0.0)) for kind in PLAN_KINDS}
    promise = Promise(folder, candidate.rank, step.step_s, exposed, hidden)
    return [
        {
            "kind": one.kind,
            "predicted_share": one.predicted_share,
            "measured_share": one.measured_share,
            "verdict": one.verdict,
            "reason": one.reason,
        }
        for one in verdicts(promise, measured)
    ]


def traced(folder: Path) -> Figures | None:
    """The mean step of the traces of an attempt, None where there are none."""
    if not any((folder / "traces").glob("*.json.gz")):
        return None
    try:
        return analyse([folder / "traces"]).mean
    except InputError:
        return None
