"""Failure rates, restart times and storage speeds from presets/reliability.yaml, each with its kind and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

from advisor import data
from advisor.search.values import choice
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.plan import Kind

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of the table with where it comes from; the unit is in the name of the section."""

    value: float
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Rate:
    """Interruptions per GPU and second, all causes, and the share of them that take a node away."""

    name: str
    per_gpu_s: float
    hardware_share: float
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class ReliabilityFacts:
    """The whole table: `times_s`, `shares`, `hours` and `storage` (GB/s per node) by name."""

    rates: MappingProxyType[str, Rate]
    default_rate: str
    times_s: MappingProxyType[str, Fact]
    shares: MappingProxyType[str, Fact]
    hours: MappingProxyType[str, Fact]
    storage: MappingProxyType[str, Fact]
    published: MappingProxyType[str, Mapping[str, Any]]

    def rate(self, name: str | None = None) -> Rate:
        """A failure rate by name, the default one for None; UnknownNameError with the closest names."""
        return self.rates[choice("rate", name or self.default_rate, list(self.rates))]

    def seconds(self, name: str) -> float:
        """A restart time."""
        return self.times_s[name].value

    def share(self, name: str) -> float:
        """A share between 0 and 1."""
        return self.shares[name].value

    def hour(self, name: str) -> float:
        """A long time, in seconds."""
        return self.hours[name].value * SECONDS_PER_HOUR


def _facts(section: Mapping[str, Any]) -> MappingProxyType[str, Fact]:
    return MappingProxyType(
        {name: Fact(float(one["value"]), cast("Kind", one["kind"]), one["source"]) for name, one in section.items()}
    )


@lru_cache(maxsize=1)
def reliability_facts() -> ReliabilityFacts:
    """The table of presets/reliability.yaml; EnvironmentMissingError when no presets are found."""
    table = read_yaml_mapping(data.require("presets", "reliability.yaml"))
    rates = {
        name: Rate(
            name, float(one["per_gpu_hour"]) / SECONDS_PER_HOUR, one["hardware_share"], one["kind"], one["source"]
        )
        for name, one in table["rates"].items()
    }
    return ReliabilityFacts(
        rates=MappingProxyType(rates),
        default_rate=table["default_rate"],
        times_s=_facts(table["times_s"]),
        shares=_facts(table["shares"]),
        hours=_facts(table["hours"]),
        storage=_facts(table["storage"]),
        published=MappingProxyType(table["published_effective_time"]),
    )
