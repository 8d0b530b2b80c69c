"""What is configured: one job with its layout and knobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from advisor import data
from advisor.spec.hardware import Cluster, Gpu
from advisor.spec.layout import Knobs, Layout
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.model import Model
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Job:
    """A model on a cluster with one layout and one choice of knobs."""

    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    knobs: Knobs

    @property
    def gpu(self) -> Gpu:
        """The GPU it runs on."""
        return self.cluster.gpu


@lru_cache(maxsize=8)
def preset(name: str) -> dict[str, Any]:
    """A YAML file of presets/ as a mapping; EnvironmentMissingError when the installation lacks it."""
    return read_yaml_mapping(data.require("presets", name))
