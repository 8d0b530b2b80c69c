"""The form of a rule over a configuration, and how its texts are filled in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from advisor.rules.lint.releases import hold
from advisor.rules.lint.setup import SHORT, Setup, full_name
from advisor.spec.plan import Severity

TC = "ML:megatron/core/transformer/transformer_config.py"
MPC = "ML:megatron/core/model_parallel_config.py"
OPT = "ML:megatron/core/optimizer/optimizer_config.py"
DDP = "ML:megatron/core/distributed/distributed_data_parallel_config.py"
ARG = "ML:megatron/training/arguments.py validate_args"
CFG = "MB:src/megatron/bridge/training/config.py ConfigContainer.validate"
COMM = "MB:src/megatron/bridge/training/comm_overlap.py"
SKILLS = "MB:skills/nemo-mbridge"
SLURM = "requirements/multi_node_slurm.txt"
RESILIENCY = "requirements/resiliency.txt"
OVERLAP = "requirements/tp_dp_comm_overlap.txt"
EVERY = "megatron-core >=0.16, bridge >=0.3"
SINCE_06 = "megatron-core >=0.16, bridge >=0.6"
AFTER_06 = "bridge >0.6 (main at 067f987d)"
PERF = "MB:src/megatron/bridge/perf_recipes (env_vars of 430 recipes)"

_FIELD = re.compile(r"\{([\w.-]+)\}")


class Hit(NamedTuple):
    """What a predicate may return instead of True: a message, a fix and the file and line of its own."""

    message: str = ""
    fix: str = ""
    file: str = ""
    line: int = 0


Answer = bool | str | Hit | None


@dataclass(frozen=True, slots=True)
class ConfigRule:
    """One rule asked of a `Setup`: an object of the same family as `advisor.rules.rule.Rule` (see `AnyRule`).

    `broken` returns something true where the rule is broken: True (the message is `says`), a message, or a `Hit`.
    `says` and `fix` name settings in braces, which are filled in with their values: "TP {tp}", "{ddp.bucket_size}".
    `targets` names whose rule it is; a rule of megatron-lm is not asked of a Bridge configuration. `versions` names the
    releases that have it (see `releases.hold`); it is not asked of a configuration that is meant for others.
    """

    id: str
    severity: Severity
    stage: str
    targets: tuple[str, ...]
    source: str
    broken: Callable[[Setup], Any]
    says: str
    fix: str
    versions: str = EVERY

    def applies(self, setup: Setup) -> bool:
        """Whether it is a rule of the framework (or of what lies below and around every one) and of its release."""
        ours = setup.framework in self.targets or not {"bridge", "megatron-lm"}.intersection(self.targets)
        return ours and hold(self.versions, setup.releases)

    @property
    def summary(self) -> str:
        """`says` with the names of settings in angle brackets in place of values."""
        return _FIELD.sub(_named, self.says)

    @property
    def hint(self) -> str:
        """`fix` with the names of settings in angle brackets in place of values."""
        return _FIELD.sub(_named, self.fix)


def _named(found: re.Match[str]) -> str:
    return f"<{found[1].removeprefix('fact.').removeprefix('env.')}>"


def shown(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "not set" if value is None else str(value)


def fill(text: str, setup: Setup) -> str:
    """`text` with `{name}` replaced by values: short names, settings, `gpus`, `dp`, `env.NAME`."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name in ("gpus", "dp", "etp", "nvlink_domain", "gpus_per_node", "gpu_name"):
            return shown(getattr(setup, name))
        if name.startswith("env."):
            return shown(setup.variable(name[4:]))
        if name.startswith("fact."):
            return shown(setup.fact(name[5:]))
        if name in SHORT and name not in ("sp", "seq", "mbs", "gbs", "layers", "experts"):
            return shown(setup.size(name))
        return shown(setup.get(full_name(name)))[:80]

    return _FIELD.sub(value, text)


def rule(  # noqa: PLR0917 (rules are rows of a table)
    id: str,
    severity: Severity,
    stage: str,
    targets: str,
    source: str,
    broken: Callable[[Setup], Any],
    says: str,
    fix: str,
    versions: str = EVERY,
) -> ConfigRule:
    """A `ConfigRule` with `targets` as words: tables of rules stay readable."""
    return ConfigRule(id, severity, stage, tuple(targets.split()), source, broken, says, fix, versions)
