"""The page of resiliency settings: values with reasons, timeouts in order, what they bring, what else could be done."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import count, figure, percent
from advisor.cli.pages.parts import findings_table
from advisor.configure.checkpoint import nodes_of, size_words
from advisor.configure.recovery import Outcome, alternatives, best_spares, rank_setups, spare_table
from advisor.configure.resiliency import Resiliency, Value
from advisor.cost.goodput import Goodput

SCHEMA_VERSION = 1
HOUR_S = 3600.0
TO_FROM_SHARES = (
    ("productive", "progress that is kept"),
    ("lost_work", "work done again"),
    ("recovery", "detecting and restarting"),
    ("checkpoint", "standing still for snapshots"),
    ("slow", "waiting for slow ranks"),
    ("no_nodes", "waiting for nodes"),
)


def ranked(found: Resiliency) -> tuple[Outcome, ...]:
    """Other setups with their best count of spare nodes, best first."""
    chosen, met = found.chosen, found.met
    setups = [
        dataclasses.replace(setup, spares=best_spares(chosen, setup, met))
        for setup in alternatives(with_local=found.setup.local)
    ]
    return rank_setups(chosen, met, setups)


def document(found: Resiliency) -> Document:
    """Settings for people and for machines."""
    return Document(tuple(_blocks(found)), record(found), [_value(one) for one in found.values], _hints(found))


def _hints(found: Resiliency) -> tuple[str, ...]:
    source = shlex.quote(found.chosen.source)
    return (
        f"next: advisor resiliency {source} --to bridge   or   advisor launch {source} --to slurm --style"
        f" {found.wishes.launcher if found.wishes.launcher != 'nemo-run' else 'ft_launcher'}",
    )


def _blocks(found: Resiliency) -> Iterator[Block]:
    chosen, met = found.chosen, found.met
    yield Line(
        f"resiliency: {chosen.model.name} on {count(chosen.cluster.gpus)} x {chosen.cluster.gpu.name}", "heading"
    )
    yield Facts(
        "what the job meets",
        (
            ("hours between interruptions", figure(met.mtbf_s / HOUR_S), met.mtbf_reason),
            ("checkpoint", size_words(met.cost), met.storage.origin),
            ("step s", figure(chosen.step.step_s), f"{figure(chosen.step.low_s)} to {figure(chosen.step.high_s)}"),
        ),
    )
    yield values_table("settings", found.values)
    if found.environment:
        yield values_table("environment", found.environment)
    yield _timeouts(found)
    yield from findings_table(found.findings)
    yield from goodput_blocks(found.result.goodput)
    yield outcome_table("other ways, spare nodes chosen for each", ranked(found), nodes_of(chosen))
    yield spare_block(found)
    yield Line(
        "rates and times are measured or assumed as presets/reliability.yaml says; per node paid = productive"
        " share x nodes / (nodes + spares)",
        "dim",
    )


def values_table(title: str, values: tuple[Value, ...]) -> Table:
    """Fields with value and reason."""
    rows = tuple((one.path, str(one.value), one.reason) for one in values)
    return Table(title, (Column("field", "name"), Column("value", "text"), Column("because", "text")), rows)


def _timeouts(found: Resiliency) -> Facts:
    limits = found.limits
    rows = []
    if found.wishes.uses_ft:
        rows += [
            ("ft_launcher sections s", limits.sections, f"outside {limits.outside_s}; 5 x the slow end of a step"),
            ("restarts in the job", count(found.max_restarts), "expected in a day and three standard deviations"),
        ]
    if found.wishes.in_process:
        order = f"{limits.soft_s:g} < {limits.hard_s:g} < {limits.barrier_s:g}"
        rows.append(("soft < hard < barrier s", order, "and below NCCL's watchdog"))
    rows.append(("NCCL watchdog min", count(limits.nccl_min), "last"))
    if found.value("train.exit_signal_handler"):
        rows.append(("signal before the limit s", count(limits.preempt_lead_s), "two steps and a save"))
    return Facts("timeouts, in the order in which they must fire", tuple(rows))


def goodput_blocks(found: Goodput) -> Iterator[Block]:
    """Where the time goes, in per cent."""
    rows = tuple((words, percent(getattr(found, name)), "") for name, words in TO_FROM_SHARES)
    yield Table(
        "where the time goes", (Column("", "text"), Column("%")), tuple((name, share) for name, share, _ in rows)
    )


def outcome_table(title: str, outcomes: tuple[Outcome, ...], nodes: int) -> Table:
    """Setups with what they bring."""
    columns = (
        Column("setup", "text"), Column("spare\nnodes"), Column("save every\nsteps"), Column("productive\n%"),
        Column("per node\npaid %"), Column("lost in a week\nh"),
    )  # fmt: skip
    rows = tuple(
        (
            one.setup.words,
            count(one.setup.spares),
            count(one.interval.steps),
            percent(one.goodput.productive),
            percent(one.goodput.productive * nodes / (nodes + one.setup.spares)),
            figure((1.0 - one.goodput.productive) * 7 * 24),
        )
        for one in outcomes
    )
    return Table(title, columns, rows)


def spare_block(found: Resiliency) -> Table:
    """Counts of spare nodes for the setup chosen."""
    outcomes = spare_table(found.chosen, found.setup, found.met)
    rows = tuple(
        (
            count(one.setup.spares),
            percent(one.goodput.no_nodes),
            percent(one.goodput.productive),
            percent(one.value),
        )
        for one in outcomes
    )
    columns = (
        Column("spare nodes"),
        Column("waiting for\nnodes %"),
        Column("productive\n%"),
        Column("per node\npaid %"),
    )
    marked = next((i for i, one in enumerate(outcomes) if one.setup.spares == found.setup.spares), None)
    return Table("spare nodes (a broken node is away for a day)", columns, rows, marked)


def _value(one: Value) -> dict[str, Any]:
    return {"field": one.path, "value": one.value, "reason": one.reason}


def outcome_record(one: Outcome) -> dict[str, Any]:
    """JSON form of one outcome."""
    return {
        "setup": dataclasses.asdict(one.setup),
        "words": one.setup.words,
        "save_every_steps": one.interval.steps,
        "goodput": dataclasses.asdict(one.goodput),
        "productive_per_node_paid": one.value,
    }


def record(found: Resiliency) -> dict[str, Any]:
    """JSON form of the settings."""
    return {
        "schema_version": SCHEMA_VERSION,
        "plan": found.chosen.source,
        "candidate": found.chosen.rank,
        "target": f"bridge-{found.wishes.target}",
        "mtbf_s": found.met.mtbf_s,
        "mtbf_reason": found.met.mtbf_reason,
        "failure_rate_per_gpu_hour": found.met.rate.per_gpu_s * HOUR_S,
        "checkpoint": dataclasses.asdict(found.met.cost),
        "settings": [_value(one) for one in found.values],
        "environment": {one.path: str(one.value) for one in found.environment},
        "timeouts": {**dataclasses.asdict(found.limits), "sections": found.limits.sections},
        "max_restarts": found.max_restarts,
        "spare_nodes": found.setup.spares,
        "findings": [dataclasses.asdict(one) for one in found.findings],
        "result": outcome_record(found.result),
        "alternatives": [outcome_record(one) for one in ranked(found)],
        "spares": [outcome_record(one) for one in spare_table(found.chosen, found.setup, found.met)],
    }


def text(found: Resiliency, to: str) -> str:
    """The settings alone, for one consumer."""
    from advisor.export.resiliency import (
        bridge_overrides,
        bridge_python,
        ft_launcher_flags,
        megatron_flags,
        nemo_run_plugins,
    )

    if to == "bridge":
        return bridge_python(found)
    if to == "bridge-overrides":
        return "\n".join(map(shlex.quote, bridge_overrides(found)))
    if to == "megatron-lm":
        return " ".join(map(shlex.quote, megatron_flags(found)))
    if to == "plugins":
        return nemo_run_plugins(found)
    if to == "launcher":
        flags = ft_launcher_flags(found.limits.sections, found.limits.outside_s, found.max_restarts)
        return " ".join(map(shlex.quote, flags))
    return "\n".join(f"export {one.path}={shlex.quote(str(one.value))}" for one in found.environment)
