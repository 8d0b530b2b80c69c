"""What a job's log says about a configuration: that it is of this job, and which settings came out otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advisor.check.readback import Observed, Seen
from advisor.check.subject.effective import NAMES
from advisor.check.subject.form import Settle
from advisor.configure.resolved import Field
from advisor.errors import InputError
from advisor.rules.lint.setup import SHORT
from advisor.search.single import Choice
from advisor.spec.layout import Dispatcher, Knobs, Layout

IDENTITY = ("tp", "pp", "cp", "ep", "mbs", "gbs")
"""Sizes that a log and a configuration of the same job share."""
FLEX = "model.moe_flex_dispatcher_backend"
DISPATCHER = "model.moe_token_dispatcher_type"


def require_same_job(observed: Observed, choice: Choice, path: str) -> None:
    """InputError where the log ran other sizes than the configuration states."""
    for name in IDENTITY:
        seen = observed.settings.get(SHORT[name])
        value = getattr(choice.layout, name)
        if seen is not None and type(seen.value) is int and seen.value != value:
            raise InputError(
                f"the log ran {name} {seen.value} ({seen.file}:{seen.line}), {path} states {value}",
                "give the configuration that this log is of",
            )
    if observed.gpus is not None and int(observed.gpus.value) != choice.layout.gpus:
        raise InputError(
            f"the log ran on {observed.gpus.value} GPUs, {path} describes {choice.layout.gpus}",
            f"--gpus {observed.gpus.value}",
        )


def forced(observed: Observed, held: Knobs) -> dict[str, tuple[Any, Seen]]:
    """Knobs that came out otherwise than `held` in the log, with the line that says so."""
    found: dict[str, tuple[Any, Seen]] = {}
    for knob, (section, field) in NAMES.items():
        seen = observed.settings.get(f"{section}.{field}")
        if seen is not None and type(seen.value) is bool and seen.value != getattr(held, knob):
            found[knob] = (seen.value, seen)
    kind = observed.settings.get(DISPATCHER)
    if kind is not None:
        backend = observed.settings.get(FLEX)
        name = backend.value if kind.value == "flex" and backend is not None else kind.value
        if name in Dispatcher.__members__ and held.dispatcher not in (Dispatcher.none, Dispatcher[str(name)]):
            found["dispatcher"] = (Dispatcher[str(name)], kind)
    return found


def settle_as_seen(settle: Settle, asked: Choice, seen: Mapping[str, tuple[Any, Seen]]) -> Settle:
    """`settle`, but as the log showed it wherever the parallel sizes are those that ran."""
    values = {name: value for name, (value, _) in seen.items()}
    ran = _sizes(asked.layout)

    def held(layout: Layout, knobs: Knobs) -> Knobs:
        settled = settle(layout, knobs)
        same = {name: value for name, value in values.items() if getattr(knobs, name) == getattr(asked.knobs, name)}
        return replace(settled, **same) if _sizes(layout) == ran else settled

    return held


def _sizes(layout: Layout) -> tuple[int | bool, ...]:
    return layout.tp, layout.sp, layout.pp, layout.vpp, layout.cp, layout.ep, layout.dp


def seen_fields(
    fields: tuple[Field, ...], asked: Knobs, seen: Mapping[str, tuple[Any, Seen]], observed: Observed
) -> tuple[Field, ...]:
    """The fields with those replaced that the log contradicts; what it says to be off names the line as source."""
    said = {}
    for knob, (value, line) in seen.items():
        section, name = NAMES.get(knob, tuple(DISPATCHER.split(".")))
        wanted = getattr(asked, knob)
        lost = wanted != value
        why = line.why or "the log says so"
        source = f"{line.file}:{line.line}"
        shown = value.name if isinstance(value, Dispatcher) else value
        before = wanted.name if isinstance(wanted, Dispatcher) else wanted
        said[f"{section}.{name}"] = Field(
            section, name, before, shown, "silent" if lost else "automatic", f"{why}: {line.text.strip()}", source
        )
    kept = tuple(said[one.path] if one.path in said else _confirmed(one, observed) for one in fields)
    known = {one.path for one in fields}
    return kept + tuple(one for path, one in said.items() if path not in known)


def _confirmed(field: Field, observed: Observed) -> Field:
    """A field that is silently off, with the line of the log that says so."""
    seen = observed.settings.get(field.path)
    said = seen is not None and (seen.off or seen.how == "message") and seen.value == field.effective
    if seen is None or not said or field.outcome != "silent":
        return field
    return replace(field, source=f"{seen.file}:{seen.line}: {seen.text.strip()}"[:160])
