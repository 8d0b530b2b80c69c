"""`advisor goodput`: days, GPU-hours and cost of a token budget, failures included."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli import render
from advisor.cli.options import SectionCommand, output_options, with_options
from advisor.cli.parameters import OneOf
from advisor.cli.survival import (
    CANDIDATE,
    HAZARDS,
    LAUNCHERS,
    PLAN_ARGUMENT,
    WISHES,
    chosen_of,
    hazards_of,
    valued,
    wishes_of,
)
from advisor.errors import EXIT_OK

OPTIONS = (
    valued("tokens", "15T", "Job", "Tokens to train on; k, M, B and T are powers of a thousand.", required=True),
    valued("gpu-hour-price", "X", "Job", "Price of a GPU hour, spare nodes included."),
    CANDIDATE,
    *HAZARDS,
    valued("launcher", f"[{'|'.join(LAUNCHERS)}]", "Mechanisms", "What starts the ranks.", type=OneOf(LAUNCHERS)),
    *WISHES,
    valued("simulated-days", "N", "Simulation", "Length of a simulated period (default 30)."),
    valued("replicas", "N", "Simulation", "Periods simulated to confirm the formula (default 8, 0 = none)."),
    valued("seed", "N", "Simulation", "Of the simulation (default 0)."),
)


@click.command("goodput", cls=SectionCommand)
@PLAN_ARGUMENT
@with_options(OPTIONS)
@output_options
def command(
    output: render.Output, plan: str, tokens: str, gpu_hour_price: str | None, launcher: str | None, **options: Any
) -> int:
    """How long a token budget takes and what it costs when machines fail.

    The share of the time that makes progress comes from a closed form and is confirmed by an event simulation.
    """
    from advisor.cli.pages.goodput import answer, document, parse_tokens
    from advisor.configure.resiliency import resiliency
    from advisor.search.values import real, whole

    budget = parse_tokens(tokens)
    price = None if gpu_hour_price is None else real("gpu_hour_price", gpu_hour_price, 0.0, 1e6)
    days = real("simulated_days", options.pop("simulated_days") or 30, 1.0, 3650.0)
    replicas = whole("replicas", _or(options.pop("replicas"), 8), 0, 1000)
    seed = whole("seed", _or(options.pop("seed"), 0), 0, 2**32)
    chosen = chosen_of(plan, options)
    met = hazards_of(chosen, options)
    in_process = options["in_process_restart"]
    settings = resiliency(chosen, wishes_of(options, launcher or ("srun" if in_process else "ft_launcher")), met)
    found = answer(settings, budget, price, days=days, replicas=replicas, seed=seed)
    render.show(document(found), output)
    return EXIT_OK


def _or(value: str | None, default: int) -> str | int:
    return default if value is None else value
