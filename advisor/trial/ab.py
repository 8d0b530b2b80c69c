"""The same layout with one overlap on and off, run in turn: whether the overlap brings what was predicted."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from advisor import files
from advisor.configure.gain import gains
from advisor.configure.job import Job
from advisor.configure.overlap import resolve
from advisor.configure.resolved import asked_of
from advisor.errors import InputError
from advisor.search.candidates import make_candidates
from advisor.spec.layout import CpComm
from advisor.trial.difference import LEAST_PAIRS, LEVEL, Difference, difference
from advisor.trial.job import Drive
from advisor.trial.runner import Rules, Tell, run_trials
from advisor.trial.store import Store
from advisor.trial.trials import Trial, make_trial

Verdict = Literal["confirmed", "less than predicted", "not effective", "slower with it", "not decided"]

FLAGS: Mapping[str, tuple[str, str]] = {
    "tp_overlap": ("model.tp_comm_overlap", "tp"),
    "overlap_p2p": ("model.overlap_p2p_comm", "pp"),
    "overlap_grad_reduce": ("ddp.overlap_grad_reduce", "dp"),
    "overlap_param_gather": ("ddp.overlap_param_gather", "dp"),
    "ep_overlap": ("model.overlap_moe_expert_parallel_comm", "ep"),
    "delay_wgrad": ("model.delay_wgrad_compute", "ep"),
    "shared_expert_overlap": ("model.moe_shared_expert_overlap", "ep"),
    "cp_comm": ("model.cp_comm_type", "cp"),
}
"""Knobs that can be switched off, with their field in Bridge and the communication they hide."""
OFF: Mapping[str, Any] = {"cp_comm": CpComm.p2p}
ON: Mapping[str, str] = {"cp_comm": "all_gather"}
"""What a knob is without the overlap where that is not False: sequences are else exchanged around a ring."""
NEVER: Mapping[str, tuple[str, str]] = {
    "cuda_graph": ("a trial captures no CUDA graphs, on or off", "compare jobs of Bridge: --via bridge runs them"),
}
"""Knobs of a plan that no trial has, with the reason and the way."""
NOTHING = 0.05
"""Share of the predicted step that counts as no saving."""
GO_WITH: Mapping[str, tuple[str, ...]] = {
    "overlap_grad_reduce": ("overlap_param_gather",),
    "ep_overlap": ("delay_wgrad",),
}
"""What Megatron refuses without the knob, and so is switched off with it."""
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sides:
    """A layout with an overlap (`on`) and without (`off`); `also` names what goes off with it."""

    flag: str
    also: tuple[str, ...]
    on: Trial
    off: Trial

    @property
    def predicted_s(self) -> float:
        """Seconds of a step that the overlap is predicted to save."""
        return self.off.predicted.step_s - self.on.predicted.step_s

    @property
    def kind(self) -> str:
        """The communication that the overlap hides."""
        return FLAGS[self.flag][1]


def make_sides(trial: Trial, flag: str, drive: Drive) -> Sides:
    """Both sides of a trial. InputError, with the reason, where switching `flag` off would change nothing."""
    if flag in NEVER:
        raise InputError(*NEVER[flag])
    if flag not in FLAGS:
        raise InputError(f"--ab {flag[:40]} is no overlap that can be switched off", f"one of {', '.join(FLAGS)}")
    request, knobs = trial.request, trial.candidate.knobs
    without = OFF.get(flag, False)
    if getattr(knobs, flag) == without:
        raise InputError(
            f"{flag} is off in this layout, there is nothing to switch off",
            f"plan with --fix {flag}={ON.get(flag, 'on')}",
        )
    job = Job(request.model, request.cluster, request.workload, trial.candidate.layout, knobs)
    field = resolve(job, asked_of(knobs)).field(FLAGS[flag][0])
    if not field.effective:
        raise InputError(f"{flag} has no effect here: {field.reason}", "advisor overlap shows which overlaps have")
    name = f"{flag} {knobs.cp_comm.name}" if flag == "cp_comm" else flag
    gain = next((one for one in gains(job) if one.name == name), None)
    if gain is not None and gain.saved_s is None:
        raise InputError(f"this layout cannot run without {flag}: {gain.note}", "choose another overlap")
    also = tuple(name for name in GO_WITH.get(flag, ()) if getattr(knobs, name))
    switched: dict[str, Any] = {**dict.fromkeys(also, False), flag: without}
    layouts = [(trial.candidate.layout, replace(knobs, **switched))]
    (candidate,) = make_candidates(request, layouts, ranks=[trial.candidate.rank])
    off = make_trial(trial.source, request, candidate, drive, trial.proxy_layers)
    if _told(off) == _told(trial):
        why = "; ".join(words for words in trial.stand_ins if words not in off.stand_ins)
        raise InputError(
            f"{flag} changes nothing in a trial on {drive.device}, the worker runs the same job with and without it"
            f"{why and f': {why}'}",
            "--via bridge" if drive.device == "cuda" else "run it on GPUs",
        )
    return Sides(flag, also, trial, off)


def no_effect(flag: str, on: Mapping[str, Any], off: Mapping[str, Any]) -> str:
    """Why two records compare nothing: the library resolved the flag alike on both sides; empty where it did not."""
    section, _, name = FLAGS[flag][0].partition(".")
    found = [(one.get("effective") or {}) for one in (on, off)]
    values = [one.get("ddp", {}).get(name) if section == "ddp" else one.get(name) for one in found]
    if values[0] is None or values[0] != values[1]:
        return ""
    said = "; ".join(on.get("stand_ins", ()))
    return f"{name} is {values[0]} on both sides{said and f' ({said})'}"


def _told(trial: Trial) -> dict[str, Any]:
    """What the ranks build and run; variables that only matter to an overlap that is not built are no part of it."""
    return {name: value for name, value in trial.job.items() if name not in {"environment", "stand_ins"}}


def run_sides(sides: Sides, pairs: int, store: Store, rules: Rules, tell: Tell) -> dict[str, Any]:
    """Run on, off, on, off, ... and write the record of the comparison to the store's folder.

    Every run leaves its own record too. A run that fails, or a budget that ends, ends the comparison after the last
    whole pair; so does a pair that compares nothing (`no_effect`).
    """
    begin, done, failure = time.monotonic(), [], ""
    for _ in range(pairs):
        pair: list[Mapping[str, Any]] = []
        for trial in (sides.on, sides.off):
            left = None if rules.budget_s is None else max(rules.budget_s - (time.monotonic() - begin), 0.0)
            record = next(run_trials([trial], store, replace(rules, budget_s=left, resume=False), tell)).record
            if record is None or record["measured"] is None:
                failure = "the budget is spent" if record is None else f"{trial.name}: {record['outcome']}"
                break
            pair.append(record)
        if len(pair) < 2:
            break
        failure = no_effect(sides.flag, *pair)
        if failure:
            break
        done.append(pair)
    found = ab_record(sides, done, failure)
    path = store.folder / f"ab-{sides.flag}-{sides.on.name}.json"
    files.write_text(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    return found


def ab_record(sides: Sides, pairs: Sequence[Sequence[Mapping[str, Any]]], failure: str) -> dict[str, Any]:
    """The comparison as JSON; `pairs` hold the records of both sides, on first. No interval for fewer than two."""
    steps = [(pair[0]["measured"]["steps_s"], pair[1]["measured"]["steps_s"]) for pair in pairs]
    apart = difference(steps) if len(steps) >= LEAST_PAIRS else None
    verdict, why = judged(sides, apart)
    last = pairs[-1][0] if pairs else None
    return {
        "schema_version": SCHEMA_VERSION,
        "flag": sides.flag,
        "also_off": list(sides.also),
        "kind": sides.kind,
        "on": {"name": sides.on.name, "key": sides.on.key, "predicted_step_s": sides.on.predicted.step_s},
        "off": {"name": sides.off.name, "key": sides.off.key, "predicted_step_s": sides.off.predicted.step_s},
        "pairs": [{"on_s": list(on), "off_s": list(off)} for on, off in steps],
        "predicted_saved_s": sides.predicted_s,
        "saved_s": None if apart is None else apart.mean_s,
        "low_s": None if apart is None else apart.low_s,
        "high_s": None if apart is None else apart.high_s,
        "level": LEVEL,
        "verdict": verdict,
        "why": why if not failure else f"{failure}; {why}",
        "hiding": None if last is None else next((one for one in last["hiding"] if one["kind"] == sides.kind), None),
        "environment": None if last is None else last["environment"],
        "stand_ins": list(sides.on.stand_ins if last is None else last.get("stand_ins", sides.on.stand_ins)),
    }


def judged(sides: Sides, apart: Difference | None) -> tuple[Verdict, str]:
    """Verdict of a comparison and its reason.

    Confirmed: the predicted saving lies in the interval or below it, and where one is predicted the interval is above
    zero. An interval that holds both zero and the prediction decides nothing, unless nothing is predicted and it is
    narrower than `NOTHING`.
    """
    promised = sides.predicted_s
    if apart is None:
        return "not decided", "two pairs of runs are needed"
    if apart.high_s < min(0.0, promised):
        return "slower with it", "the step is shorter without the overlap"
    if apart.low_s > 0:
        if apart.high_s >= promised:
            return "confirmed", "the interval reaches the predicted saving" if promised > 0 else "more than predicted"
        return "less than predicted", "all of the interval is above zero and below the prediction"
    if apart.high_s < promised:
        return "not effective", "the interval holds zero, and not the prediction"
    if promised <= 0 and max(-apart.low_s, apart.high_s) <= NOTHING * (sides.on.predicted.step_s or 0.0):
        return "confirmed", "no saving is predicted, and none is seen"
    if promised <= 0:
        return "not decided", f"no saving is predicted, and the noise is above {NOTHING:.0%} of a step: more --pairs"
    return "not decided", "the noise is larger than the predicted saving: more --pairs or --steps"
