"""What a configuration says, under one name per setting, whatever framework and file it came from.

Keys are those of a Megatron-Bridge configuration (`model.tensor_model_parallel_size`, `ddp.overlap_grad_reduce`);
Megatron-LM flags are kept under the same keys. Unknown stays unknown: `get` returns None for a setting that neither the
files nor defaults of the framework decide, and predicates are written so that an unknown value breaks no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from advisor.rules.lint.releases import Release

Framework = Literal["bridge", "megatron-lm", "mcore"]

_LARGEST = 10**15
_ETP_IS_ONE: Release = (0, 6)

SHORT = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "sp": "model.sequence_parallel",
    "mbs": "train.micro_batch_size",
    "gbs": "train.global_batch_size",
    "seq": "model.seq_length",
    "experts": "model.num_moe_experts",
    "layers": "model.num_layers",
}
"""Short names that rules use for the settings they ask for most."""


def full_name(key: str) -> str:
    """The key behind a short name; names without a section belong to the model."""
    return SHORT.get(key) or (key if "." in key else f"model.{key}")


@dataclass(frozen=True, slots=True)
class Value:
    """A stated value and where it stands: line 0 = no single line."""

    value: Any
    file: str = ""
    line: int = 0


@dataclass(slots=True, eq=False)
class Setup:
    """One job's settings.

    `values` are stated in files, `base` are those of the recipe the files start from, `defaults` what the framework
    takes otherwise. `env` holds the environment a launch file sets (None = unset there); `env_known` says that the
    files include the launch script, so that a variable it does not name is taken as unset. `packages` maps te and
    others to a version tuple (None = stated as missing). `releases` are those of Bridge and Megatron-Core that the job
    is meant for, where that is stated. `facts` are what readers noticed beyond settings.
    """

    framework: Framework = "bridge"
    values: dict[str, Value] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    env: dict[str, Value] = field(default_factory=dict)
    env_known: bool = False
    packages: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    releases: Mapping[str, Release] = field(default_factory=dict)
    facts: dict[str, Value] = field(default_factory=dict)
    gpus: int | None = None
    capability: tuple[int, int] | None = None
    gpu_name: str = ""
    nvlink_domain: int | None = None
    gpus_per_node: int | None = None
    asked: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value that holds before the framework changes anything; None where it is not known or None."""
        key = full_name(key)
        self.asked.append(key)
        if key in self.values:
            return self.values[key].value
        if key in self.base:
            return self.base[key]
        return self.defaults.get(key)

    def stated(self, key: str) -> Any:
        """The value that the files state; None where they do not."""
        key = full_name(key)
        self.asked.append(key)
        return self.values[key].value if key in self.values else None

    def given(self, *keys: str) -> bool:
        """Whether the files state one of the settings, None included."""
        self.asked += map(full_name, keys)
        return any(full_name(key) in self.values for key in keys)

    def known(self, key: str) -> bool:
        """Whether anything decides the setting, also if it is None."""
        key = full_name(key)
        self.asked.append(key)
        return key in self.values or key in self.base or key in self.defaults

    def has(self, section: str) -> bool:
        """Whether the configuration holds the section (`comm_overlap`, `ft`) and it is not None."""
        self.asked.append(section)
        if section in self.values:
            return self.values[section].value is not None
        if any(key.startswith(section + ".") for key in self.values):
            return True
        return self.base.get(section) is not None

    def number(self, key: str) -> int | float | None:
        """A number, or None where the setting is unknown, None, absurdly large or something else."""
        value = self.get(key)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return value if plain and -_LARGEST < value < _LARGEST else None

    def n(self, key: str) -> int | float:
        """A number, 0 where the setting is unknown, None or something else."""
        return self.number(key) or 0

    def size(self, key: str) -> int:
        """A size of a parallel group: 1 where it is unknown or None."""
        value = self.number(key)
        return int(value) if value is not None and value >= 1 else 1

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.size("tp")

    @property
    def pp(self) -> int:
        """Pipeline-parallel size."""
        return self.size("pp")

    @property
    def vpp(self) -> int:
        """Virtual stages per pipeline rank, 1 without interleaving."""
        return self.size("vpp")

    @property
    def cp(self) -> int:
        """Context-parallel size."""
        return self.size("cp")

    @property
    def ep(self) -> int:
        """Expert-parallel size."""
        return self.size("ep")

    @property
    def etp(self) -> int:
        """Expert-tensor-parallel size: TP where it is not set, but 1 in Bridge with expert parallelism (since 0.6)."""
        if self.number("etp") is not None:
            return self.size("etp")
        one = self.framework == "bridge" and self.ep > 1 and not self.given("etp")
        return 1 if one and self.releases.get("bridge", _ETP_IS_ONE) >= _ETP_IS_ONE else self.tp

    @property
    def dp(self) -> int | None:
        """Data-parallel size; None where the number of GPUs is unknown or no multiple of TP x PP x CP."""
        unit = self.tp * self.pp * self.cp
        return self.gpus // unit if self.gpus and self.gpus % unit == 0 else None

    def one(self, key: str) -> bool:
        """Known to be at most 1 (None counts as 1 where it is decided)."""
        return self.known(key) and self.size(key) <= 1

    def on(self, key: str) -> bool:
        """Known to be switched on."""
        return self.get(key) not in (None, False, 0, "none", "", []) and self.get(key) is not None

    def off(self, key: str) -> bool:
        """Known to be switched off."""
        return self.known(key) and not self.on(key)

    def isnt(self, key: str, *values: Any) -> bool:
        """Known, and none of `values`."""
        return self.known(key) and self.get(key) not in values

    def items(self, key: str) -> tuple[str, ...]:
        """A list of words; () where it is unknown or None."""
        value = self.get(key)
        if isinstance(value, str):
            return tuple(part for part in re.split(r"[\s,\[\]'\"]+", value) if part)
        return tuple(map(str, value)) if isinstance(value, Iterable) else ()

    def variable(self, name: str) -> str | None:
        """An environment variable as the files set it; None where they unset it or do not name it."""
        self.asked.append(f"env.{name}")
        return self.env[name].value if name in self.env else None

    def unset(self, name: str) -> bool:
        """Known not to be set: unset in a file, or not named in files that include the launch script."""
        self.asked.append(f"env.{name}")
        return self.env[name].value is None if name in self.env else self.env_known

    def older(self, package: str, *version: int) -> bool:
        """Whether a package is known to be older than `version`, or missing."""
        self.asked.append(f"package.{package}")
        if package not in self.packages:
            return False
        found = self.packages[package]
        return found is None or (bool(found) and found < version)

    def fact(self, name: str) -> Any:
        """Something a reader noticed; None where it did not."""
        self.asked.append(f"fact.{name}")
        return self.facts[name].value if name in self.facts else None

    def place(self, keys: Iterable[str]) -> tuple[str, int]:
        """File and line of the last of `keys` that has one."""
        stores = (("env.", self.env), ("fact.", self.facts))
        best = ("", 0)
        for key in keys:
            value = self.values.get(key)
            for prefix, store in stores:
                if key.startswith(prefix):
                    value = store.get(key[len(prefix) :])
            if value is not None and value.line and (not best[0] or value.line >= best[1] or value.file != best[0]):
                best = (value.file, value.line)
        return best
