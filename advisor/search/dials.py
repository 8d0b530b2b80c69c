"""Knobs as people write them: parsing, printing, and which knobs change the mathematics of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from advisor.errors import InputError
from advisor.search.values import choice, real, switch, whole, words
from advisor.spec.layout import (
    DTYPE_BYTES,
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
    CpComm,
    CudaGraph,
    Dispatcher,
    Fsdp,
    Knobs,
)

LAYOUT_DIALS = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "sp")
KNOB_DIALS = tuple(field.name for field in dataclasses.fields(Knobs) if not field.name.startswith("full_"))
LISTS = ("recompute", "offload_modules")


@dataclass(frozen=True, slots=True)
class Allowance:
    """A change of the mathematics that the search takes only when it is allowed.

    `knob` and `value` name a knob that becomes an axis of the search; without them the whole request changes.
    """

    name: str
    title: str
    knob: str = ""
    value: str = ""


ALLOWANCES = {
    one.name: one
    for one in (
        Allowance("grad-bf16", "gradients kept and reduced in bf16", "grad_dtype", "bf16"),
        Allowance("moment-bf16", "Adam moments in bf16 (precision-aware optimizer)", "moment_dtype", "bf16"),
        Allowance("fp8", "matrix multiplications in 8-bit floating point"),
        Allowance("token-drop", "tokens over the expert capacity are dropped (capacity factor 1)"),
        Allowance("gbs", "twice the global batch size"),
        Allowance("muon", "Muon in place of Adam"),
    )
}


def _enum(kind: type[IntEnum]) -> Callable[[str, object], IntEnum]:
    def parse(name: str, value: object) -> IntEnum:
        if isinstance(value, kind):
            return value
        text = str(value).replace("+", "_")
        return kind[choice(name, text, [one.name for one in kind])]

    return parse


def _fsdp(name: str, value: object) -> Fsdp:
    if isinstance(value, Fsdp):
        return value
    if str(value).lower() in {"true", "on", "yes", "1"}:
        return Fsdp.optim_grads_params
    if str(value).lower() in {"false", "off", "no", "0"}:
        return Fsdp.none
    return Fsdp[choice(name, value, [one.name for one in Fsdp])]


def _dtype(name: str, value: object) -> str:
    return choice(name, value, list(DTYPE_BYTES))


def _modules(name: str, value: object) -> tuple[str, ...]:
    """Offloaded modules in the order of a layer, from a list or from words joined by commas or plus signs."""
    parts = [part for word in words(name, value) for part in word.split("+") if part not in {"none", "off"}]
    found = {choice(name, part, OFFLOAD_MODULES) for part in parts}
    return tuple(module for module in OFFLOAD_MODULES if module in found)


def _parsers() -> dict[str, Callable[[str, object], Any]]:
    found: dict[str, Callable[[str, object], Any]] = {
        "dispatcher": _enum(Dispatcher),
        "cuda_graph": _enum(CudaGraph),
        "cp_comm": _enum(CpComm),
        "fsdp": _fsdp,
        "optimizer_offload": lambda name, value: real(name, value, 0.0, 1.0),
        "optimizer_instances": whole,
        "offload_layers": lambda name, value: whole(name, value, 0, 10_000),
        "offload_modules": _modules,
    }
    for field in dataclasses.fields(Knobs):
        if field.type == "bool":
            found[field.name] = switch
        elif field.name.endswith("_dtype"):
            found[field.name] = _dtype
    return found


PARSERS = _parsers()


def recompute_fields(value: object) -> dict[str, Any]:
    """Knob fields of a recompute choice: "none", modules, "full", "full-uniform:N" or "full-block:N"."""
    parts = tuple(part for word in words("recompute", value) for part in word.split("+"))
    plain = tuple(part for part in parts if part not in {"none", "off"})
    fields: dict[str, Any] = {"recompute": (), "full_uniform": 0, "full_block": 0}
    if not plain:
        return fields
    head, _, count = plain[0].replace("_", "-").partition(":")
    if head in {"full", "full-uniform", "full-block"}:
        if len(plain) > 1:
            raise InputError(f"recompute={value!r} mixes full and selective recompute", "choose one of them")
        fields["full_block" if head == "full-block" else "full_uniform"] = whole("recompute", count or 1, 1, 10_000)
        return fields
    modules = {choice("recompute", part, RECOMPUTE_MODULES) for part in plain}
    fields["recompute"] = tuple(module for module in RECOMPUTE_MODULES if module in modules)
    return fields


def knob_fields(given: Mapping[str, object]) -> dict[str, Any]:
    """Fields of `Knobs` from settings by name; names that are no knob are left out."""
    fields: dict[str, Any] = {}
    for name in KNOB_DIALS:
        if name not in given:
            continue
        if name == "recompute":
            fields.update(recompute_fields(given[name]))
        else:
            fields[name] = PARSERS[name](name, given[name])
    return fields


def fixed_fields(given: Mapping[str, object]) -> dict[str, Any]:
    """Layout fields and knob fields that a search must keep; an unknown name raises UnknownNameError."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        field = choice("fix", name, (*LAYOUT_DIALS, *KNOB_DIALS)).replace("-", "_")
        if field == "sp":
            fields[field] = switch(field, value)
        elif field in LAYOUT_DIALS:
            fields[field] = whole(field, value, 1, 1_000_000)
        else:
            fields.update(knob_fields({field: value}))
    return fields


def recompute_names(knobs: Knobs) -> tuple[str, ...]:
    """The recompute choice as words: modules, or one of full-uniform:N and full-block:N."""
    if knobs.full_uniform:
        return (f"full-uniform:{knobs.full_uniform}",)
    if knobs.full_block:
        return (f"full-block:{knobs.full_block}",)
    return knobs.recompute


def knob_words(knobs: Knobs) -> dict[str, Any]:
    """Every knob as a plain value: names instead of codes, the recompute choice as a list of words."""
    found: dict[str, Any] = {"recompute": list(recompute_names(knobs))}
    for name in KNOB_DIALS:
        if name != "recompute":
            value = getattr(knobs, name)
            found[name] = value.name if isinstance(value, IntEnum) else list(value) if name in LISTS else value
    return found


def shown_word(value: object) -> str:
    """One value of `knob_words` for people: moe_act+mlp, on, off, none."""
    if isinstance(value, list):
        return "+".join(value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
