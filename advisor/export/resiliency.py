"""Resiliency settings as text: Bridge overrides and Python, Megatron-LM flags, NeMo-Run plugins, ft_launcher flags."""

from __future__ import annotations

from typing import Any

from advisor.configure.job import preset
from advisor.configure.resiliency import Resiliency, Value
from advisor.export.words import hydra, python

CONFIG = "megatron.bridge.training.config"
FLAGS = "launch/resiliency_flags.yaml"
# Parts of the configuration that are None until they are made, with their classes.
CLASSES = {
    "ft": "FaultToleranceConfig",
    "nvrx_straggler": "NVRxStragglerDetectionConfig",
    "straggler": "StragglerDetectionConfig",
    "inprocess_restart": "InProcessRestartConfig",
}


def bridge_overrides(settings: Resiliency) -> tuple[str, ...]:
    """Overrides in Hydra's grammar, as Megatron-Bridge's scripts take them on the command line.

    Parts that are None in a recipe are built whole (`_target_`): a field of None cannot be set.
    """
    plain, made = _parts(settings)
    words = [f"{one.path}={hydra(one.value)}" for one in plain]
    for part, values in made.items():
        fields = {"_target_": f"{CONFIG}.{CLASSES[part]}", **{one.path.partition(".")[2]: one.value for one in values}}
        words.append(f"++{part}={hydra(fields)}")
    return tuple(words)


def _parts(settings: Resiliency) -> tuple[list[Value], dict[str, list[Value]]]:
    """Fields of parts that every recipe has, and fields by part of those that may be None."""
    plain: list[Value] = []
    made: dict[str, list[Value]] = {}
    for one in settings.values:
        part = one.path.partition(".")[0]
        (made.setdefault(part, []) if part in CLASSES else plain).append(one)
    return plain, made


def bridge_python(settings: Resiliency) -> str:
    """Statements that set the fields on a ConfigContainer called `cfg`; parts that may be None are constructed."""
    plain, made = _parts(settings)
    lines = []
    if made:
        lines += [f"from {CONFIG} import (", *(f"    {CLASSES[part]}," for part in made), ")", ""]
    lines += [f"cfg.{one.path} = {python(one.value)}  # {one.reason}" for one in plain]
    for part, values in made.items():
        lines += ["", f"cfg.{part} = {CLASSES[part]}("]
        lines += [f"    {one.path.partition('.')[2]}={python(one.value)},  # {one.reason}" for one in values]
        lines.append(")")
    return "\n".join(lines) + "\n"


def megatron_flags(settings: Resiliency) -> tuple[str, ...]:
    """Arguments of Megatron-LM; fields it has no flag for are left out (`without_flag` lists them)."""
    words: list[str] = []
    for one in settings.values:
        words += _flag(one)
    return tuple(words)


def without_flag(settings: Resiliency) -> tuple[str, ...]:
    """Fields that Megatron-LM has no flag for."""
    return tuple(one.path for one in settings.values if one.path not in preset(FLAGS)["flags"])


def _flag(one: Value) -> list[str]:
    form: dict[str, Any] = preset(FLAGS)["flags"].get(one.path, {})
    if "if_true" in form:
        return [f"--{form['if_true']}"] if one.value else []
    if "if_false" in form:
        return [] if one.value else [f"--{form['if_false']}"]
    if "value" in form:
        word = form.get("words", {}).get(one.value, one.value)
        return [f"--{form['value']}", f"{word:g}" if isinstance(word, float) else str(word)]
    return []


def nemo_run_plugins(settings: Resiliency) -> str:
    """Python that makes the NeMo-Run plugins of these settings; `plugins = []` where none applies."""
    limits, wishes = settings.limits, settings.wishes
    made: list[tuple[str, dict[str, Any]]] = []
    if wishes.uses_ft:
        first = limits.setup_s
        later = max(limits.step_s, limits.checkpointing_s, limits.outside_s)
        made.append(
            (
                "FaultTolerancePlugin",
                {
                    "enable_ft_package": True,
                    "calc_ft_timeouts": bool(settings.value("ft.calc_ft_timeouts")),
                    "num_in_job_restarts": settings.max_restarts,
                    "num_job_retries_on_failure": 2,
                    "initial_rank_heartbeat_timeout": first,
                    "rank_heartbeat_timeout": later,
                },
            )
        )
    if settings.value("train.exit_signal_handler"):
        made.append(("PreemptionPlugin", {"preempt_time": limits.preempt_lead_s, "enable_exit_handler": True}))
    if not made:
        return "plugins = []\n"
    names = ", ".join(sorted(name for name, _ in made))
    lines = [f"from megatron.bridge.recipes.run_plugins import {names}", "", "plugins = ["]
    for name, fields in made:
        lines += [f"    {name}(", *(f"        {key}={python(value)}," for key, value in fields.items()), "    ),"]
    return "\n".join([*lines, "]"]) + "\n"


def ft_launcher_flags(sections: str, outside_section_s: int, max_restarts: int) -> tuple[str, ...]:
    """Flags of ft_launcher (nvidia-resiliency-ext) that carry the timeouts."""
    return (
        f"--max-restarts={max_restarts}",
        f"--ft-rank_section_timeouts={sections}",
        f"--ft-rank_out_of_section_timeout={outside_section_s}",
    )
