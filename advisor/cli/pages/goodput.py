"""The page of goodput: days, GPU-hours, cost and lost time of a token budget, by closed form and by simulation."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import NONE, count, figure, percent
from advisor.cli.pages.resiliency import TO_FROM_SHARES, outcome_record, outcome_table, ranked, spare_block
from advisor.configure.checkpoint import nodes_of, size_words
from advisor.configure.resiliency import Resiliency
from advisor.errors import InputError
from advisor.simulate.failures import Simulated, simulate

SCHEMA_VERSION = 1
DAY_S, HOUR_S = 86_400.0, 3600.0
SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
TOKENS = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([kmbgt]?)")


@dataclass(frozen=True, slots=True)
class Answer:
    """A token budget in time and money. `ideal_days` is without any interruption; `price` is per GPU hour."""

    settings: Resiliency
    tokens: float
    price: float | None
    steps: float
    ideal_days: float
    days: float
    gpus_paid: int
    gpu_hours: float
    cost: float | None
    interruptions: float
    simulated: Simulated | None


def parse_tokens(text: str) -> float:
    """A number of tokens from 15T, 1.5e12, 300B or 1_000_000. Raises InputError."""
    found = TOKENS.fullmatch(text.strip().lower().replace("_", "").replace(",", ""))
    tokens = float(found[1]) * SCALES[found[2]] if found else 0.0
    if not 1.0 <= tokens <= 1e18:
        raise InputError(f"tokens={text!r} is not a number of tokens", "for example --tokens 15T or 300B")
    return tokens


def answer(
    settings: Resiliency, tokens: float, price: float | None, *, days: float, replicas: int, seed: int
) -> Answer:
    """Time and money of `tokens`, with a simulation of `replicas` periods of `days`."""
    chosen, job = settings.chosen, settings.result.job
    per_step = chosen.layout.gbs * chosen.workload.seq_len
    steps = tokens / per_step
    ideal_s = steps * chosen.step.step_s
    real_s = ideal_s / max(settings.result.goodput.productive, 1e-12)
    nodes = nodes_of(chosen)
    per_node = chosen.cluster.gpus // nodes
    paid = chosen.cluster.gpus + settings.setup.spares * per_node
    gpu_hours = paid * real_s / HOUR_S
    played = simulate(job, nodes=nodes, days=days, replicas=replicas, seed=seed) if replicas else None
    return Answer(
        settings=settings, tokens=tokens, price=price, steps=steps, ideal_days=ideal_s / DAY_S, days=real_s / DAY_S,
        gpus_paid=paid, gpu_hours=gpu_hours, cost=None if price is None else price * gpu_hours,
        interruptions=real_s / job.mtbf_s * (1.0 - settings.result.goodput.no_nodes), simulated=played,
    )  # fmt: skip


def document(found: Answer) -> Document:
    """Goodput for people and for machines."""
    shown = record(found)
    hint = f"next: advisor resiliency {shlex.quote(found.settings.chosen.source)}"
    return Document(tuple(_blocks(found)), shown, [shown["result"]], (hint,))


def _blocks(found: Answer) -> Iterator[Block]:
    settings = found.settings
    chosen = settings.chosen
    yield Line(
        f"goodput: {figure(found.tokens / 1e12)} T tokens of {chosen.model.name} on {count(chosen.cluster.gpus)} x"
        f" {chosen.cluster.gpu.name}",
        "heading",
    )
    yield Facts("", tuple(_facts(found)))
    yield _shares(found)
    nodes = nodes_of(chosen)
    yield outcome_table("settings, spare nodes chosen for each", ranked(settings), nodes)
    yield spare_block(settings)


def _facts(found: Answer) -> Iterator[tuple[str, str, str]]:
    settings, good = found.settings, found.settings.result.goodput
    spread = f"{figure(found.ideal_days)} without interruptions; step {figure(settings.chosen.step.step_s)} s"
    yield "days", figure(found.days), spread
    yield "steps", count(round(found.steps)), f"of {count(settings.chosen.layout.gbs)} sequences"
    paid = f"{count(found.gpus_paid)} GPUs paid for, {count(settings.setup.spares)} spare nodes"
    yield "GPU-hours", count(round(found.gpu_hours)), paid
    if found.cost is not None:
        yield "cost", count(round(found.cost)), f"at {figure(found.price)} per GPU hour"
    yield "productive %", percent(good.productive), settings.setup.words
    yield "lost days", figure(found.days * (1.0 - good.productive)), f"in {figure(found.interruptions)} interruptions"
    yield "hours between", figure(settings.met.mtbf_s / HOUR_S), settings.met.mtbf_reason
    yield "checkpoint", size_words(settings.met.cost), f"every {count(settings.result.interval.steps)} steps"


def _shares(found: Answer) -> Table:
    played, good = found.simulated, found.settings.result.goodput
    rows = tuple(
        (
            words,
            percent(getattr(good, name)),
            NONE if played is None else percent(getattr(played.goodput, name)),
            figure(getattr(good, name) * found.days),
        )
        for name, words in TO_FROM_SHARES
    )
    title = "where the time goes"
    if played is not None:
        nodes = nodes_of(found.settings.chosen)
        title += (
            f"; simulated: {count(played.replicas)} x {figure(played.days)} days on {count(nodes)} nodes, productive"
            f" +- {percent(played.error)} points"
        )
    columns = (Column("", "text"), Column("formula\n%"), Column("simulated\n%"), Column("days"))
    return Table(title, columns, rows)


def record(found: Answer) -> dict[str, Any]:
    """JSON form of the answer; times in days and hours as named, money in the unit of the price."""
    settings, played = found.settings, found.simulated
    return {
        "schema_version": SCHEMA_VERSION,
        "plan": settings.chosen.source,
        "candidate": settings.chosen.rank,
        "result": {
            "tokens": found.tokens,
            "steps": found.steps,
            "ideal_days": found.ideal_days,
            "days": found.days,
            "lost_days": found.days * (1.0 - settings.result.goodput.productive),
            "gpu_hours": found.gpu_hours,
            "gpus_paid": found.gpus_paid,
            "cost": found.cost,
            "gpu_hour_price": found.price,
            "productive": settings.result.goodput.productive,
            "interruptions": found.interruptions,
            "mtbf_s": settings.met.mtbf_s,
            "spare_nodes": settings.setup.spares,
            "save_every_steps": settings.result.interval.steps,
        },
        "mtbf_reason": settings.met.mtbf_reason,
        "goodput": dataclasses.asdict(settings.result.goodput),
        "simulated": None
        if played is None
        else {
            "goodput": dataclasses.asdict(played.goodput),
            "standard_error": played.error if played.replicas > 1 else None,
            "interruptions": played.interruptions,
            "days": played.days,
            "replicas": played.replicas,
        },
        "alternatives": [outcome_record(one) for one in ranked(settings)],
    }
