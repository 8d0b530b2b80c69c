"""Why a layout is rejected or slower than the best, the nearest one that fits, and what each single change brings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from advisor.cost.memory import memory
from advisor.cost.profile import load_profile
from advisor.cost.step import step
from advisor.rules import legality
from advisor.search.candidates import make_candidates
from advisor.search.dials import ALLOWANCES, knob_words, shown_word
from advisor.search.request import Request
from advisor.search.single import Choice, Verdict, judge, make_layout
from advisor.search.solve import Found, layout_of, search
from advisor.spec.layout import EXPERT_INPUTS, CpComm, CudaGraph, Dispatcher, Fsdp, Knobs, Layout, table
from advisor.spec.model import Model
from advisor.spec.plan import Candidate, Dial, Finding, Reason
from advisor.units import gib

Judged = tuple[Verdict, Candidate | None, tuple[Finding, ...]]
SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")
NEAR_ROWS = 64
MOST_SLOWER = 2.0
"""How many times the step of the best layout a nearest one may take: a run nobody would start is no way out."""
LEAST_SHARE = 0.01
KNOB_DISTANCE = 0.5


@dataclass(frozen=True, slots=True)
class Why:
    """The parts of an explanation (advisor.report.answers.Explanation says what each is)."""

    judged: Judged
    reasons: tuple[Reason, ...]
    nearest: Candidate | None
    changes: tuple[str, ...]
    dials: tuple[Dial, ...]
    best: Candidate | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What one (layout, knobs) pair comes to; `step_s` is 0 where it is illegal or not a training step."""

    verdict: Literal["fits", "oom", "illegal"]
    device_bytes: float
    step_s: float


def explain(request: Request, choice: Choice) -> Why:
    """Judge `choice`, search what else there is, and compare."""
    judged = judge(request, choice)
    found = search(request)
    best = found.winner()
    nearest, changes = _nearest(found, choice)
    return Why(judged, _reasons(judged, best), nearest, changes, dials(request, choice), best)


def price(request: Request, pairs: Sequence[tuple[Layout, Knobs]]) -> list[Figures]:
    """Verdict, memory and time of many pairs at once."""
    if not pairs:
        return []
    columns = table([layout for layout, _ in pairs], [knobs for _, knobs in pairs])
    legal = legality(request.model, request.cluster, request.workload, columns).legal
    out = [Figures("illegal", 0.0, 0.0)] * len(pairs)
    at = np.flatnonzero(legal)
    if not len(at):
        return out
    legal_pairs = [pairs[int(i)] for i in at]
    kept = table([layout for layout, _ in legal_pairs], [knobs for _, knobs in legal_pairs])
    device = np.broadcast_to(memory(request.model, request.cluster, request.workload, kept).device_bytes, at.shape)
    times = np.zeros(at.shape)
    if request.workload.mode == "train":
        profile = load_profile(request.cluster.gpu)
        times = np.broadcast_to(step(request.model, request.cluster, request.workload, kept, profile).step_s, at.shape)
    for place, i in enumerate(at):
        verdict: Verdict = "fits" if device[place] <= request.budget_bytes else "oom"
        out[i] = Figures(verdict, float(device[place]), float(times[place]))
    return out


def _reasons(judged: Judged, best: Candidate | None) -> tuple[Reason, ...]:
    verdict, own, found = judged
    if verdict == "illegal" or own is None:
        stops = [finding for finding in found if finding.severity == "stop"]
        return tuple(Reason("rule", one.rule, one.message, fix=one.fix) for one in stops)
    if verdict == "oom":
        return _memory_reasons(own, best)
    return _time_reasons(own, best)


def _memory_reasons(own: Candidate, best: Candidate | None) -> tuple[Reason, ...]:
    """The memory terms, largest first, beside those of the best layout."""
    memory_, over = own.memory, own.memory.peak_device_bytes - own.memory.budget_bytes
    reasons = [
        Reason(
            "memory",
            "budget",
            f"stage {memory_.worst_stage} needs {gib(memory_.peak_device_bytes):.1f} GiB at its worst moment "
            f"({memory_.worst_moment.replace('_', ' ')}), {gib(over):.1f} GiB more than the budget of "
            f"{gib(memory_.budget_bytes):.1f} GiB",
            memory_.peak_device_bytes,
            memory_.budget_bytes,
            "bytes",
        )
    ]
    for name, term in sorted(memory_.terms.items(), key=lambda item: (-item[1].value, item[0])):
        if term.value < LEAST_SHARE * memory_.peak_device_bytes:
            continue
        other = best.memory.terms[name].value if best is not None and name in best.memory.terms else None
        beside = "" if other is None else f"; in the best layout {gib(other):.1f} GiB"
        words = name.replace("_", " ")
        message = (
            f"{words}: {gib(term.value):.1f} GiB ({term.value / memory_.peak_device_bytes:.0%}, {term.kind}){beside}"
        )
        reasons.append(Reason("memory", name, message, term.value, other, "bytes"))
    return tuple(reasons)


def _time_reasons(own: Candidate, best: Candidate | None) -> tuple[Reason, ...]:
    """The step terms in which a layout loses against the best, largest loss first."""
    if best is None or own.step is None or best.step is None or own.step.step_s <= best.step.step_s:
        return ()
    scale = own.layout.gbs / best.layout.gbs
    losses = []
    for name, term in own.step.terms.items():
        other = best.step.terms[name].value * scale if name in best.step.terms else 0.0
        loss = term.value - other
        if loss > LEAST_SHARE * own.step.step_s:
            words = name.replace("_", " ")
            message = f"{words}: {term.value:.3f} s against {other:.3f} s in the best layout (+{loss:.3f} s)"
            losses.append((loss, Reason("time", name, message, term.value, other, "s")))
    return tuple(reason for _, reason in sorted(losses, key=lambda item: (-item[0], item[1].name)))


def _ratio(one: int, other: int) -> float:
    return abs(math.log2(one / other))


def _distance(one: Layout, other: Layout) -> float:
    """Doublings and halvings between two layouts, over all sizes."""
    return sum(_ratio(getattr(one, name), getattr(other, name)) for name in SIZES) + (one.sp != other.sp)


def _knob_changes(one: Knobs, other: Knobs) -> list[str]:
    before, after = knob_words(one), knob_words(other)
    return [name for name in before if before[name] != after[name]]


def _nearest(found: Found, choice: Choice) -> tuple[Candidate | None, tuple[str, ...]]:
    """The feasible layout with the smallest change, the user's knobs first, then the best ones of that row.

    It takes at most `MOST_SLOWER` times the step of the best layout, unless nothing has to change.
    """
    request, best = found.request, found.best
    if not len(best):
        return None, ()
    rows_of, far = layout_of(found.parts, best), np.zeros(len(best))
    for name in SIZES:
        far += np.abs(np.log2(rows_of[name] / getattr(choice.layout, name)))
    longest = MOST_SLOWER * float(best.step_s.min())
    usable = np.flatnonzero((best.step_s <= longest) | (far == 0))
    order = usable[np.argsort(far[usable], kind="stable")[:NEAR_ROWS]]
    rows = list(found.choices(best.take(order)).values())
    pairs = [(layout, choice.knobs) for layout, _ in rows] + rows
    figures = price(request, pairs)
    options = [
        (change, one.step_s, at)
        for at, ((layout, knobs), one) in enumerate(zip(pairs, figures, strict=True))
        if one.verdict == "fits" and (one.step_s <= longest or (layout, knobs) == (choice.layout, choice.knobs))
        for change in [_distance(layout, choice.layout) + KNOB_DISTANCE * len(_knob_changes(choice.knobs, knobs))]
    ]
    if not options:
        return None, ()
    layout, knobs = pairs[min(options)[2]]
    (candidate,) = make_candidates(request, [(layout, knobs)], ranks=[0])
    return candidate, _changes(choice, layout, knobs)


def _changes(choice: Choice, layout: Layout, knobs: Knobs) -> tuple[str, ...]:
    sizes = [
        f"{name} {getattr(choice.layout, name)} -> {getattr(layout, name)}"
        for name in (*SIZES, "sp")
        if getattr(choice.layout, name) != getattr(layout, name)
    ]
    before, after = knob_words(choice.knobs), knob_words(knobs)
    names = _knob_changes(choice.knobs, knobs)
    return (*sizes, *(f"{name} {shown_word(before[name])} -> {shown_word(after[name])}" for name in names))


def with_size(request: Request, layout: Layout, name: str, value: int) -> Layout | None:
    """The layout with one size changed and everything that follows from it filled in; None where no layout has it."""
    fields: dict[str, Any] = {one: getattr(layout, one) for one in SIZES} | {name: value}
    if value < 1 or (name == "vpp" and layout.pp == 1):
        return None
    if fields["pp"] == 1:
        fields["vpp"] = 1
    if fields["pp"] * fields["vpp"] > request.model.num_layers:
        return None
    if name not in {"pp", "vpp"}:
        fields["split"] = layout.split
    fields["sp"] = fields["tp"] > 1 if layout.sp == (layout.tp > 1) else layout.sp
    return make_layout(request.model, request.workload, request.cluster.gpus, layout.gbs, fields)


def _layout_changes(request: Request, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Every layout field doubled and halved."""
    for name in SIZES:
        for value in (getattr(layout, name) * 2, getattr(layout, name) // 2):
            changed = with_size(request, layout, name, value)
            if changed is not None:
                yield name, changed


def knob_options(request: Request, layout: Layout, knobs: Knobs) -> Iterator[tuple[str, Knobs]]:
    """Every knob at each of its other values, where the model and the layout have that knob at all."""
    moe, mla = request.model.is_moe, request.model.has_mla
    recompute: list[dict[str, Any]] = [{"full_uniform": 1}, {}]
    recompute += [{"recompute": ("layernorm",)}, {"recompute": ("mlp",)}]
    recompute += [{"recompute": ("moe_act",)}, {"recompute": ("moe",)}] if moe else []
    recompute += [{"recompute": ("mla_up_proj",)}] if mla else []
    off: dict[str, Any] = {"recompute": (), "full_uniform": 0, "full_block": 0}
    for fields in recompute:
        yield "recompute", dataclasses.replace(knobs, **(off | fields))
    choices: dict[str, Iterable[Any]] = {
        "cuda_graph": CudaGraph,
        "fsdp": (Fsdp.none, Fsdp.optim_grads_params),
        "optimizer_offload": (0.0, 1.0),
        "grad_dtype": ("fp32", "bf16"),
        "moment_dtype": ("fp32", "bf16"),
    }
    if moe and layout.ep * layout.etp > 1:
        choices["dispatcher"] = (Dispatcher.alltoall, Dispatcher.deepep, Dispatcher.hybridep)
        choices["ep_overlap"] = (False, True)
    if layout.cp > 1:
        choices["cp_comm"] = CpComm
    if layout.tp > 1:
        choices["tp_overlap"] = (False, True)
    choices |= _offloads(request.model, layout, knobs)
    for name, values in choices.items():
        for value in values:
            yield name, dataclasses.replace(knobs, **{name: value})


def _offloads(model: Model, layout: Layout, knobs: Knobs) -> dict[str, Iterable[Any]]:
    """Activations in host memory: by layers where nothing is recomputed and there is no pipeline, and by modules."""
    found: dict[str, Iterable[Any]] = {}
    recomputed = bool(knobs.recompute or knobs.full_uniform or knobs.full_block)
    if knobs.offload_layers or (layout.pp == 1 and not recomputed and not model.is_hybrid):
        found["offload_layers"] = [model.num_layers * quarters // 4 for quarters in range(4)]
    if not (knobs.offload_layers or knobs.full_uniform):
        experts = [EXPERT_INPUTS] if model.is_moe and "moe" not in knobs.recompute else []
        found["offload_modules"] = [(), ("core_attn", "attn_proj"), *experts]
    return found


def allowance(name: str, value: str) -> str:
    """The name in `ALLOWANCES` of a knob at a value that changes the mathematics, "" for others."""
    return next((one.name for one in ALLOWANCES.values() if (one.knob, one.value) == (name, value)), "")


def dials(request: Request, choice: Choice) -> tuple[Dial, ...]:
    """Every single change of the layout or of a knob: what fits by gain, then what does not by the memory it frees."""
    pairs: list[tuple[str, Layout, Knobs]] = [("", choice.layout, choice.knobs)]
    pairs += [(name, layout, choice.knobs) for name, layout in _layout_changes(request, choice.layout)]
    pairs += [
        (name, choice.layout, knobs)
        for name, knobs in knob_options(request, choice.layout, choice.knobs)
        if knobs != choice.knobs
    ]
    figures = price(request, [(layout, knobs) for _, layout, knobs in pairs])
    own = figures[0]
    found = []
    for (name, layout, knobs), one in list(zip(pairs, figures, strict=True))[1:]:
        before, after = turned_values(name, choice, layout, knobs)
        comparable = own.step_s > 0 and one.step_s > 0
        found.append(
            Dial(
                name=name,
                before=before,
                after=after,
                verdict=one.verdict,
                gain=own.step_s / one.step_s - 1 if comparable else None,
                freed_bytes=own.device_bytes - one.device_bytes if comparable else None,
                allow=allowance(name, after),
            )
        )
    return tuple(sorted(found, key=_standing))


def _standing(dial: Dial) -> tuple[float | str, ...]:
    """Where a dial stands: what fits by the tokens/s it brings, then what does not by the memory it frees."""
    gain, freed = -(dial.gain or 0.0), -(dial.freed_bytes or 0.0)
    if dial.verdict == "fits":
        return 0, gain, freed, dial.name
    return 1 if dial.verdict == "oom" else 2, freed, gain, dial.name


def turned_values(name: str, choice: Choice, layout: Layout, knobs: Knobs) -> tuple[str, str]:
    """A dial before and after as words."""
    if name in SIZES:
        return str(getattr(choice.layout, name)), str(getattr(layout, name))
    return shown_word(knob_words(choice.knobs)[name]), shown_word(knob_words(knobs)[name])
