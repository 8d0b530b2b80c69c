"""The arguments that every time formula takes, bundled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.cost.placement import Spans
from advisor.cost.profile import Profile
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Array, Columns
from advisor.spec.model import Model
from advisor.spec.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A table of layouts of one job: `padded_vocab` is its vocabulary per row, `spans` where its groups lie."""

    model: Model
    cluster: Cluster
    workload: Workload
    columns: Columns
    profile: Profile
    spans: Spans
    padded_vocab: Array

    @property
    def element_bytes(self) -> float:
        """Size of an activation that passes between ranks."""
        return self.workload.precision.activation_bytes

    def loaded(self, load: Array) -> Setting:
        """The same layouts with so many tokens on the hottest expert-parallel rank, over the mean (a column)."""
        return replace(self, workload=replace(self.workload, router_skew=load))
