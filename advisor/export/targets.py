"""The targets that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable

from advisor.configure.chosen import Chosen
from advisor.configure.resolved import Asked
from advisor.errors import InputError
from advisor.export.bridge import bridge_text
from advisor.export.environment import environment_text
from advisor.export.megatron import megatron_text
from advisor.export.model_fields import Facts, model_facts
from advisor.export.overrides import overrides_text
from advisor.export.subject import Subject, subject
from advisor.export.yaml_form import yaml_text
from advisor.spec.load.fields import did_you_mean

Files = dict[str, str]
TARGETS: dict[str, Callable[[Subject, Facts], Files]] = {
    "bridge": bridge_text,
    "bridge-overrides": lambda one, _facts: overrides_text(one),
    "megatron-lm": megatron_text,
    "env": lambda one, _facts: environment_text(one),
    "yaml": lambda one, _facts: yaml_text(one),
}


def export(chosen: Chosen, target: str, version: str | None = None, asked: Asked | None = None) -> Files:
    """Files by name, the first one the main text.

    `version` is of Bridge ("0.3", "0.6"; for megatron-lm of megatron-core, "0.16", "0.19"), the newest by default.
    Raises InputError for an unknown target or version, for a layout that the target would refuse and for a model that
    it cannot express.
    """
    if target not in TARGETS:
        raise InputError(f"--to {target} is not known", did_you_mean(target, TARGETS))
    if chosen.workload.mode != "train":
        raise InputError(f"{chosen.source} plans {chosen.workload.mode}, not training", "plan without --mode")
    facts = model_facts(chosen.model, str(chosen.request.settings["model"].value))
    return TARGETS[target](subject(chosen, target, version, asked), facts)
